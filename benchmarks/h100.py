"""Measurements on an H100, and predicted plans for H100s by the installed cost models: the tables
of docs/results/gpu_*.md.

usage: h100.py [TABLE ...]    (all: about fifteen minutes on two cores; the same on every machine)

Kernels beside published times, kernels of plans and mirrored steps beside their predictions, from `benchmarks/data`;
the papers' tasks, DLRM-DCNv2 on 8, 64 and 128 GPUs, large models of 2,000 tables, targets, and host memory, predicted.
"""

import json
import logging
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import gpu_steps
import numpy as np
import pandas as pd
from kernel_errors import errors as errors_of
from scipy.stats import kendalltau
from shared import (
    ALL_TYPES,
    COLUMN_WISE,
    COLUMN_WISE_CACHED,
    Made,
    found,
    markdown,
    of_drawn_dims,
    papers_tasks,
    simulator_of,
    total_ms,
    with_tables,
)

import neuroshard as ns
from neuroshard.bundles import shipped_path
from neuroshard.measure.store import DataDirectory
from neuroshard.measure.store.noise import fastest
from neuroshard.measure.store.sample_loads import loads_of
from neuroshard.models import load_bundle
from neuroshard.plumbing.files import write_atomically
from neuroshard.tables.sources.dlrm_like import dlrm_like
from neuroshard.words.form import COLUMN_WISE_CALL, FORMS, Form
from neuroshard.words.model_choice import ModelChoice
from neuroshard.words.placement import TIERS

DATASHEET, MEASURED, ANOTHER, BATCH, HOST = "roofline:h100", "h100", "roofline:h200", 65536, 8
WHOLE = ModelChoice(MEASURED, framework="torchrec")  # costs of whole steps
SEARCHERS = (
    *("random", "size_greedy", "dim_greedy", "lookup_greedy", "size_lookup_greedy"),
    *("torchrec", "neuroshard_published", "neuroshard"),
)
COLUMNS = {"sharding_types": ("column_wise",)}
OF_EACH_TYPE = "column-wise, row-wise, data-parallel tables"
DATA = Path(__file__).resolve().parent / "data"
PAGES = tuple(DATA.parents[1] / "docs" / "results" / f"gpu_{name}.md" for name in ("kernels", "steps", "predicted"))
COPY_GB_PER_S = 3012  # of a GiB on the device, the best of 20


def main() -> None:
    logging.disable()  # TorchRec's planner warns of every data-parallel table
    warnings.simplefilter("ignore", ns.NeuroShardWarning)
    made = {name: partial(str, shown(name)) for name in sys.argv[1:] or TABLES}  # before the pages are read
    for page in PAGES:
        write_atomically(page, with_tables(page.read_text(), made).encode())


def shown(name: str) -> str:
    """Return a table as Markdown, followed by a line that names the data or the script from which its
    figures come, and the day.
    """
    source = MEASURED_IN.get(name) or f"Predicted on {datetime.now(UTC):%-d %B %Y} by `benchmarks/h100.py`."
    return f"{TABLES[name]()}\n<sub>{source}</sub>\n"


def points() -> str:
    """Return a table that compares measured kernel times with times that others published."""
    columns = "forward, ms", "published", "backward, ms", "published", "launching both, ms"
    return markdown(
        ("call: tables x rows x columns; lookups", "optimizer", *columns),
        map(_point, _lines(DATA / "h100_points.jsonl")),
    )


def _point(its: dict[str, Any]) -> list[str]:
    ways = [its[way] for way in ("forward", "backward")]
    times = [cell for way in ways for cell in (f"{way['warm_ms'][1]:.3f}", _published(way))]
    return [_call(its), its["optimizer"], *times, f"{its['both']['host_ms'][1]:.2f}"]


def _call(its: dict[str, Any]) -> str:
    tables, lookups = its["tables"], its["tables"] * its["batch_size"] * its["bag"]
    skew = f"Zipf {its['zipf']}" if its["zipf"] else "even"
    bags = f"{skew} lookups in bags of {its['bag']}, {'pooled' if its['pooled'] else 'sequence'}"
    return f"{tables} x {its['rows']:,} x {its['dim']}; {lookups:,} {bags}, fp{8 * its['element_bytes']}"


def _published(way: dict[str, Any]) -> str:
    return f"{way['published_ms']:.3f} ({way['sheet']})" if "published_ms" in way else ""


