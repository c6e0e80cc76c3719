"""How far plans of tiny tasks are from the best there is, by prediction, and how far below it the lower bound is.

usage: exhaustive.py MODEL NUM_DEVICES [COUNT]    (MODEL: a bundle's path, or roofline:h100; 2 or 3 devices)

Tasks hold few narrow tables (8 for 2 devices, 6 for 3; dims 4 to 16), so that every plan can be costed: every way to
give each table's slices of 4 columns to the devices. Memory is ample.
"""

import sys
from itertools import product

import numpy as np

from neuroshard.cost.traffic import Traffic
from neuroshard.models import CostModels
from neuroshard.models.simulator import Simulator
from neuroshard.searching.searcher import Searcher
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.stages.search.space.base import Base
from neuroshard.stages.search.space.bound import lower_bound_ms
from neuroshard.stages.search.space.catalog import Catalog
from neuroshard.tables.sources.dlrm_like import dlrm_like
from neuroshard.tasks.draw import TaskDraw, drawn
from neuroshard.tasks.task import Task, Topology

SEARCHERS: tuple[tuple[str, Searcher], ...] = (
    ("published search", BeamSearch()),
    ("neuroshard", NeuroShard(forms=("columns",))),
)
_BATCH = 1 << 16


def main() -> None:
    model, num_devices = sys.argv[1], int(sys.argv[2])
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 20
    simulator = Simulator(CostModels.load(model))
    batch_size = simulator.models.batch_size or 65536
    size = {2: 8, 3: 6}[num_devices]
    draw = TaskDraw(count=count, min_tables=size, max_tables=size, max_dim=16)
    topology = Topology(num_devices, 1 << 40)
    gaps, slack = [], []
    for task in drawn(dlrm_like(batch_size=batch_size, seed=1), topology, batch_size, draw):
        best = _best(task, simulator)
        costs = [simulator.cost(task, searcher.find(task, simulator).plan).total_ms for _, searcher in SEARCHERS]
        gaps.append(np.array(costs) / best - 1)
        bound = lower_bound_ms(Catalog.checked(Base.empty(task), simulator))
        assert bound is not None
        slack.append(1 - bound / best)
    print(f"{model}, {count} tasks of {size} tables, {num_devices} devices: cost above the best of all plans")
    for (name, _), gap in zip(SEARCHERS, np.array(gaps).T, strict=True):
        print(f"| {name} | mean {gap.mean():+.2%} | worst {gap.max():+.2%} |")
    print(
        f"| lower bound | mean {-np.mean(slack):+.2%} | lowest {-np.max(slack):+.2%}, highest {-np.min(slack):+.2%} |"
    )


def _best(task: Task, simulator: Simulator) -> float:
    """The lowest predicted cost of all plans, ms."""
    catalog = Catalog.checked(Base.empty(task), simulator)
    head, devices = simulator.models.compute.head, task.topology.num_devices
    options = [_options(int(width), devices) for width in catalog.full_width]
    radix = np.array([len(option) for option in options])
    lowest = np.inf
    for start in range(0, int(radix.prod()), _BATCH):
        number = np.arange(start, min(start + _BATCH, int(radix.prod())))
        chosen = np.unravel_index(number, radix)
        held = np.stack([option[index] for option, index in zip(options, chosen, strict=True)], axis=1)  # (B, T, D)
        sums = sum(catalog.vectors[catalog.first[t] + held[:, t]] for t in range(len(options)))
        units = held.sum(axis=1)
        compute = head(sums) * (units > 0)
        forward, backward = simulator.communication(Traffic.of_columns(units * 4, task.batch_size), compute)
        lowest = min(lowest, float((compute + forward + backward).max(axis=1).min()))
    return lowest


def _options(width: int, devices: int) -> np.ndarray:
    """(K, D) every way to give `width` units to the devices."""
    return np.array([split for split in product(range(width + 1), repeat=devices) if sum(split) == width])


if __name__ == "__main__":
    main()
