"""What was measured on an H100, and plans for H100s by the installed models: the same on every machine.

usage: h100.py > docs/h100.md    (about fifteen minutes on two cores)

Kernels beside published times, kernels of plans and mirrored steps beside their predictions, from `benchmarks/data`;
the papers' tasks, DLRM-DCNv2 on 8, 64 and 128 GPUs, large models of 2,000 tables, targets, and host memory, predicted.
"""

import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import kendalltau
from shared import Made

import neuroshard as ns
from neuroshard.hardware.mirror_meters import MirroredStep
from neuroshard.hardware.step_samples import LocalStep, Stretch
from neuroshard.models import load_bundle
from neuroshard.plumbing.errors import InfeasibleError
from neuroshard.records import DataDirectory
from neuroshard.records.sample_loads import loads_of
from neuroshard.records.samples import LOCAL_PHASES
from neuroshard.tables.sources.dlrm_like import dlrm_like
from neuroshard.tasks.draw import TaskDraw, drawn
from neuroshard.words.form import FORMS, IN_COLUMNS
from neuroshard.words.placement import TIERS

MODEL, BATCH, HOST = "roofline:h100", 65536, 8
SEARCHERS = (
    *("random", "size_greedy", "dim_greedy", "lookup_greedy", "size_lookup_greedy"),
    *("torchrec", "neuroshard_published", "neuroshard"),
)
COLUMNS = {"searcher": "neuroshard", "forms": ("columns",)}
MEASURED, DATA = "h100", Path(__file__).resolve().parent / "data"
COPY_GB_PER_S = 3012  # of a GiB on the device, the best of 20
HEAD = """# H100s, measured and predicted

Read this page to see what one H100 took, how near models come to it, and what they say of large models on many GPUs,
compared with other planners and systems. Two models are compared: `h100`, whose kernels were measured on that GPU, and
the calibrated datasheet `roofline:h100`, which was made before anything was measured. Exchanges are the datasheet's in
both ([how far to trust it](datasheets.md)): one GPU exchanges nothing. `python benchmarks/h100.py > docs/h100.md` makes
this page from what was measured, the same on every machine.
"""


def main() -> None:
    """Print the page."""
    logging.disable()  # TorchRec's planner warns of every table in copies
    warnings.simplefilter("ignore", ns.NeuroShardWarning)
    simulator = ns.Simulator(ns.CostModels.load(MODEL))
    print(HEAD)
    for section in (_points, _models, _plans, _steps, _papers, _dcn, _large, _targets, _memory):
        print("\n".join(section(simulator)), flush=True)


def _points(_: ns.Simulator) -> Iterator[str]:
    """Compare kernels with what was published of them."""
    yield (
        "## Kernels, beside what others published\nMedians of 20 runs, launches hidden, caches as the run before left "
        "them, as publishers' benchmarks do.\n"
    )
    yield from _head("call", "optimizer", "forward, ms", "published", "backward, ms", "published", "launching both, ms")
    for line in (DATA / "h100_points.jsonl").read_text().splitlines():
        its = json.loads(line)
        ways = [
            cell for way in ("forward", "backward") for cell in (f"{its[way]['warm_ms'][1]:.3f}", _published(its[way]))
        ]
        call = (
            f"{its['tables']} x {its['rows']:,} rows x {its['dim']}, {its['tables'] * its['batch_size'] * its['bag']:,}"
        )
        kind = "pooled" if its["pooled"] else "sequence"
        skew = f"Zipf {its['zipf']}" if its["zipf"] else "even"
        call += f" {skew} lookups in bags of {its['bag']}, {kind}, fp{8 * its['element_bytes']}"
        yield f"| {call} | {its['optimizer']} | {' | '.join(ways)} | {its['both']['host_ms'][1]:.2f} |"
    yield (
        "\nNVIDIA's backward pass comes out within 5%; its forward pass takes 1.7 times as long here: its figure is\n"
        "dynamicemb's, which has lookups of its own. Meta's GPUs have 2.4 TB/s, this one 3.35 by its datasheet (3.01\n"
        "in a copy), so 0.72 of their times is expected: it is 0.71 at 128 columns, 0.65 at 64, 0.59 at 512, 0.80 to\n"
        "0.85 at 4 to 32. A small call takes the GPU less than half of what was published of a B200, and the host ten\n"
        "times as long as the GPU. Outputs cost more than datasheets say: a million sequence outputs of 128 columns\n"
        "are written at 1.2 TB/s.\n"
    )


