"""How long a search takes: NeuroShard with its published settings, on 4 devices, by number of tables.

Prints the lockstep search beside the plain one (one plan at a time, `tests/search/oracle.py`) on the same tasks and
models; the ratio is what counts. Let nothing else run.
"""

import sys
import time
from pathlib import Path

import numpy as np

from neuroshard.search.neuroshard import NeuroShard
from neuroshard.simulator import Simulator
from neuroshard.task import Task, Topology
from neuroshard.testing import random_models, toy_tables

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "search"))

from oracle import oracle_search

_REPEATS = 5


def main() -> None:
    simulator = Simulator(random_models())
    print("| tables | lockstep ms (median, min to max of 5) | plain ms | ratio |")
    for count in (10, 30, 59):
        task = Task(toy_tables(count), Topology(4, 1 << 30), 256)
        times = [_milliseconds(lambda task=task: NeuroShard().search(task, simulator)) for _ in range(_REPEATS)]
        plain = _milliseconds(lambda task=task: oracle_search(task, simulator, max_splits=1)) * 10
        fast = float(np.median(times))
        print(f"| {count} | {fast:.0f} ({min(times):.0f} to {max(times):.0f}) | ~{plain:.0f} | {plain / fast:.0f} |")
    print("plain: ten times its time for one split, of the ten that the search makes")


def _milliseconds(run) -> float:
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1e3


if __name__ == "__main__":
    main()