def models() -> str:
    """Return a table of the errors of the cost models that were fitted to the GPU, and lines on the time saved in
    kernel calls without wide tables.
    """
    fitted, card = load_bundle(shipped_path(MEASURED))
    rows = [
        (part, f"{its.test.samples}", f"{its.test.mape:.1%}", f"{its.test.kendall_tau:.2f}", _noise(its.noise_mean))
        for part, its in {"compute": card.metrics.compute, **card.metrics.others}.items()
    ]
    members = fitted.compute.by_call[COLUMN_WISE_CALL].members
    shares = zip(members[0].kernel_widths, np.mean([one.saved for one in members], axis=0), strict=True)
    savings = [f"{share:.0%} where none is above {width} columns" for width, share in reversed([*shares])]
    return (
        markdown(("part", "tested on", "mean error", "Kendall's tau", "two passes differ by"), rows)
        + "\nKernels are faster where no table of the call is wide. Of what tables cost beside wide ones is saved:\n"
        f"{savings[0]}; of the rest {savings[1]};\nof that rest {savings[2]}.\n"
    )


def _noise(mean: float | None) -> str:
    return f"{mean:.1%}" if mean else ""


def moved() -> str:
    """Return a sentence that compares the rate at which kernels move bytes with the rate of a copy."""
    _, card = load_bundle(shipped_path(MEASURED))
    low, middle, high = (rate / COPY_GB_PER_S for rate in card.moved_gb_per_s)
    return (
        f"A copy moves {COPY_GB_PER_S:,} GB/s, read and written. Kernels of random combinations of column-wise tables "
        f"move the bytes\nthat they can't do without at {middle:.0%} of that "
        f"(median; quartiles {low:.0%} and {high:.0%}).\n"
    )


def plans() -> str:
    """Return a table that compares the kernel times of plans, measured on one GPU, with the predictions of the fitted
    models and of the analytic model.
    """
    slowest = _slowest_devices("h100_plans", MEASURED, DATASHEET)
    rows = []
    for search, its in [*slowest.groupby("search"), ("all", slowest)]:
        off = [f"{(its[name] / its['measured'] - 1).abs().mean():.1%}" for name in (MEASURED, DATASHEET)]
        rows.append((search, f"{len(its)}", f"{its['measured'].mean():.3f}", *off))
    papers = [its for task, its in slowest.groupby("task") if "papers" in str(task)]
    tau, other = (_mean_tau(papers, name) for name in (MEASURED, DATASHEET))
    errors = (f"`{name}`: mean error" for name in (MEASURED, DATASHEET))
    return (
        markdown(("search", "plans", "measured, mean ms", *errors), rows)
        + "\nThe order of a task's plans, as Kendall's tau, mean of the papers' ten tasks: "
        f"{tau:.2f} by `{MEASURED}`, {other:.2f} by `{DATASHEET}`.\n"
    )


def another() -> str:
    """Return a table that compares kernel times on a GPU to which no model was fitted with the predictions of its
    analytic model, for plans and for random calls.
    """
    slowest = _slowest_devices("h200_plans", ANOTHER)
    tasks = [its for _, its in slowest.groupby("task")]
    tau = _mean_tau(tasks, ANOTHER)
    beside = {name: slowest[name] / slowest[name].groupby("task").transform(_of_torchrec) for name in slowest}
    rows = []
    for search, its in [*slowest.groupby("search"), ("all", slowest)]:
        off = f"{(its[ANOTHER] / its['measured'] - 1).abs().mean():.1%}"
        ratios = (f"{beside[name].reindex(its.index).mean():.3f}" for name in (ANOTHER, "measured"))
        rows.append((str(search), f"{len(its)}", f"{its['measured'].mean():.3f}", off, *ratios))
    of_calls = errors_of(ns.CostModels.load(ANOTHER).compute, {"": ("h200",)}, ("train", "valid", "test")).items()
    errors_by_call = ", ".join(f"`{call}` {its.error:.1%}" for call, its in of_calls)
    columns = f"`{ANOTHER}`: mean error", "predicted ratio", "measured ratio"
    return (
        markdown(("search", "plans", "measured, mean ms", *columns), rows)
        + f"\nThe order of a task's plans, as Kendall's tau, mean of {len(tasks)} tasks: {tau:.2f}.\n"
        f"Mean errors of {sum(its.calls for _, its in of_calls):,} random calls: {errors_by_call}.\n"
    )


def kernel_ratios() -> pd.Series:
    """Return the measured kernel times of the default search's plans relative to the baseline's on the
    H200, one ratio per task.
    """
    measured = _slowest_devices("h200_plans")["measured"]
    ratios = measured / measured.groupby("task").transform(_of_torchrec)
    return ratios.xs("neuroshard", level="search")


