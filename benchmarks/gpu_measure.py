"""Measure mirrored training steps on one GPU: further rows for the data from which `gpu_steps.py` makes its tables.

usage: python benchmarks/gpu_measure.py OUT [TASK ...]    (a minute per task and dense network on a GPU; hours on a CPU)

For each task, the plan of TorchRec's default planner, the plans of the baseline and of the default search, and the
baseline's plan a second time are built together. Rank 0 and the rank with the longest predicted work are measured.
OUT/steps.parquet gets the columns of benchmarks/data/gpu_steps/steps.parquet. Let nothing else run.
"""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from gpu_steps import AGAIN, BASELINE, LITTLE, MUCH, PIPELINE, TORCHREC_DEFAULT, WAYS, WHOLE, plans_of
from shared import simulator_of

import neuroshard as ns
from neuroshard.measure import DeviceSpec, Hardware
from neuroshard.measure.steps.step_meters import RankJob, measure_rank
from neuroshard.measure.steps.step_samples import StepProtocol
from neuroshard.measure.store.plan_measurements import error_of
from neuroshard.measure.store.samples import HOST
from neuroshard.plumbing.grouping import grouped

# Four tasks for each dense network; the plan of TorchRec's default planner for these was never measured.
TASKS = {MUCH: ("hot4c", "papers4_9", "mixed8c", "dcn8"), LITTLE: ("hot2c", "small2c", "hot4c", "papers4_13")}
SEED = 7


def main() -> None:
    out, names = Path(sys.argv[1]), sys.argv[2:]
    hardware = Hardware(DeviceSpec("cuda" if torch.cuda.is_available() else "cpu"))
    out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, object]] = []
    for way, its in WAYS.items():
        protocol = StepProtocol(builds=1, turns=6, steps=3, dense=its.widths, pipeline=PIPELINE)
        for task in names or TASKS[way]:
            plans = compared(task, its.default)
            for rank in ranks_of(plans.values()):
                found = measured(plans, rank, protocol, hardware)
                rows += [{"way": way, "task": task, **row} for row in found]
                pd.DataFrame(rows).to_parquet(out / "steps.parquet")  # after each rank, so that little is lost
                print(f"{way} dense work, {task}, rank {rank}: {len(found)} of {len(plans)} plans measured", flush=True)


def compared(task: str, default: str) -> dict[str, ns.Plan]:
    """Return the plans of a task that are measured together, by name."""
    plans = {name: plans_of(task)[name] for name in (BASELINE, TORCHREC_DEFAULT, default)}
    return plans | {AGAIN + BASELINE: plans[BASELINE]}


def ranks_of(plans: Iterable[ns.Plan]) -> list[int]:
    """Return rank 0, and for each plan the rank with the longest predicted work of the device."""
    work_ms = (simulator_of(WHOLE).cost(plan.task, plan).ready_ms for plan in plans)
    return sorted({0, *(int(np.argmax(ms)) for ms in work_ms)})


def measured(
    plans: Mapping[str, ns.Plan], rank: int, protocol: StepProtocol, hardware: Hardware
) -> list[dict[str, object]]:
    """Return a row for each plan that could be measured on this rank: its stretches, and the time of the host in ms."""
    job = RankJob(rank, tuple(range(len(plans))))
    times = measure_rank(job, list(plans.values()), protocol, 0, (SEED, rank), hardware, print)
    rows = []
    for number, of_plan in grouped(times, lambda row: row.plan).items():
        name = list(plans)[number]
        if (error := error_of(of_plan)) is not None:
            print(f"{name}, rank {rank}: {error}")
            continue
        stretches = [row for row in of_plan if row.phase != HOST]
        columns = {"phases": "phase", "until": "until", "ms": "ms"}
        lists = {column: [getattr(row, field) for row in stretches] for column, field in columns.items()}
        host_ms = sum(row.ms or 0.0 for row in of_plan if row.phase == HOST)  # 0 on a CPU, which is its own host
        rows.append({"plan": name, "rank": rank, **lists, "host_ms": host_ms})
    return rows


if __name__ == "__main__":
    main()
