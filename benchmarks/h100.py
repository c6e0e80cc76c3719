"""Plans for H100s by the calibrated datasheet: predictions, the same on every machine.

usage: h100.py > docs/h100.md    (about ten minutes on two cores)

DLRM-DCNv2 on 8, 64 and 128 GPUs, large models of 2,000 tables, the papers' tasks, targets, and host memory.
"""

import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from shared import Made

import neuroshard as ns
from neuroshard.plumbing.errors import InfeasibleError
from neuroshard.tables.sources.dlrm_like import dlrm_like
from neuroshard.tasks.draw import TaskDraw, drawn
from neuroshard.words.form import FORMS
from neuroshard.words.placement import TIERS

MODEL, BATCH, HOST = "roofline:h100", 65536, 8
SEARCHERS = (
    *("random", "size_greedy", "dim_greedy", "lookup_greedy", "size_lookup_greedy"),
    *("torchrec", "neuroshard_published", "neuroshard"),
)
COLUMNS = {"searcher": "neuroshard", "forms": ("columns",)}
HEAD = """# Plans for H100s, predicted

Read this page to see what the calibrated datasheet `roofline:h100` says of large models on many GPUs, compared with
other planners and systems. Everything is arithmetic ([how far to trust it](datasheets.md)); nothing was measured on a
GPU. `python benchmarks/h100.py > docs/h100.md` makes this page, the same on every machine.
"""


def main() -> None:
    """Print the page."""
    logging.disable()  # TorchRec's planner warns of every table in copies
    warnings.simplefilter("ignore", ns.NeuroShardWarning)
    simulator = ns.Simulator(ns.CostModels.load(MODEL))
    print(HEAD)
    for section in (_dcn, _large, _papers, _targets, _memory):
        print("\n".join(section(simulator)), flush=True)


def _dcn(_: ns.Simulator) -> Iterator[str]:
    """Cost DLRM-DCNv2 by number of GPUs and optimizer."""
    yield "## DLRM-DCNv2\nMLPerf's 26 tables, 80 GB GPUs, 8 a host, batch 65,536.\n"
    yield from _head(
        *("GPUs", "optimizer", "columns alone, ms", "all forms, ms", "tables in columns, rows, copies", "copied"),
        *("TorchRec's planner, ms", "all its forms, ms"),
    )
    tables = ns.load_tables("criteo", batch_size=BATCH)
    for devices in (8, 64, 128):
        for optimizer in ("sgd", "rowwise_adagrad", "adam"):
            of = ns.Simulator(ns.CostModels.load(f"{MODEL}+{optimizer}"))
            task = ns.Task(tables, _gpus(devices), BATCH)
            ways = (COLUMNS, {}, {"searcher": "torchrec"}, {"searcher": "torchrec_all_forms"})
            columns, best, *theirs = (_found(task, of, **way) for way in ways)
            copied = [table.rows for table, form in zip(tables, best.forms, strict=True) if form.value == "copies"]
            which = f"of {min(copied):,} to {max(copied):,} rows" if copied else "none"
            cells = [f"{devices}", optimizer, _ms(of, columns), _ms(of, best), _forms(best), which]
            yield f"| {' | '.join([*cells, *(_ms(of, plan) for plan in theirs)])} |"
    yield (
        "\nNVIDIA's plan for 8 GPUs copies 13 of them. Between hosts the fixed time of an all-reduce outweighs\n"
        "what copies save; that time rests on four published figures "
        "([datasheets.md](datasheets.md#what-it-is-made-of)).\n"
        "TorchRec with all its forms can be worse than with columns: its own estimates choose the forms, not this "
        "datasheet.\n"
    )


def _large(simulator: ns.Simulator) -> Iterator[str]:
    """Cost models as large as published production plans."""
    yield (
        "## 2,000 tables\nSynthetic tables as in the public data set, batch 65,536; each GPU has 1.5 times its even "
        "share of the tables' bytes.\n"
    )
    yield from _head(
        *("GPUs", "size-lookup greedy, ms", "published search, ms", "columns alone, ms", "all forms, ms"),
        "tables in columns, rows, copies",
    )
    pool = dlrm_like(batch_size=BATCH, seed=1, num_tables=2000)
    rng = np.random.default_rng(0)
    tables = tuple(
        table.with_dim(int(dim)) for table, dim in zip(pool, rng.choice((32, 64, 128), len(pool)), strict=True)
    )
    for devices in (64, 128):
        size = int(1.5 * sum(table.size_bytes for table in tables) / devices)
        task = ns.Task(tables, replace(_gpus(devices), memory_bytes=size), BATCH)
        names = ({"searcher": "size_lookup_greedy"}, {"searcher": "neuroshard_published"}, COLUMNS, {})
        plans = [_found(task, simulator, **its) for its in names]
        yield f"| {devices} | {' | '.join(_ms(simulator, plan) for plan in plans)} | {_forms(plans[-1])} |"
    yield ""


