"""What a job of a sweep came to, in the few figures that jobs are compared by."""

from dataclasses import dataclass


@dataclass(frozen=True)
class JobFigures:
    """A search's figures.

    Attributes:
        tasks: digest of what was searched: costs of the same tasks compare.
        costs_ms: predicted, one for each task; None where there is no plan.
        seconds: of search, mean over the tasks.
    """

    tasks: str
    costs_ms: tuple[float | None, ...]
    seconds: float

    @property
    def solved(self) -> frozenset[int]:
        """Numbers of the tasks that have a plan."""
        return frozenset(number for number, cost in enumerate(self.costs_ms) if cost is not None)
