"""How much lower local search pushes predicted costs than the published search, and how long it takes.

usage: plan_quality.py MODEL NUM_DEVICES [COUNT]    (MODEL: a bundle's path, or roofline:h100)

Tasks are drawn as the papers draw them: max dim 128, 4 GiB devices. Whether the gain is real, only hardware says.
"""

import sys
import time

import numpy as np

from neuroshard.models import CostModels
from neuroshard.search.base import Searcher
from neuroshard.search.neuroshard import NeuroShard
from neuroshard.search.neuroshard_local import NeuroShardLocal
from neuroshard.simulator import Simulator
from neuroshard.tables.dlrm_like import dlrm_like
from neuroshard.task import Task, Topology
from neuroshard.tasks import TaskDraw, drawn

SEARCHERS: tuple[Searcher, ...] = (
    NeuroShard(),
    NeuroShardLocal(shakes=0),
    NeuroShardLocal(shakes=100),
    NeuroShardLocal(),
)
NAMES = ("published", "local search, no shakes", "100 shakes", "400 shakes")


def main() -> None:
    model, num_devices = sys.argv[1], int(sys.argv[2])
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 100
    simulator = Simulator(CostModels.load(model))
    batch_size = simulator.models.batch_size or 65536
    tables = dlrm_like(batch_size=batch_size, seed=1)
    tasks = drawn(tables, Topology(num_devices, 4 << 30), batch_size, TaskDraw(count=count))
    for searcher in SEARCHERS:
        searcher.search(tasks[0], simulator)  # compiles
    cost, seconds = (np.array(values) for values in zip(*(_all(task, simulator) for task in tasks), strict=True))
    print(f"{model}, {count} tasks, {num_devices} devices")
    print("| search | mean cost, ms | mean of its ratio to the published | worst ratio | mean search, ms | longest |")
    print("| --- | --- | --- | --- | --- | --- |")
    ratio = cost / cost[:, :1]
    for i, name in enumerate(NAMES):
        print(
            f"| {name} | {cost[:, i].mean():.3f} | {ratio[:, i].mean():.4f} | {ratio[:, i].max():.4f} "
            f"| {seconds[:, i].mean() * 1e3:.0f} | {seconds[:, i].max() * 1e3:.0f} |"
        )


def _all(task: Task, simulator: Simulator) -> tuple[list[float], list[float]]:
    costs, seconds = [], []
    for searcher in SEARCHERS:
        start = time.perf_counter()
        plan = searcher.search(task, simulator)
        seconds.append(time.perf_counter() - start)
        costs.append(simulator.cost(task, plan).total_ms)
    return costs, seconds


if __name__ == "__main__":
    main()
