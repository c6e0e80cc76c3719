"""How much lower local search pushes predicted costs than the published search, and how long it takes.

usage: plan_quality.py MODEL NUM_DEVICES BATCH_SIZE [COUNT]    (MODEL: a bundle's name or path, or roofline:h100)

Tasks are drawn as the papers draw them: max dim 128, 4 GiB devices. Every predicted gain is taken for true
(searcher.choice=null); whether it is, true_gains.py shows on made-up devices, and hardware on real ones.
Costs stand beside a lower bound of any plan's.
"""

import sys
from functools import partial

import numpy as np
from shared import timed

from neuroshard.models import CostModels
from neuroshard.models.simulator import Simulator
from neuroshard.searching.searcher import Searcher
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.stages.search.space.base import Base
from neuroshard.stages.search.space.bound import lower_bound_ms
from neuroshard.stages.search.space.catalog import Catalog
from neuroshard.tables.sources.dlrm_like import dlrm_like
from neuroshard.tasks.draw import TaskDraw, drawn
from neuroshard.tasks.task import Task, Topology

_FORMS = ("columns",)  # as the published search
SEARCHERS: tuple[Searcher, ...] = (
    BeamSearch(),
    NeuroShard(improvement=Improvement(shakes=0), choice=None, forms=_FORMS),
    NeuroShard(choice=None, forms=_FORMS),
)
NAMES = ("published search", "local search, no shakes", "neuroshard")


def main() -> None:
    model, num_devices, batch_size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    count = int(sys.argv[4]) if len(sys.argv) > 4 else 100
    simulator = Simulator(CostModels.load(model))
    tables = dlrm_like(batch_size=batch_size, seed=1)
    tasks = drawn(tables, Topology(num_devices, 4 << 30), batch_size, TaskDraw(count=count))
    for searcher in SEARCHERS:
        searcher.find(tasks[0], simulator)  # compiles
    cost, seconds = (np.array(values) for values in zip(*(_all(task, simulator) for task in tasks), strict=True))
    print(f"{model}, {count} tasks, {num_devices} devices, batch size {batch_size}")
    print("| search | mean cost, ms | mean of its ratio to the published | worst ratio | mean search, ms | longest |")
    print("| --- | --- | --- | --- | --- | --- |")
    ratio = cost / cost[:, :1]
    for i, name in enumerate(NAMES):
        print(
            f"| {name} | {cost[:, i].mean():.3f} | {ratio[:, i].mean():.4f} | {ratio[:, i].max():.4f} "
            f"| {seconds[:, i].mean() * 1e3:.0f} | {seconds[:, i].max() * 1e3:.0f} |"
        )
    bound = np.array([lower_bound_ms(Catalog.checked(Base.empty(task), simulator)) for task in tasks])[:, None]
    gaps = [f"{name} {gap:.2%}" for name, gap in zip(NAMES, (cost / bound - 1).mean(axis=0), strict=True)]
    print("mean cost above the lower bound: " + ", ".join(gaps))


def _all(task: Task, simulator: Simulator) -> tuple[list[float], list[float]]:
    pairs = [timed(partial(searcher.find, simulator=simulator), task, simulator) for searcher in SEARCHERS]
    return [cost for cost, _ in pairs], [seconds for _, seconds in pairs]


if __name__ == "__main__":
    main()