def _published(way: dict) -> str:
    return f"{way['published_ms']:.3f} ({way['sheet']})" if "published_ms" in way else ""


def _models(_: ns.Simulator) -> Iterator[str]:
    """Tell how good the models are that were fitted to the GPU."""
    models, card = load_bundle(DATA.parents[1] / "neuroshard" / "bundles" / MEASURED)
    yield "## The models\nErrors of `h100` on tables that fitting never saw; 4,909 calls and 88 steps were measured.\n"
    yield from _head("part", "tested on", "mean error", "Kendall's tau", "two passes differ by")
    for part, its in {"compute": card.metrics.compute, **card.metrics.others}.items():
        noise = f"{its.noise_mean:.1%}" if its.noise_mean else ""
        yield f"| {part} | {its.test.samples} | {its.test.mape:.1%} | {its.test.kendall_tau:.2f} | {noise} |"
    members = models.compute.by_call[IN_COLUMNS].members
    low, middle, high = (rate / COPY_GB_PER_S for rate in card.moved_gb_per_s)
    moved = (
        f"A copy moves {COPY_GB_PER_S:,} GB/s, read and written. Kernels of random combinations in columns move the "
        f"bytes\nthat they can't do without at {middle:.0%} of that (median; quartiles {low:.0%} and {high:.0%})."
    )
    shares = zip(members[0].kernel_widths, np.mean([one.saved for one in members], axis=0), strict=True)
    told = [f"{share:.0%} where none is above {width} columns" for width, share in reversed([*shares])]
    yield (
        "\nKernels are faster where no table of the call is wide. Of what tables cost beside wide ones is saved:\n"
        f"{told[0]}; of the rest {told[1]};\nof that rest {told[2]}.\n"
        "Knowing that, errors on unseen tables are 5.1% instead of 7.2%, and those of the plans below 5.4% instead of\n"
        "9.4%. Knowing the number of bags of lookups, which take time however few lookups they have, errors on unseen\n"
        f"tables are 3.8%.\n\n{moved}\n"
    )


def _plans(_: ns.Simulator) -> Iterator[str]:
    """Compare the kernels of plans, as measured on one GPU, with both predictions."""
    frame = pd.read_csv(DATA / "h100_plans" / "plans.csv")
    calls = {m.sample_id: m for m in DataDirectory(DATA / "h100_plans").compute().read()}
    of_calls = [calls[number] for number in frame["sample_id"]]
    frame["measured"] = [m.typical_ms for m in of_calls]
    for name in (MEASURED, MODEL):
        model = ns.CostModels.load(name).compute
        frame[name] = [float(model.of_call(m.sample.call).predict(loads_of([m.sample]))[0]) for m in of_calls]
    times = ["measured", MEASURED, MODEL]
    slowest = frame.groupby(["task", "search", "device"])[times].sum().groupby(["task", "search"]).max()
    yield (
        f"## Kernels of plans\n{len(slowest)} plans of {frame['task'].nunique()} tasks (the papers' on 4 and 8 GPUs, "
        "DLRM-DCNv2, and of seven kinds that nothing was tuned to); tables that no model was fitted to, but for "
        "DLRM-DCNv2's. Each device's kernel calls were measured, one device after the other; a plan takes what its "
        "slowest device does. Plans were searched with models fitted to the same data, before these knew of a call's "
        "widest table.\n"
    )
    yield from _head("search", "plans", "measured, mean ms", *(f"`{name}`: mean error" for name in times[1:]))
    for search, its in [*slowest.groupby("search"), ("all", slowest)]:
        off = [f"{(its[name] / its['measured'] - 1).abs().mean():.1%}" for name in times[1:]]
        yield f"| {search} | {len(its)} | {its['measured'].mean():.3f} | {' | '.join(off)} |"
    tau = [
        np.mean(
            [
                kendalltau(its["measured"], its[name]).statistic
                for task, its in slowest.groupby("task")
                if "papers" in task
            ]
        )
        for name in times[1:]
    ]
    yield (
        f"\nThe order of a task's plans, as Kendall's tau, mean of the papers' ten tasks: {tau[0]:.2f} by "
        f"`{MEASURED}`, {tau[1]:.2f} by `{MODEL}`.\n"
    )


