"""How far plans are from the best possible: the default search's beside a lower bound of the predicted cost of
any plan that lays tables out in columns.

usage: bounds.py MODEL NUM_DEVICES BATCH_SIZE [COUNT]    (MODEL: a bundle's name or path, or roofline:h100)

Tasks are drawn as the papers draw them: max dim 128, 4 GiB devices. Plans are the default search's as it is, which
keeps the published search's where a gain isn't believed, and with every gain believed (searcher.choice=null).
"""

import sys
import time

import numpy as np

from neuroshard.models import CostModels
from neuroshard.simulator import Simulator
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.space.bound import lower_bound_ms
from neuroshard.stages.search.space.catalog import Catalog
from neuroshard.tables.dlrm_like import dlrm_like
from neuroshard.tasks.draw import TaskDraw, drawn
from neuroshard.tasks.task import Task, Topology
from neuroshard.traffic import Traffic

_SEARCHERS = {"default": NeuroShard(forms=("columns",)), "every gain": NeuroShard(choice=None, forms=("columns",))}


def main() -> None:
    model, num_devices, batch_size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    count = int(sys.argv[4]) if len(sys.argv) > 4 else 30
    simulator = Simulator(CostModels.load(model))
    tables = dlrm_like(batch_size=batch_size, seed=1)
    tasks = drawn(tables, Topology(num_devices, 4 << 30), batch_size, TaskDraw(count=count))
    rows = np.array([_figures(task, simulator) for task in tasks])
    seconds = rows[:, -1].mean()
    print(f"{model}, {count} tasks, {num_devices} devices, batch size {batch_size}; {seconds:.3f} s of CPU a bound")
    print("| plans | mean cost, ms | above the bound: mean | median | largest | above an even spread: mean |")
    print("| --- | --- | --- | --- | --- | --- |")
    bound, even = rows[:, -3], rows[:, -2]
    for i, name in enumerate(_SEARCHERS):
        gap = rows[:, i] / bound - 1
        print(
            f"| {name} | {rows[:, i].mean():.3f} | {gap.mean():.1%} | {np.median(gap):.1%} | {gap.max():.1%} "
            f"| {(rows[:, i] / even - 1).mean():.1%} |"
        )


def _figures(task: Task, simulator: Simulator) -> list[float]:
    """Costs of each search's plan, the bound, the cost of an even spread, all ms; CPU time of the bound, s."""
    plans = [searcher.search(task, simulator) for searcher in _SEARCHERS.values()]
    costs = simulator.costs(task, plans)
    start = time.process_time()
    bound = lower_bound_ms(Catalog.checked(task, simulator), simulator)
    seconds = time.process_time() - start
    assert bound is not None
    compute = np.full((1, task.topology.num_devices), min(cost.compute.mean() for cost in costs))
    dims = np.full_like(compute, np.mean(plans[0].device_dims))
    forward, backward = simulator.communication(Traffic.of_columns(dims, task.batch_size), compute)
    even = float((compute + forward + backward).max())
    return [*(cost.total_ms for cost in costs), bound, even, seconds]


if __name__ == "__main__":
    main()
