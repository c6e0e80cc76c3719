"""Our search and TorchRec's, each with our cost models and with TorchRec's estimates, all judged by our simulator.

usage: torchrec_peer.py MODEL BATCH_SIZE NUM_TABLES NUM_DEVICES COUNT [FACTORS [SPARE]]    (FACTORS: such as 1,2,4,8)

Tables of 4 to 128 columns with the statistics of the public data set, devices with SPARE (1.3) times the memory that
even parts take. TorchRec's planner runs once for each split factor and order; the plan that our simulator finds
cheapest counts.
"""

import sys
from collections.abc import Callable

import numpy as np
from shared import timed
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec_estimates import torchrec_models

from neuroshard.models import CostModels
from neuroshard.models.simulator import Simulator
from neuroshard.searching.searcher import Found
from neuroshard.stages.search.methods.heuristics import Greedy
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.methods.torchrec_planner import SimulatorEstimates, TorchRecSearch
from neuroshard.tables.sources.dlrm_like import dlrm_like
from neuroshard.tasks.draw import TaskDraw, drawn
from neuroshard.tasks.task import Task, Topology

Method = Callable[[Task], Found]


def main() -> None:
    model, batch_size, num_tables, num_devices, count = sys.argv[1], *map(int, sys.argv[2:6])
    factors = tuple(map(int, sys.argv[6].split(","))) if len(sys.argv) > 6 else (1, 2, 4, 8)
    spare = float(sys.argv[7]) if len(sys.argv) > 7 else 1.3
    simulator = Simulator(CostModels.load(model))
    theirs = Simulator(torchrec_models(TorchRecTopology(num_devices, "cuda", created_by_factory=True)))
    tables = dlrm_like(batch_size=batch_size, seed=1, num_tables=max(num_tables, 856))
    draw = TaskDraw(count=count, min_tables=num_tables, max_tables=num_tables)
    tasks = [_with_memory(task, spare) for task in drawn(tables, Topology(num_devices, 1 << 40), batch_size, draw)]
    methods: dict[str, Method] = {
        "size-lookup greedy": lambda task: Greedy("size_lookup").find(task, simulator),
        "TorchRec's search, TorchRec's estimates": lambda task: TorchRecSearch(factors).find(task, simulator),
        "TorchRec's search, our models": lambda task: TorchRecSearch(factors, estimates=SimulatorEstimates()).find(
            task, simulator
        ),
        "our search, TorchRec's estimates": lambda task: NeuroShard().find(task, theirs),
        "our search, our models": lambda task: NeuroShard().find(task, simulator),
    }
    NeuroShard().find(tasks[0], simulator)  # compiles
    print(f"{model}, batch {batch_size}, {count} tasks of {num_tables} tables x {num_devices} devices")
    print(f"TorchRec: the best of {2 * len(factors)} runs")
    print("| method | solved | mean cost of those, ms | mean ratio to ours on them | median search, s (min to max) |")
    print("| --- | --- | --- | --- | --- |")
    found = {name: [timed(method, task, simulator) for task in tasks] for name, method in methods.items()}
    ours = np.array([cost for cost, _ in found["our search, our models"]])
    for name, results in found.items():
        cost, seconds = (np.array(values) for values in zip(*results, strict=True))
        solved = np.isfinite(cost)
        mean = f"{cost[solved].mean():.3f} | {(cost / ours)[solved].mean():.3f}" if solved.any() else " | "
        spread = f"{np.median(seconds):.3g} ({min(seconds):.3g} to {max(seconds):.3g})"
        print(f"| {name} | {solved.sum()} | {mean} | {spread} |", flush=True)


def _with_memory(task: Task, spare: float) -> Task:
    devices = task.topology.num_devices
    cap = int(spare * task.size_bytes / devices)
    return Task(task.tables, Topology(devices, cap), task.batch_size)


if __name__ == "__main__":
    main()
