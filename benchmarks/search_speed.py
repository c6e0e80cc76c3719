"""How long the published search takes: beside a plain one, and as tables and devices grow.

First the compiled lockstep search beside the plain one (one plan at a time, `tests/search/kernels/oracle.py`), on the
same tasks and models; then its time and memory from 50 to 2,000 tables and from 4 to 256 devices, on `roofline:h100`,
which is arithmetic on a datasheet, not a measurement. Let nothing else run.
"""

import resource
import sys
import time
from pathlib import Path

import numpy as np

from neuroshard.models import CostModels
from neuroshard.models.simulator import Simulator
from neuroshard.searching.searcher import Searcher
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.tables import Table, halvings
from neuroshard.tables.sources.dlrm_like import dlrm_like
from neuroshard.tasks.draw import TaskDraw, drawn
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing import random_models

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "search" / "kernels"))

from oracle import oracle_search

_REPEATS = 5
_SCALES = (
    *((tables, 4) for tables in (50, 100, 200, 500, 1000, 2000)),
    *((1000, devices) for devices in (16, 64, 128, 256)),
    (2000, 128),
)


def main() -> None:
    simulator = Simulator(random_models())
    tasks = drawn(dlrm_like(batch_size=256), Topology(4, 4 << 30), 256, TaskDraw(count=50))
    _seconds(BeamSearch(), tasks[0], simulator)  # compiles
    times = np.array([_seconds(BeamSearch(), task, simulator) for task in tasks]) * 1e3
    spread = f"median {np.median(times):.0f}, {times.min():.0f} to {times.max():.0f}"
    print(f"50 tasks of 10 to 59 tables, 4 devices, published settings: mean {times.mean():.0f} ms ({spread})")
    _beside_the_plain_one(simulator)
    _scaling()


def _beside_the_plain_one(simulator: Simulator) -> None:
    print("\n| tables | lockstep ms (median, min to max of 5) | plain ms (ten times its first split) | ratio |")
    print("| --- | --- | --- | --- |")
    for count in (10, 30, 59):
        task = Task(_sized(count), Topology(4, 4 << 30), 256)
        times = [_seconds(BeamSearch(), task, simulator) * 1e3 for _ in range(_REPEATS)]
        start = time.perf_counter()
        oracle_search(task, simulator, max_splits=1)
        plain, fast = (time.perf_counter() - start) * 1e4, float(np.median(times))
        print(f"| {count} | {fast:.0f} ({min(times):.0f} to {max(times):.0f}) | {plain:.0f} | {plain / fast:.0f} |")


def _scaling() -> None:
    simulator = Simulator(CostModels.load("roofline:h100"))
    print("\n| tables | devices | s (median, min to max of 3) | ms for each table | memory of the process, GiB |")
    print("| --- | --- | --- | --- | --- |")
    for tables, devices in _SCALES:
        task = Task(_sized(tables), Topology(devices, 80 << 30), 65536)
        times = [_seconds(BeamSearch(), task, simulator) for _ in range(3)]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        spread = f"{np.median(times):.2f} ({min(times):.2f} to {max(times):.2f})"
        print(f"| {tables} | {devices} | {spread} | {np.median(times) / tables * 1e3:.2f} | {peak:.2f} |")


def _sized(count: int) -> tuple[Table, ...]:
    """Tables like the public data set's, of random dims."""
    dims = np.random.default_rng(0).choice(halvings(128), size=count)
    return tuple(table.with_dim(int(dim)) for table, dim in zip(dlrm_like(count, seed=3), dims, strict=True))


def _seconds(searcher: Searcher, task: Task, simulator: Simulator) -> float:
    start = time.perf_counter()
    searcher.find(task, simulator)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