def _of_torchrec(ms: pd.Series) -> float:
    return float(ms.xs("torchrec", level="search").iloc[0])


def _mean_tau(tasks: Sequence[pd.DataFrame], model: str) -> float:
    return float(np.mean([kendalltau(its["measured"], its[model]).statistic for its in tasks]))


def _slowest_devices(folder: str, *models: str) -> pd.DataFrame:
    """Return the kernel time of the slowest device of each plan, measured and predicted by each of `models`, in ms; the
    index is (task, search).
    """
    frame = pd.read_csv(DATA / folder / "plans.csv")
    calls = {m.sample_id: m for m in fastest(DataDirectory(DATA / folder).compute().each())}
    of_calls = [calls[number] for number in frame["sample_id"]]
    frame["measured"] = [m.typical_ms for m in of_calls]
    for name in models:
        model = ns.CostModels.load(name).compute
        frame[name] = [float(model.predict(loads_of([m.sample]))[0]) for m in of_calls]
    of_devices = frame.groupby(["task", "search", "device"])[["measured", *models]].sum()
    return of_devices.groupby(["task", "search"]).max()


def papers() -> str:
    """Return tables that compare the plans of every searcher on the tasks of the papers, one
    table for each cost model.
    """
    return "\n".join(f"By `{name}`:\n\n{_of_papers(name)}" for name in (MEASURED, WHOLE, DATASHEET))


def _of_papers(model: ModelChoice | str) -> str:
    rows: dict[str, list[str]] = {name: [f"`{name}`"] for name in SEARCHERS}
    for devices in (4, 8):
        tasks = papers_tasks(devices, BATCH, 30)
        costs = {name: _costs(model, tasks, searcher=name) for name in SEARCHERS}
        for name, its in costs.items():
            ok = np.isfinite(its)
            ratio = np.mean(its[ok] / costs["neuroshard"][ok])
            rows[name] += [f"{ok.sum()}", f"{its[ok].mean():.3f}", f"{ratio:.3f}"]
    columns = [cell for devices in (4, 8) for cell in (f"{devices} GPUs: solved", "mean ms", "relative to the default")]
    return markdown(("search", *columns), rows.values())


def dcn() -> str:
    """Return a table of the predicted costs of plans for DLRM-DCNv2, by number of GPUs and by optimizer."""
    columns = "GPUs, optimizer", "column-wise only, ms", "any sharding type, ms", OF_EACH_TYPE, "data-parallel ones"
    optimizers = "sgd", "rowwise_adagrad", "adam"
    rows = [_dcn(devices, optimizer) for devices in (8, 64, 128) for optimizer in optimizers]
    return markdown((*columns, f"{COLUMN_WISE}, ms", f"{ALL_TYPES}, ms"), rows)


def _dcn(devices: int, optimizer: str) -> list[str]:
    simulator, task = simulator_of(ModelChoice(DATASHEET, optimizer=optimizer)), _criteo_task(devices)
    ways = (COLUMNS, {}, {"searcher": "torchrec"}, {"searcher": "torchrec_all_types"})
    every = [found(task, simulator, **way) for way in ways]
    alone, best, *theirs = (_ms(simulator, plan) for plan in every)
    copied = [table.rows for table, form in zip(task.tables, every[1].forms, strict=True) if form is Form.DATA_PARALLEL]
    which = f"of {min(copied):,} to {max(copied):,} rows" if copied else "none"
    return [f"{devices}, {optimizer}", alone, best, _forms(every[1]), which, *theirs]


def large() -> str:
    """Return a table of the predicted costs of plans for models of 2,000 tables, which are as large as
    published production models.
    """
    tables = of_drawn_dims(dlrm_like(batch_size=BATCH, seed=1, num_tables=2000), (32, 64, 128))
    ways, simulator, rows = (
        ({"searcher": "size_lookup_greedy"}, {"searcher": "neuroshard_published"}, COLUMNS, {}),
        simulator_of(DATASHEET),
        [],
    )
    for devices in (64, 128):
        size = int(1.5 * sum(table.size_bytes for table in tables) / devices)
        task = ns.Task(tables, replace(_gpus(devices), memory_bytes=size), BATCH)
        plans = [found(task, simulator, **way) for way in ways]
        rows.append((f"{devices}", *(_ms(simulator, plan) for plan in plans), _forms(plans[-1])))
    columns = "size-lookup greedy, ms", "published search, ms", "column-wise only, ms", "any sharding type, ms"
    return markdown(("GPUs", *columns, OF_EACH_TYPE), rows)


