"""The plan that a search returns for a task, chosen by measuring several candidate plans, and the files in which the
candidate plans and their measurements are saved.

A run that was killed measures nothing twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from neuroshard.measure.store.parts import Parts, json_codec
from neuroshard.measure.store.plan_measurements import Pass, costs_ms, errors_of, passes_in
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import InfeasibleError, UserError
from neuroshard.plumbing.messages import Message
from neuroshard.plumbing.schema import NonNegative, PositiveCount
from neuroshard.searching.searcher import Found
from neuroshard.stages.search.evaluate.verdict import Verdict
from neuroshard.stages.search.results.search_results import SEARCHED_AGAIN, predicted_columns
from neuroshard.tasks.task import Task


@dataclass(frozen=True)
@checked
class _Origin:
    """How the candidate plans of a task were found, as saved on disk: the number of plans, the search time, and the
    warning and the remark of the search.
    """

    count: PositiveCount
    seconds: NonNegative
    warning: Message | None
    remark: str | None = None


@dataclass(frozen=True)
class Searched:
    """The search for one task so far: the plan that was found (or the error), the candidate
    plans, and their measurements.

    Attributes:
        found: a plan, or the error that explains why there is none.
        seconds: search time.
        candidate_plans: (K,) plans that can be measured, with their predictions, the predicted best first; empty if no
            candidate plans were requested, or no plan was found.
        passes: (P,) measurements so far, each of all candidate plans.
    """

    found: Found | InfeasibleError
    seconds: float
    candidate_plans: tuple[Plan, ...] = ()
    passes: tuple[Pass, ...] = ()

    @property
    def answer(self) -> Found:
        """The found plan, with the warning and the remark of the search.

        Raises:
            InfeasibleError: no plan was found.
        """
        if isinstance(self.found, InfeasibleError):
            raise self.found
        return self.found

    @property
    def errors(self) -> tuple[str | None, ...]:
        """The first error in each plan's measurements, (K,) texts; None for plans without errors."""
        return errors_of(self.passes, len(self.candidate_plans))

    @property
    def costs_ms(self) -> FloatArray:
        """The measured cost of each plan in each pass, (K, P) ms; NaN for failed measurements."""
        return costs_ms(self.passes, len(self.candidate_plans))

    @property
    def verdict(self) -> Verdict:
        """The verdict on which candidate plan to deploy, based on all measured passes."""
        return Verdict.of(self.costs_ms)

    @property
    def measured_ms(self) -> float | None:
        """The measured cost of the candidate plan to deploy, in ms; None if this plan could not be measured."""
        if not self.passes:
            return None
        measured_ms = float(self.verdict.measured_ms[self.verdict.taken])
        return None if np.isnan(measured_ms) else measured_ms

    def judged(self) -> "Searched":
        """Return a copy in which the found plan is the candidate plan to deploy, with a remark
        that explains the choice.
        """
        verdict, why = self.verdict, self.errors[0]
        remarks = self.answer.remark, f"{verdict}" if why is None else f"{verdict} ({why})"
        remark = "; ".join(filter(None, remarks))
        return replace(self, found=Found(self.candidate_plans[verdict.taken], self.answer.warning, remark=remark))


@dataclass(frozen=True)
class CandidatePlanFiles:
    """The files with the candidate plans of one task, and with the measurements of these plans, in the directory of a
    run.

    `candidate_plans/task-0000.json` describes how the plans were found. The directory `candidate_plans/task-0000` has
    the plans, and `measurements/task-0000` has a file for each pass.
    """

    run: Path
    task: int

    def plan(self, number: int) -> str:
        """Return the path of a candidate plan's file, relative to the run's directory."""
        return f"candidate_plans/task-{self.task:04d}/plan-{number:02d}.json"

    def begin(self, searched: Searched) -> None:
        """Write the candidate plans to files, and a record of how they were found, before any plan is measured."""
        for number, plan in enumerate(searched.candidate_plans):
            plan.save(self.run / self.plan(number))
        answer = searched.answer
        self._origins.write(
            self.task, _Origin(len(searched.candidate_plans), searched.seconds, answer.warning, answer.remark)
        )

    def passes(self, plans: Sequence[Plan]) -> Parts[Pass]:
        """Return the files with the measurements of these candidate plans, a file for each pass."""
        return passes_in(self.run, self.task, plans)

    def read(self, task: Task) -> Searched | None:
        """Return the search for a task as it was saved: the plans and their measurements; None if
        the search has not ended.

        Raises:
            UserError: a file is damaged, or belongs to another task.
        """
        if (origin := self._origins.get(self.task)) is None:
            return None
        plans = tuple(self._read_plan(number, task) for number in range(origin.count))
        found = Found(plans[0], origin.warning, remark=origin.remark)
        return Searched(found, origin.seconds, plans, self.passes(plans).leading())

    def rows(self, searched: Searched) -> list[dict[str, Any]]:
        """Return the rows of `candidate_plans.parquet`: one row for each candidate plan."""
        verdict, costs, errors = searched.verdict, searched.costs_ms, searched.errors
        return [
            {
                "task": self.task,
                "candidate_plan": number,
                "plan": self.plan(number),
                "taken": number == verdict.taken,
                **predicted_columns(plan),
                "measured_ms": verdict.measured_ms[number],
                "below": verdict.below[number],
                "below_error": verdict.error,
                "passes": int(np.isfinite(costs[number]).sum()),
                "error": errors[number],
            }
            for number, plan in enumerate(searched.candidate_plans)
        ]

    def _read_plan(self, number: int, task: Task) -> Plan:
        path = self.run / self.plan(number)
        plan = Plan.load(path)
        if replace(plan.task, constraints=task.constraints) != task:  # searches for a target system may add rules
            where = self._origins.path(self.task)
            raise UserError(
                "candidate-plan-other-task",
                f"the file '{path}' has a plan of another task",
                remedy=f"Delete the file '{where}', which records that this search has ended, and search again; the "
                "search then writes its plans again",
            )
        return plan

    @property
    def _origins(self) -> Parts[_Origin]:
        return Parts(self.run / "candidate_plans", json_codec("task", _Origin, SEARCHED_AGAIN))
