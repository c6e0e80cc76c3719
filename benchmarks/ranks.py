"""The local work (all work except exchanges) of a training step of DLRM-DCNv2 on 8, 64 and 128 ranks, by sharding type:
a table of `results.py`.

MLPerf's 26 tables with 512 samples a rank, measured beside mirrors on one device. On 8 ranks tables have 4 million rows
at most, so that five plans' shards fit into 24 GB.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
from shared import Made, evaluated, simulator_of

import neuroshard as ns
from neuroshard.cost.cost import COMPUTE
from neuroshard.layouts import place_data_parallel, place_row_wise
from neuroshard.measure.steps.step_samples import StepProtocol
from neuroshard.measure.store.samples import LOCAL_PHASES
from neuroshard.models.parts import FRAMEWORK
from neuroshard.plans.plan import Plan
from neuroshard.stages.search.evaluate.mirrored_measurer import MirroredMeasurer
from neuroshard.tables.sources.criteo import criteo
from neuroshard.words.model_choice import ModelChoice
from neuroshard.words.placement import Placement

DATASHEET, STEPS = "roofline:h100", ModelChoice("cpu", framework="torchrec")  # the first places columns
SAMPLES, SMALL = 512, 20_000  # of a rank; rows of the largest table that is made data-parallel


def beside_mirrors(work: Path, small: bool) -> Made:
    """Return a table of the ms of each phase on the straggler, measured by mirrored steps, and of the predicted local
    work without the dense network.
    """
    rows, floors = [], []
    for ranks in (8,) if small else (8, 64, 128):
        folder, protocol = work / str(ranks), StepProtocol(builds=1, turns=2 if small else 4, steps=2)
        plans = _planned(folder, ranks)
        results = evaluated(plans, DATASHEET, folder / "steps", MirroredMeasurer(protocol, DATASHEET)).frames["results"]
        floors.append(results[0]["floor"])
        rows += [_row(ranks, its, _predicted_ms(plan)) for its, plan in zip(results, plans, strict=True)]
    noise = ", ".join(f"{floor:.1%}" for floor in floors)
    return Made(pd.DataFrame(rows), f"Noise: how far two builds of one plan differ, {noise} by number of ranks.")


def _row(ranks: int, row: dict[str, object], predicted_ms: float) -> dict[str, str]:
    phases = {f"{name}, ms": row[name] for name in LOCAL_PHASES}
    its = phases | {
        "all but dense, ms": row["local_ms"] - row["dense"],
        "all but dense, predicted, ms": predicted_ms,
    }
    cells = {name: f"{ms:.1f}" for name, ms in its.items()}
    return {"ranks": str(ranks), "plan": str(row["method"]).replace("_", " "), **cells}


def _predicted_ms(plan: str) -> float:
    """Return the predicted ms of kernels and of TorchRec's own work on the rank where they take
    longest, for the plan in a file.
    """
    loaded = Plan.load(plan)
    parts = simulator_of(STEPS).cost(loaded.task, loaded).parts
    return float(sum(part.ms for part in parts if part.name == COMPUTE or part.name.startswith(FRAMEWORK)).max())


def _planned(folder: Path, ranks: int) -> list[str]:
    """Save four plans and return the paths: a searched column-wise plan, and the same plan with small tables
    data-parallel, with large tables row-wise, and with both.
    """
    tables = criteo(SAMPLES * ranks)
    if ranks == 8:
        tables = tuple(replace(table, rows=min(table.rows, 4_000_000)) for table in tables)
    task = ns.Task(tables, ns.Topology(ranks, "64GiB"), SAMPLES * ranks)
    sim = simulator_of(DATASHEET)
    columns = ns.search(task, sim, sharding_types=["column_wise"])
    copied = {i: place_data_parallel(task, i) for i, table in enumerate(tables) if table.rows <= SMALL}
    cut = {i: place_row_wise(task, i, range(ranks)) for i, table in enumerate(tables) if table.rows > SMALL}
    changes = {"column-wise": {}, "data-parallel": copied, "row-wise": cut, "both": copied | cut}
    for name, changed in changes.items():
        sim.predicted(_with(columns, changed.get)).save(folder / f"{name}.json")
    return [str(folder / f"{name}.json") for name in changes]


def _with(plan: Plan, placed: Callable[[int], list[Placement] | None]) -> Plan:
    """Return the plan after every table for which `placed` returns placements gets these placements."""
    tables = range(len(plan.task.tables))
    return Plan(plan.task, tuple(one for i in tables for one in placed(i) or plan.by_table[i]))