def targets() -> str:
    """Return a table that compares the predicted costs of plans that are limited to what each
    target system can express.
    """
    rows = [("DLRM-DCNv2", f"{devices}", *_costs_by_target([_criteo_task(devices)])) for devices in (8, 16)]
    rows += [("the papers'", f"{devices}", *_costs_by_target(papers_tasks(devices, BATCH, 10))) for devices in (4, 8)]
    return markdown(("tables", "GPUs", "no target, ms", "torchrec", "hugectr", "sok"), rows)


def _costs_by_target(tasks: Sequence[ns.Task]) -> list[str]:
    targets = None, "torchrec", "hugectr", "sok"
    free, *others = (np.mean(_costs(DATASHEET, tasks, target=target)) for target in targets)
    return [f"{free:.3f}", *(f"{one:.3f} ({one / free - 1:+.1%})" for one in others)]


def memory() -> str:
    """Return a table of the predicted costs of plans as device memory shrinks, as Markdown."""
    frame = memory_shares(Path(), small=False).frame
    return markdown(frame.columns, frame.to_numpy())


def memory_shares(_work: Path, small: bool) -> Made:
    """Return the predicted costs of plans for DLRM-DCNv2 on 8 GPUs as device memory shrinks:
    a table of `results.py`.
    """
    simulator, task = simulator_of(DATASHEET), _criteo_task(8)
    size, rows = sum(table.size_bytes for table in task.tables), []
    for share in (1.05,) if small else (1.05, 0.8, 0.6, 0.4, 0.2):
        each = int(share * size / 8) + (1 << 30)
        alone, room = (replace(task, topology=ns.Topology(8, each, host_memory_bytes=its)) for its in (0, 2 * size))
        best = found(room, simulator)
        tiers = (
            ""
            if best is None
            else ", ".join(str(sum(one.tier is tier for one in best.tier_assignments)) for tier in TIERS)
        )
        plans = found(alone, simulator), best, found(room, simulator, "torchrec")
        ms = [_ms(simulator, plan) for plan in plans]
        rows.append((f"{share:.2f}", *ms[:2], tiers, ms[2]))
    columns = ("memory", "device memory alone, ms", "all tiers, ms", "tables in device, uvm_caching, uvm")
    return Made(pd.DataFrame(rows, columns=[*columns, f"{COLUMN_WISE_CACHED}, ms"]), "Arithmetic: the same everywhere.")


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _criteo_task(devices: int) -> ns.Task:
    return ns.Task(ns.load_tables("criteo", batch_size=BATCH), _gpus(devices), BATCH)


def _gpus(devices: int) -> ns.Topology:
    return ns.Topology(devices, 80 * 10**9, devices_per_host=min(devices, HOST))


def _costs(model: ModelChoice | str, tasks: Sequence[ns.Task], **how: object) -> np.ndarray:
    simulator = simulator_of(model)
    return np.array([total_ms(simulator, found(task, simulator, **how)) for task in tasks])


def _forms(plan: ns.Plan | None) -> str:
    return "" if plan is None else ", ".join(str(plan.forms.count(form)) for form in FORMS)


def _ms(simulator: ns.Simulator, plan: ns.Plan | None) -> str:
    return "no plan" if plan is None else f"{total_ms(simulator, plan):.3f}"


TABLES: dict[str, Callable[[], str]] = {
    "models": models,
    "moved": moved,
    "plans": plans,
    "another": another,
    "points": points,
    "steps": gpu_steps.by_task,
    "steps_little": gpu_steps.by_task_little,
    "steps_default": gpu_steps.by_task_beside_default,
    "methods": gpu_steps.by_method,
    "papers": papers,
    "dcn": dcn,
    "large": large,
    "targets": targets,
    "memory": memory,
}


def _measured(folder: str, day: int, gpu: str = "H100 80GB HBM3") -> str:
    return f"[benchmarks/data/{folder}](../../benchmarks/data/{folder}), measured on {day} November 2026, NVIDIA {gpu}."


# What tables of measurements are made from. The others are predicted when they are made.
MEASURED_IN = {
    "points": _measured("h100_points.jsonl", 26),
    "models": _measured("h100", 26),
    "moved": _measured("h100", 26),
    "plans": _measured("h100_plans", 26),
    "another": _measured("h200_plans", 26, "H200"),
    "steps": _measured("gpu_steps", 27),
    "steps_little": _measured("gpu_steps", 27),
    "steps_default": _measured("gpu_steps", 27),
    "methods": _measured("gpu_steps", 27),
}

if __name__ == "__main__":
    main()
