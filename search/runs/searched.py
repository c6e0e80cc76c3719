"""One task's search, timed, and its answer."""

import time
from dataclasses import dataclass

from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import InfeasibleError
from neuroshard.searching.searcher import Found, Searcher
from neuroshard.tasks.task import Task


@dataclass(frozen=True)
class Searched:
    """What a task is answered with.

    Attributes:
        found: a plan; or why there is none.
        seconds: of search.
        finalists: plans that hardware may decide between, the one found first; none where there is an error.
        measured_ms: the plan's cost on hardware; None where nothing was measured.
    """

    found: Found | InfeasibleError
    seconds: float
    finalists: tuple[Plan, ...] = ()
    measured_ms: float | None = None

    @classmethod
    def of(cls, searcher: Searcher, task: Task, simulator: Simulator, finalists: int = 1) -> "Searched":
        """Search a task, and for so many finalists at most where they are wanted."""
        start = time.perf_counter()
        try:
            found = searcher.find(task, simulator)
        except InfeasibleError as error:
            return cls(error, time.perf_counter() - start)
        plans = (found.plan,) if finalists == 1 else searcher.finalists(found.plan, simulator, finalists)
        return cls(found, time.perf_counter() - start, plans)
