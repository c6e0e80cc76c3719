"""What several benchmarks need."""

import time
from collections.abc import Callable

from neuroshard.models.simulator import Simulator
from neuroshard.plumbing.errors import InfeasibleError
from neuroshard.searching.searcher import Found
from neuroshard.tasks.task import Task


def timed(find: Callable[[Task], Found], task: Task, simulator: Simulator) -> tuple[float, float]:
    """(predicted ms, s of search); infinite ms where no plan is found."""
    start = time.perf_counter()
    try:
        found = find(task)
    except InfeasibleError:
        return float("inf"), time.perf_counter() - start
    seconds = time.perf_counter() - start
    return simulator.cost(task, found.plan).total_ms, seconds


def silent(_epoch: int, _loss: float) -> None:
    """Hear of an epoch, and say nothing."""
