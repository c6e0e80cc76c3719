"""What the limits of the systems that train tables cost, by prediction alone: the default search's plans for each
target that `neuroshard export` writes for, beside those in all forms that the models know.

usage: targets.py [MODEL ...]    (roofline:h100 and cpu if none is named)

Nothing is timed: every machine prints the same. Costs of several tasks are means over those that have a plan for every
target.
"""

import sys

import numpy as np

from neuroshard.errors import InfeasibleError
from neuroshard.models import CostModels
from neuroshard.searching import searcher_of
from neuroshard.simulator import Simulator
from neuroshard.tables.criteo import criteo
from neuroshard.tables.dlrm_like import dlrm_like
from neuroshard.targets.export import constrained, for_target, target_named
from neuroshard.tasks.draw import TaskDraw, drawn
from neuroshard.tasks.task import Task, Topology

_TARGETS = (None, "torchrec", "hugectr", "sok")
_HOST = 8
_DRAWN = 10
_BATCH_SIZES = {"cpu": 4096}  # within what the installed models were fitted to


def main() -> None:
    models = sys.argv[1:] or ["roofline:h100", "cpu"]
    print("predicted ms, and how much more than without a target; nothing is measured")
    print(f"| models | tables | devices | no target | {' | '.join(filter(None, _TARGETS))} |")
    print("| --- " * (3 + len(_TARGETS)) + "|")
    for model in models:
        simulator = Simulator(CostModels.load(model))
        for name, tasks in _kinds(_BATCH_SIZES.get(model, 65536)):
            print(_row(model, name, tasks, simulator), flush=True)


def _kinds(batch_size: int) -> list[tuple[str, tuple[Task, ...]]]:
    """Tasks of one kind, all of as many devices."""
    dcn = [(f"DLRM-DCNv2, batch size {batch_size:,}", (_dcn(count, batch_size),)) for count in (8, 16)]
    pool = dlrm_like(batch_size=batch_size, seed=1)  # unseen by the installed models
    draw = TaskDraw(count=_DRAWN)
    papers = [
        (f"{_DRAWN} of the papers' tasks", drawn(pool, Topology(count, "4GiB"), batch_size, draw)) for count in (4, 8)
    ]
    return dcn + papers


def _dcn(num_devices: int, batch_size: int) -> Task:
    return Task(criteo(batch_size), Topology(num_devices, "80GiB", devices_per_host=_HOST), batch_size)


def _row(model: str, name: str, tasks: tuple[Task, ...], simulator: Simulator) -> str:
    cost_ms = np.array([[_cost_ms(task, target, simulator) for target in _TARGETS] for task in tasks])
    solved = np.isfinite(cost_ms).all(axis=1)
    free, *kept = cost_ms[solved].mean(axis=0) if solved.any() else np.full(len(_TARGETS), np.nan)
    without = [int(np.isinf(column).sum()) for column in cost_ms.T]
    shown = [f"{ms:.3f} ({ms / free - 1:+.1%}){_missing(none)}" for ms, none in zip(kept, without[1:], strict=True)]
    devices = tasks[0].topology.num_devices
    return f"| {model} | {name} | {devices} | {free:.3f}{_missing(without[0])} | {' | '.join(shown)} |"


def _missing(count: int) -> str:
    return f", {count} without a plan" if count else ""


def _cost_ms(task: Task, target: str | None, simulator: Simulator) -> float:
    """Of the default search's plan; infinite if there is none. Every plan can be exported."""
    (kept,) = constrained([task], target)
    try:
        plan = for_target(searcher_of("neuroshard"), target).search(kept, simulator)
    except InfeasibleError:
        return float("inf")
    if target is not None:
        target_named(target).export(plan)
    return simulator.cost(plan.task, plan).total_ms


if __name__ == "__main__":
    main()
