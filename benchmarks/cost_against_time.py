"""What more time buys: predicted costs of the default search by its shakes, beside the published search's.

usage: cost_against_time.py MODEL [TASKS]    (MODEL: a bundle's name or path, or roofline:h100)

Tasks of the papers' kind (10 to 59 tables, 4 GiB devices), half of them on 4 devices, half on 8. The budget is counted
in shakes, so every row repeats exactly; times are this machine's. Every predicted gain is taken (searcher.choice=null).
Let nothing else run.
"""

import sys
import time

import numpy as np

from neuroshard.models import CostModels
from neuroshard.searcher import Searcher
from neuroshard.simulator import Simulator
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.tables.dlrm_like import dlrm_like
from neuroshard.tasks.draw import TaskDraw, drawn
from neuroshard.tasks.task import Task, Topology

_SHAKES = (0, 20, 200, 2_000, 20_000)
_BATCH_SIZE = 4096
_FORMS = ("columns",)  # as the published search


def main() -> None:
    simulator = Simulator(CostModels.load(sys.argv[1]))
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 16
    tables = dlrm_like(batch_size=_BATCH_SIZE, seed=1)
    tasks = [
        task
        for devices in (4, 8)
        for task in drawn(tables, Topology(devices, 4 << 30), _BATCH_SIZE, TaskDraw(count=count // 2))
    ]
    NeuroShard().search(tasks[0], simulator)  # compiles
    published = _costs_and_ms(BeamSearch(), tasks, simulator)
    print("| search | ms of search (median, least to most) | cost, beside the published search's |")
    print("| --- | --- | --- |")
    _print("published", published, published[0])
    for shakes in _SHAKES:
        searcher = NeuroShard(improvement=Improvement(shakes=shakes, max_plans=None), choice=None, forms=_FORMS)
        _print(f"{shakes:,} shakes", _costs_and_ms(searcher, tasks, simulator), published[0])


def _costs_and_ms(searcher: Searcher, tasks: list[Task], simulator: Simulator) -> tuple[np.ndarray, np.ndarray]:
    costs, times = [], []
    for task in tasks:
        start = time.perf_counter()
        plan = searcher.search(task, simulator)
        times.append((time.perf_counter() - start) * 1e3)
        costs.append(simulator.cost(task, plan).total_ms)
    return np.array(costs), np.array(times)


def _print(name: str, found: tuple[np.ndarray, np.ndarray], published: np.ndarray) -> None:
    cost, ms = found
    gain = 1 - (cost / published).mean()
    print(f"| {name} | {np.median(ms):.0f} ({ms.min():.0f} to {ms.max():.0f}) | {-gain:+.2%} |", flush=True)


if __name__ == "__main__":
    main()
