"""Whether a plan is found whenever one exists.

Without "tiny": tasks as the papers draw them (dims 4 to 128, 4 devices of 4 GiB), their rows scaled until the tables
take 90% to 100% of all memory, beside an exact answer (integer programming). With it: tiny tasks with every kind of
constraint, with ample and with little memory, beside all plans there are.

usage: feasibility.py [tiny] [COUNT]
"""

import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from neuroshard.models import CostModels
from neuroshard.models.simulator import Simulator
from neuroshard.plumbing.errors import InfeasibleError, UserError
from neuroshard.plumbing.registry import build
from neuroshard.plumbing.threads import blas_threads
from neuroshard.searching.searcher import Searcher
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.heuristics import Greedy
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.tasks.draw import TaskDraw, drawn
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing import linear_models
from neuroshard.testing.exhaustive import TinyTask, tiny_task

SEARCHERS: tuple[tuple[str, Searcher], ...] = (
    ("size_greedy", Greedy("size", max_halvings=0)),
    ("published search", BeamSearch()),
    ("neuroshard", NeuroShard()),
)
_TINY_SEARCHERS: tuple[tuple[str, Searcher], ...] = (
    ("published search", BeamSearch(max_splits=2)),
    ("neuroshard", NeuroShard(max_splits=2, improvement=Improvement(shakes=2))),
)
_TOPOLOGY = Topology(4, 4 << 30)


def main() -> None:
    numbers = [int(argument) for argument in sys.argv[1:] if argument != "tiny"]
    with blas_threads(1):
        if "tiny" in sys.argv[1:]:
            _tiny(numbers[0] if numbers else 10_000)
        else:
            _nearly_full(numbers[0] if numbers else 100)


def _tiny(count: int) -> None:
    for name, searcher in _TINY_SEARCHERS:
        outcomes = Counter(_outcome(searcher, tiny_task(seed)) for seed in range(count))
        listed = "; ".join(f"{number} {outcome}" for outcome, number in sorted(outcomes.items()))
        print(f"{name}, {count} tiny tasks: {listed}")


def _outcome(searcher: Searcher, tiny: TinyTask) -> str:
    """What a searcher says of a tiny task, and whether that is right."""
    try:
        task = tiny.task()
        plan = searcher.find(task, Simulator(linear_models(task.topology.num_devices))).plan
    except UserError as error:
        said = "not found within the budget" if "budget" in str(error) else "called impossible"
        return f"{said}, {'WRONGLY' if tiny.has_plan() else 'rightly'}"
    return "found" if not plan.violations and tiny.has_plan() else "BROKEN"


def _nearly_full(count: int) -> None:
    simulator = Simulator(CostModels.load("roofline:h100"))
    tables = build("tables", "dlrm_like", batch_size=65536, seed=1)
    drawn_tasks = drawn(tables, _TOPOLOGY, 65536, TaskDraw(count=count))
    shares = np.random.default_rng(0).uniform(0.9, 1.0, size=count)
    tasks = [_filled(task, share) for task, share in zip(drawn_tasks, shares, strict=True)]
    feasible = [task for task in tasks if _packing_exists(task)]
    print(f"{count} tasks whose tables take 90% to 100% of 4 x 4 GiB; a plan exists for {len(feasible)}")
    for name, searcher in SEARCHERS:
        seconds, found = [], 0
        for task in feasible:
            start = time.perf_counter()
            with suppress(InfeasibleError):
                found += searcher.find(task, simulator).plan.fits
            seconds.append(time.perf_counter() - start)
        print(f"{name}: {found} found, {np.mean(seconds):.3f} s on average, {np.max(seconds):.3f} s at most")


def _filled(task: Task, share: float) -> Task:
    """The task with all rows scaled so that the weights take that share of the memory."""
    factor = share * sum(task.topology.device_memory) / task.size_bytes
    return replace(task, tables=tuple(replace(t, rows=max(1, int(t.rows * factor))) for t in task.tables))


def _packing_exists(task: Task) -> bool:
    """Exactly, and apart from the search's own code: whole numbers of slices of 4 columns on each device, in memory."""
    num_tables, num_devices = len(task.tables), task.topology.num_devices
    slices = np.array([table.with_dim(4).size_bytes for table in task.tables]) / task.topology.device_memory[0]
    widths = np.array([table.dim // 4 for table in task.tables])
    whole = np.kron(np.eye(num_tables), np.ones(num_devices))
    used = np.kron(slices, np.eye(num_devices))
    answer = milp(
        np.zeros(num_tables * num_devices),
        integrality=np.ones(num_tables * num_devices),
        bounds=Bounds(0, np.repeat(widths, num_devices)),
        constraints=[LinearConstraint(whole, widths, widths), LinearConstraint(used, -np.inf, 1.0)],
        options={"time_limit": 60},
    )
    return bool(answer.success)


if __name__ == "__main__":
    main()