def _papers(simulator: ns.Simulator) -> Iterator[str]:
    """Compare every searcher on the papers' tasks."""
    yield (
        "## The papers' tasks\n30 tasks of 10 to 59 tables, 4 GiB GPUs; ratios are means over tasks that both methods "
        "solve.\n"
    )
    yield from _head(
        *("search", "4 GPUs: solved", "mean ms", "relative to the default"),
        *("8 GPUs: solved", "mean ms", "relative to the default"),
    )
    rows: dict[str, list[str]] = {name: [] for name in SEARCHERS}
    for devices in (4, 8):
        tasks = drawn(dlrm_like(batch_size=BATCH, seed=1), ns.Topology(devices, 4 << 30), BATCH, TaskDraw(count=30))
        cost = {name: _costs(simulator, tasks, name) for name in SEARCHERS}
        for name, its in cost.items():
            ok = np.isfinite(its)
            ratio = np.mean(its[ok] / cost["neuroshard"][ok])
            rows[name] += [f"{ok.sum()}", f"{its[ok].mean():.3f}", f"{ratio:.3f}"]
    yield from (f"| `{name}` | {' | '.join(its)} |" for name, its in rows.items())
    yield ""


def _targets(simulator: ns.Simulator) -> Iterator[str]:
    """Compare what plans cost that each target can express."""
    yield (
        "## Targets\nPlans that each system can express, relative to those without a target; 10 of the papers' tasks.\n"
    )
    yield from _head("tables", "GPUs", "no target, ms", "torchrec", "hugectr", "sok")
    for devices in (8, 16):
        task = ns.Task(ns.load_tables("criteo", batch_size=BATCH), _gpus(devices), BATCH)
        yield f"| DLRM-DCNv2 | {devices} | {_beside_targets(simulator, [task])} |"
    for devices in (4, 8):
        tasks = drawn(dlrm_like(batch_size=BATCH, seed=1), ns.Topology(devices, 4 << 30), BATCH, TaskDraw(count=10))
        yield f"| the papers' | {devices} | {_beside_targets(simulator, tasks)} |"
    yield "\n16 GPUs are two hosts, whose exchanges go over network cards: a step may take longer than on 8.\n"


def _memory(_: ns.Simulator) -> Iterator[str]:
    """Cost plans with less and less device memory."""
    yield "## Host memory\nDLRM-DCNv2, 8 GPUs with a share of the memory that its tables take; hosts have room.\n"
    frame = memory_shares(Path(), small=False).frame
    yield from _head(*frame.columns)
    yield from (f"| {' | '.join(row)} |" for row in frame.to_numpy())


def memory_shares(_work: Path, small: bool) -> Made:
    """Cost DLRM-DCNv2 on 8 GPUs with less and less memory: a table of `results.py`."""
    simulator = ns.Simulator(ns.CostModels.load(MODEL))
    tables = ns.load_tables("criteo", batch_size=BATCH)
    size, rows = sum(table.size_bytes for table in tables), []
    for share in (1.05,) if small else (1.05, 0.8, 0.6, 0.4, 0.2):
        each = int(share * size / 8) + (1 << 30)
        plans = []
        for host, searcher in ((0, "neuroshard"), (2 * size, "neuroshard"), (2 * size, "torchrec")):
            task = ns.Task(tables, ns.Topology(8, each, host_memory_bytes=host), BATCH)
            plans.append(_found(task, simulator, searcher=searcher))
        best = plans[1]
        homes = "" if best is None else ", ".join(str(sum(home.tier is tier for home in best.homes)) for tier in TIERS)
        alone, every, theirs = (_ms(simulator, plan) for plan in plans)
        rows.append((f"{share:.2f}", alone, every, homes, theirs))
    columns = ("memory", "device memory alone, ms", "all memories, ms", "tables on device, cached, on host")
    return Made(pd.DataFrame(rows, columns=[*columns, "TorchRec's planner, ms"]), "Arithmetic: the same everywhere.")


def _head(*columns: str) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield "| --- " * len(columns) + "|"


def _gpus(devices: int) -> ns.Topology:
    return ns.Topology(devices, 80 * 10**9, devices_per_host=min(devices, HOST))


def _found(task: ns.Task, simulator: ns.Simulator, **how: object) -> ns.Plan | None:
    try:
        return ns.search(task, simulator, **how)  # type: ignore[arg-type]
    except InfeasibleError:
        return None


def _costs(simulator: ns.Simulator, tasks: Sequence[ns.Task], searcher: str) -> np.ndarray:
    plans = [_found(task, simulator, searcher=searcher) for task in tasks]
    return np.array([np.inf if plan is None else simulator.cost(plan.task, plan).total_ms for plan in plans])


def _beside_targets(simulator: ns.Simulator, tasks: Sequence[ns.Task]) -> str:
    free, *others = (
        np.mean(
            [simulator.cost((plan := ns.search(task, simulator, target=target)).task, plan).total_ms for task in tasks]
        )
        for target in (None, "torchrec", "hugectr", "sok")
    )
    return " | ".join([f"{free:.3f}", *(f"{one:.3f} ({one / free - 1:+.1%})" for one in others)])


def _forms(plan: ns.Plan | None) -> str:
    return "" if plan is None else ", ".join(str(plan.forms.count(form)) for form in FORMS)


def _ms(simulator: ns.Simulator, plan: ns.Plan | None) -> str:
    return "no plan" if plan is None else f"{simulator.cost(plan.task, plan).total_ms:.3f}"


if __name__ == "__main__":
    main()
