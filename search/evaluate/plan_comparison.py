"""Compares the plans of one task by the times of their training steps. The steps are measured in several passes, and in
each pass the plans are timed alternately, in several turns.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table as Grid

from neuroshard.measure.store.plan_measurements import Pass, by_plan, errors_of
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.stages.search.evaluate.comparison import Evaluated, failures, grid_of, names_and_forms

Cell = Callable[[dict[str, Any]], str]  # returns the cell of a table for people from a row of `results.parquet`


@dataclass(frozen=True, eq=False)
class Comparison:
    """The times of training steps of K plans of one task. The plans are measured in P passes, and timed alternately in
    T turns per pass. All other plans are compared with the first plan.

    Attributes:
        task: number of the task.
        entries: (K,) the plans.
        turns_ms: (K + 1, P, T) step of each plan in each turn; the last plan is the first plan once more. Steps of
            failed measurements are NaN.
        phase_ms: (K,) mean ms of each phase of a step, by name of the phase.
        errors: (K,) first error of each plan.
        columns: (K,) further columns of each plan's row in `results.parquet`.
    """

    task: int
    entries: tuple[Evaluated, ...]
    turns_ms: FloatArray
    phase_ms: Mapping[str, FloatArray]
    errors: tuple[str | None, ...]
    columns: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def of(
        cls,
        task: int,
        entries: Sequence[Evaluated],
        passes: Sequence[Pass],
        turns: Callable[[Pass], Sequence[float]],
        phase_ms: Mapping[str, FloatArray],
    ) -> "Comparison":
        """Return the `Comparison` of the plans of a task, given the measurements of each pass. A pass times each plan
        in one or more turns. The function `turns` takes the measurements of one plan in one pass, and returns the step
        time in ms of each turn. `phase_ms` has the mean ms of each phase of a step, for each plan.

        A plan that failed in a pass has no turns.
        """
        plans = len(entries) + 1
        every = [[turns(rows) for rows in by_plan(one_pass, plans)] for one_pass in passes]
        most = max((len(of_plan) for one_pass in every for of_plan in one_pass), default=1) or 1
        turns_ms = np.array([[of_plan or (np.nan,) * most for of_plan in one_pass] for one_pass in every])
        return cls(task, tuple(entries), turns_ms.swapaxes(0, 1), phase_ms, errors_of(passes, plans)[:-1])

    @property
    def names(self) -> list[str]:
        """The names of the methods that found the K plans."""
        return [entry.method for entry in self.entries]

    @property
    def step_ms(self) -> FloatArray:
        """The step time in ms of each of the K plans, (K,): the median over all passes and turns."""
        median: FloatArray = np.median(self.turns_ms, axis=(1, 2))[:-1]
        return median

    @property
    def ratios(self) -> FloatArray:
        """The ratios of the step times of all plans to the step time of the first plan, (K, P), for K plans and P
        passes. A pass times the plans alternately, in one or more turns. Each turn gives one ratio for each plan, and
        the ratio of the pass is the median over the turns.
        """
        return self._ratios[:-1]

    @property
    def floor(self) -> float:
        """The smallest relative difference of step times that is not noise, such as 0.02 for 2%. In each of P passes
        the first plan is measured twice, and r is the ratio of both step times. The result is
        sqrt(mean((r - 1)^2) / P), the standard error of the mean of r if the true ratio is 1.
        """
        again = self._ratios[-1]
        return float(np.sqrt(np.square(again - 1).mean() / len(again)))

    @property
    def _ratios(self) -> FloatArray:
        ratios: FloatArray = np.median(self.turns_ms / self.turns_ms[:1], axis=2)
        return ratios

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of `results.parquet`: one row for each plan."""
        return [
            entry.row()
            | dict(columns)
            | {
                "beside_first": float(np.median(ratios)),
                "predicted_beside_first": entry.predicted_ms / self.entries[0].predicted_ms,
                "floor": self.floor,
                "error": error,
            }
            for entry, columns, ratios, error in zip(self.entries, self.columns, self.ratios, self.errors, strict=True)
        ]

    def phases(self, title: str) -> Grid:
        """Return a printable table with one row for each plan; the row has the mean ms of each phase of a step."""
        ms = {name: [f"{ms:.2f}" for ms in of_plans] for name, of_plans in self.phase_ms.items()}
        return grid_of(f"{title}, ms, task {self.task}", {"plan by": self.names, **ms})

    def tables_and_lines(self, title: str, columns: Mapping[str, Cell], phases: str, floor: str) -> list[Grid | str]:
        """Return two printable tables that compare the plans, followed by lines of text. The first line is the text
        `floor`, which says how much two measurements of the same plan differ. After the first line, there is one line
        for each plan that failed.

        Args:
            title: title of the table with a row for each plan.
            columns: the further columns of this table, by heading.
            phases: title of the table of phases.
            floor: line on the difference of equal plans.
        """
        rows = self.rows
        cells = {heading: [cell(row) for row in rows] for heading, cell in columns.items()}
        steps = grid_of(f"{title}, task {self.task}", {**names_and_forms(self.entries), **cells})
        return [steps, self.phases(phases), floor, *failures(self.entries, self.errors)]
