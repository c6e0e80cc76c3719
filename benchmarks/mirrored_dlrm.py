"""Local work of a training step of DLRM-DCNv2 on 8, 64 and 128 ranks, form by form, measured beside mirrors.

usage: python benchmarks/mirrored_dlrm.py OUT [RANKS ...]

MLPerf's 26 tables (tables=criteo) with 512 samples a rank, on one device. On 8 ranks tables have 4 million rows at
most, so that five plans' shards fit into 24 GB. A run that was stopped goes on. Let nothing else run.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
from rich.console import Console

import neuroshard as ns
from neuroshard.hardware import DeviceSpec, Hardware
from neuroshard.hardware.step_samples import StepProtocol
from neuroshard.layouts import in_copies, in_rows
from neuroshard.plans.plan import Plan
from neuroshard.records.samples import LOCAL_PHASES
from neuroshard.stages.search.runs.evaluate import Evaluate
from neuroshard.stages.search.runs.in_mirror import InMirror
from neuroshard.tables.sources.criteo import criteo
from neuroshard.words.shard import Placement

MODELS = "roofline:h100"  # places columns, and says what exchanges would take
SAMPLES = 512  # a rank
SMALL = 20_000  # rows of the largest table that is copied
PROTOCOL = StepProtocol(builds=1, turns=4, steps=2)


def main() -> None:
    out, sizes = Path(sys.argv[1]), [int(size) for size in sys.argv[2:]] or [8, 64, 128]
    console = Console(width=200)
    for ranks in sizes:
        folder = out / str(ranks)
        through = InMirror(PROTOCOL, MODELS)
        run = Evaluate(
            _planned(folder, ranks), MODELS, Hardware(DeviceSpec("cpu")), out=str(folder / "steps"), through=through
        )
        result = run.run()
        if result is not None:
            result.show(console)
        _report(ranks, pd.read_parquet(folder / "steps" / "results.parquet"))


def _planned(folder: Path, ranks: int) -> list[str]:
    """Files of the plans: columns as the search places them, and other forms of tables that have them."""
    tables = criteo(SAMPLES * ranks)
    if ranks == 8:
        tables = tuple(replace(table, rows=min(table.rows, 4_000_000)) for table in tables)
    task = ns.Task(tables, ns.Topology(ranks, "64GiB"), SAMPLES * ranks)
    sim = ns.Simulator(ns.CostModels.load(MODELS))
    columns = ns.search(task, sim, forms=["columns"])
    copied = {i: in_copies(task, i) for i, table in enumerate(tables) if table.rows <= SMALL}
    cut = {i: in_rows(task, i, range(ranks)) for i, table in enumerate(tables) if table.rows > SMALL}
    found = {
        "columns": columns,
        "copies": _with(columns, copied.get),
        "rows": _with(columns, cut.get),
        "copies_and_rows": _with(columns, (copied | cut).get),
    }
    for name, plan in found.items():
        sim.predicted(plan).save(folder / f"{name}.json")
    return [str(folder / f"{name}.json") for name in found]


def _with(plan: Plan, placed: Callable[[int], list[Placement] | None]) -> Plan:
    """The plan with other placements of the tables that have them."""
    tables = range(len(plan.task.tables))
    return Plan(plan.task, tuple(one for i in tables for one in placed(i) or plan.by_table[i]))


def _report(ranks: int, found: pd.DataFrame) -> None:
    for row in found.to_dict("records"):
        cells = [f"{row[name]:.1f}" for name in (*LOCAL_PHASES, "local_ms", "exchange_ms")]
        print(f"| {ranks} | {row['method'].replace('_', ' ')} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
