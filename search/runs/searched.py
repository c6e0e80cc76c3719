"""One task's search, timed, and what is answered in the end."""

import time
from dataclasses import dataclass

from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import InfeasibleError
from neuroshard.searching.searcher import Searcher
from neuroshard.tasks.task import Task


@dataclass(frozen=True)
class Searched:
    """What a searcher made of a task.

    Attributes:
        plans: the one it found, and finalists beside it; none where there is an error.
        seconds: it took.
        error: why there is no plan.
        warning, declined, remark: as `neuroshard.searching.searcher.Found` has them.
    """

    plans: tuple[Plan, ...]
    seconds: float
    error: InfeasibleError | None = None
    warning: str | None = None
    declined: Plan | None = None
    remark: str | None = None

    @classmethod
    def of(cls, searcher: Searcher, task: Task, simulator: Simulator, finalists: int = 1) -> "Searched":
        """Search a task, and for so many finalists at most where they are wanted."""
        start = time.perf_counter()
        try:
            found = searcher.find(task, simulator)
        except InfeasibleError as error:
            return cls((), time.perf_counter() - start, error)
        plans = (found.plan,) if finalists == 1 else searcher.finalists(found.plan, simulator, finalists)
        return cls(plans, time.perf_counter() - start, None, found.warning, found.declined, found.remark)


@dataclass(frozen=True)
class Answer:
    """The plan that a task is answered with.

    Attributes:
        seconds: of search.
        measured_ms: its cost on hardware; NaN where nothing was measured.
        warning, remark: for people.
        declined: as `neuroshard.searching.searcher.Found` has it.
    """

    plan: Plan
    seconds: float
    measured_ms: float = float("nan")
    warning: str | None = None
    remark: str | None = None
    declined: Plan | None = None
