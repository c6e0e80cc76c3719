"""Comparison of the plans of one task by their training steps, in passes and turns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table as Grid

from neuroshard.measure.store.plan_measurements import Pass, by_plan, errors_of
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.stages.search.evaluate.comparison import Evaluated, failures, grid_of


@dataclass(frozen=True, eq=False)
class Comparison:
    """K plans of one task over P passes of T turns; the first plan is the baseline.

    Attributes:
        task: number of the task.
        entries: (K,) the plans.
        turns_ms: (K + 1, P, T) step of each plan in each turn; the last plan is the first plan once more. Steps of
            failed measurements are NaN.
        phase_ms: (K,) mean ms of each phase of a step, by name of the phase.
        errors: (K,) first error of each plan.
    """

    task: int
    entries: tuple[Evaluated, ...]
    turns_ms: FloatArray
    phase_ms: Mapping[str, FloatArray]
    errors: tuple[str | None, ...]

    @classmethod
    def of(
        cls,
        task: int,
        entries: Sequence[Evaluated],
        passes: Sequence[Pass],
        turns: Callable[[Pass], Sequence[float]],
        phase_ms: Mapping[str, FloatArray],
    ) -> "Comparison":
        """Collect the steps of all passes; `turns` returns the ms of a plan's step in each turn of a pass.

        A plan that failed in a pass has no turns.
        """
        plans = len(entries) + 1
        every = [[turns(rows) for rows in by_plan(one_pass, plans)] for one_pass in passes]
        most = max((len(of_plan) for one_pass in every for of_plan in one_pass), default=1) or 1
        turns_ms = np.array([[of_plan or (np.nan,) * most for of_plan in one_pass] for one_pass in every])
        return cls(task, tuple(entries), turns_ms.swapaxes(0, 1), phase_ms, errors_of(passes, plans)[:-1])

    @property
    def names(self) -> list[str]:
        """The names of the methods that found the plans, (K,)."""
        return [entry.method for entry in self.entries]

    @property
    def step_ms(self) -> FloatArray:
        """The median step of each plan over all passes and turns, (K,)."""
        median: FloatArray = np.median(self.turns_ms, axis=(1, 2))[:-1]
        return median

    @property
    def ratios(self) -> FloatArray:
        """The step of each plan relative to the first plan's step, (K, P): the median over turns of a pass."""
        return self._ratios[:-1]

    @property
    def floor(self) -> float:
        """The relative difference of equal plans over all passes:
        the standard error of the first plan's ratios to itself.
        """
        again = self._ratios[-1]
        return float(np.sqrt(np.square(again - 1).mean() / len(again)))

    @property
    def _ratios(self) -> FloatArray:
        ratios: FloatArray = np.median(self.turns_ms / self.turns_ms[:1], axis=2)
        return ratios

    def rows(self, more: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows of `results.parquet`: one for each plan, with `more` columns of each plan, (K,)."""
        return [
            entry.row()
            | dict(columns)
            | {
                "beside_first": float(np.median(ratios)),
                "predicted_beside_first": entry.predicted_ms / self.entries[0].predicted_ms,
                "floor": self.floor,
                "error": error,
            }
            for entry, columns, ratios, error in zip(self.entries, more, self.ratios, self.errors, strict=True)
        ]

    def phases(self, title: str) -> Grid:
        """Return a table for people with every plan's ms of each phase."""
        ms = {name: [f"{ms:.2f}" for ms in of_plans] for name, of_plans in self.phase_ms.items()}
        return grid_of(f"{title}, ms, task {self.task}", {"plan by": self.names, **ms})

    @property
    def failures(self) -> list[str]:
        """A line for people for each plan that failed."""
        return failures(self.entries, self.errors)