def _steps(_: ns.Simulator) -> Iterator[str]:
    """Compare TorchRec's steps, mirrored on the GPU rank by rank, with their prediction."""
    yield (
        "## TorchRec's steps\nEvery rank of 8 was run on the GPU beside mirrors ([steps.md](steps.md#mirrored-steps-of-"
        "devices-that-arent-here)), without the dense network; exchanges are predicted in both. Batch 65,536.\n"
    )
    yield from _head(
        *("tables", "plan", "columns, rows, copies", "kernels, ms", "the rest of local work, ms"),
        *("with exchanges, ms", "`h100+torchrec`", "`h100`"),
    )
    whole, alone = (ns.Simulator(ns.CostModels.load(f"{MEASURED}{words}")) for words in ("+torchrec", ""))
    ranks: dict[tuple[str, str], list[LocalStep]] = {}
    for line in (DATA / "h100_plans" / "steps.jsonl").read_text().splitlines():
        its = json.loads(line)
        key = its.pop("task"), its.pop("plan")
        its["stretches"] = tuple(Stretch(**one) for one in its["stretches"])
        ranks.setdefault(key, []).append(LocalStep(**its))
    for (task, search), steps in ranks.items():
        plan = ns.Plan.load(DATA / "h100_plans" / "steps" / f"{task}-{search}.json")
        local = dict(zip(LOCAL_PHASES, MirroredStep.of(steps).slowest_ms.tolist(), strict=True))
        local.pop("dense")
        kernels = local["lookups"] + local["backward"]
        kernels_alone, total_ms = alone.cost(plan.task, plan), whole.cost(plan.task, plan).total_ms
        exchanges = sum(float(part.ms.min()) for part in kernels_alone.parts if part.name in ("forward", "backward"))
        work = sum(local.values())
        ms = kernels, work - kernels, work + exchanges, total_ms, kernels_alone.total_ms
        named = "DLRM-DCNv2" if task == "dcn8" else "52 of the papers'"
        yield f"| {named} | {search} | {_forms(plan)} | {' | '.join(f'{one:.2f}' for one in ms)} |"
    yield (
        "\nMost of a step is the host's: TorchRec launches its work call by call, and each form in use adds about "
        "2 ms. So a\nplan whose kernels and exchanges take least by `h100` trains slowest here, and `h100+torchrec` "
        "says so. In a pipeline\nor with CUDA graphs the host would hide; neither was measured.\n\n"
        "The 88 mirrored steps that these models were fitted to, single ranks of random plans in all forms, by the "
        "number\nof ranks:\n"
    )
    yield from _head("ranks", "steps", "local work, mean ms", "highest", "`h100+torchrec`, mean error")
    rows = []
    for m in DataDirectory(DATA / "h100_steps").local().read():
        plan, local = m.sample.plan, dict(zip(LOCAL_PHASES, m.typical_ms, strict=True))
        parts = whole.cost(plan.task, plan).parts
        predicted = sum(part.ms[m.sample.rank] for part in parts if part.name.startswith(("compute", "framework")))
        rows.append((plan.task.topology.num_devices, sum(local.values()) - local["dense"], predicted))
    frame = pd.DataFrame(rows, columns=["ranks", "ms", "predicted"])
    for ranks, its in frame.groupby("ranks"):
        off = (its["predicted"] / its["ms"] - 1).abs().mean()
        yield f"| {ranks} | {len(its)} | {its['ms'].mean():.2f} | {its['ms'].max():.2f} | {off:.1%} |"
    yield ""


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


def _papers(_: ns.Simulator) -> Iterator[str]:
    """Compare every searcher on the papers' tasks, by both models."""
    yield (
        "## The papers' tasks\n30 tasks of 10 to 59 tables, 4 GiB GPUs; ratios are means over tasks that both methods "
        "solve.\n"
    )
    for name in (MEASURED, f"{MEASURED}+torchrec", MODEL):
        yield f"By `{name}`:\n"
        yield from _of_papers(ns.Simulator(ns.CostModels.load(name)))


def _of_papers(simulator: ns.Simulator) -> Iterator[str]:
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
