"""The answer of a search to a task: a plan, or the best of several measured candidate plans, which are saved on disk.

A run that was killed measures nothing twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from neuroshard.cost.cost import PARTS, Cost, Part, When
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import InfeasibleError, UserError
from neuroshard.plumbing.journal import Journal
from neuroshard.plumbing.messages import Message, number_of
from neuroshard.plumbing.schema import NonNegative, PositiveCount
from neuroshard.searching.searcher import Found
from neuroshard.stages.search.evaluate.verdict import Verdict
from neuroshard.stages.search.results.search_results import predicted_columns
from neuroshard.tasks.task import Task


@dataclass(frozen=True)
@checked
class _Origin:
    """How the candidate plans of a task were found, as in `Searched` and `Found`; `count` is the number of plans."""

    count: PositiveCount
    seconds: NonNegative
    warning: Message | None
    remark: str | None = None


@dataclass(frozen=True)
@checked
class MeasuredOnce:
    """The measurement of one plan in one pass.

    Attributes:
        parts: (D,) ms of each part of the cost, by name; empty if a training step was measured.
        error: the error that stopped the measurement; None if there was none.
        step_ms: ms of a training step; None if parts were measured.
        when: the place of each part in the step.
    """

    parts: dict[str, tuple[float, ...]] = field(default_factory=dict)
    error: str | None = None
    step_ms: NonNegative | None = None
    when: dict[str, When] = field(default_factory=dict)

    @classmethod
    def of(cls, outcome: Cost | str) -> "MeasuredOnce":
        """Return the measurement of a cost, or of the error in its place."""
        if isinstance(outcome, str):
            return cls(error=outcome)
        when = {part.name: part.when for part in outcome.parts}
        return cls({part.name: tuple(part.ms.tolist()) for part in outcome.parts}, when=when)

    @property
    def outcome(self) -> Cost | str:
        """The measured cost, built from its parts, or the error."""
        if self.error is not None:
            return self.error
        return Cost(tuple(Part(name, self.when[name], np.array(ms)) for name, ms in self.parts.items()))

    @property
    def total_ms(self) -> float:
        """The plan's measured cost in ms; NaN if it could not be measured."""
        if self.error is not None:
            return float("nan")
        return max(map(sum, zip(*self.parts.values(), strict=True))) if self.step_ms is None else self.step_ms

    def fits(self, devices: int) -> bool:
        """Return True if the measurement can belong to a plan for this number of devices."""
        known, in_parts = self.parts.keys() == self.when.keys(), self.error is None and self.step_ms is None
        sizes = {len(self.parts.get(name, ())) for name in (*PARTS, *self.parts)} if in_parts else {devices}
        return known and sizes == {devices}


@dataclass(frozen=True)
class Pass:
    """The measurements of one pass over all candidate plans, (K,)."""

    plans: tuple[MeasuredOnce, ...]

    def wrong(self, plans: Sequence[Plan]) -> str | None:
        """Return the reason why the pass cannot belong to these plans, as a predicate; None if it can."""
        devices = [plan.task.topology.num_devices for plan in plans]
        if len(self.plans) == len(plans) and all(map(MeasuredOnce.fits, self.plans, devices)):
            return None
        numbers = " or ".join(map(str, sorted({*devices})))
        return f"does not have the measurements of {number_of(len(plans), 'plan')} for {numbers} devices"


@dataclass(frozen=True)
class Searched:
    """The state of the answer to a task.

    Attributes:
        found: a plan, or the error that explains why there is none.
        seconds: search time.
        candidate_plans: (K,) plans that can be measured, with their predictions, the predicted best first; empty if no
            candidate plans were requested, or no plan was found.
        passes: (P, K) measurements so far.
    """

    found: Found | InfeasibleError
    seconds: float
    candidate_plans: tuple[Plan, ...] = ()
    passes: tuple[Pass, ...] = ()

    @property
    def answer(self) -> Found:
        """The found plan.

        Raises:
            InfeasibleError: no plan was found.
        """
        if isinstance(self.found, InfeasibleError):
            raise self.found
        return self.found

    @property
    def errors(self) -> tuple[str | None, ...]:
        """The first error of each plan's measurements, (K,); None for plans without errors."""
        return tuple(
            next((measurement.error for measurement in measurements if measurement.error is not None), None)
            for measurements in self._measured
        )

    @property
    def costs_ms(self) -> FloatArray:
        """The cost of each plan in each pass, (K, P) ms; NaN for failed measurements."""
        return np.array([[measurement.total_ms for measurement in measurements] for measurements in self._measured])

    @property
    def _measured(self) -> list[list[MeasuredOnce]]:
        """The measurements of each plan in each pass, (K, P)."""
        return [[one_pass.plans[number] for one_pass in self.passes] for number in range(len(self.candidate_plans))]

    @property
    def verdict(self) -> Verdict:
        """The verdict on the candidate plans, based on all measured passes."""
        return Verdict.of(self.costs_ms)

    @property
    def measured_ms(self) -> float | None:
        """The measured cost of the candidate plan to deploy, in ms; None if it could not be measured."""
        if not self.passes:
            return None
        measured_ms = float(self.verdict.measured_ms[self.verdict.taken])
        return None if np.isnan(measured_ms) else measured_ms

    def judged(self) -> "Searched":
        """Return the same state with the candidate plan to deploy as the answer,
        and with a remark that explains the choice.
        """
        verdict, why = self.verdict, self.errors[0]
        remarks = self.answer.remark, f"{verdict}" if why is None else f"{verdict} ({why})"
        remark = "; ".join(filter(None, remarks))
        return replace(self, found=Found(self.candidate_plans[verdict.taken], self.answer.warning, remark=remark))


@dataclass(frozen=True)
class CandidatePlanFiles:
    """The files of a task's candidate plans in a run's directory.

    `candidate_plans/task-0000.json` describes how the plans were found. The directory `candidate_plans/task-0000` has
    the plans and a file for each pass.
    """

    run: Path
    task: int

    def plan(self, number: int) -> str:
        """Return the path of a candidate plan's file, relative to the run's directory."""
        return f"candidate_plans/task-{self.task:04d}/plan-{number:02d}.json"

    def begin(self, searched: Searched) -> None:
        """Write the candidate plans and how they were found, before they are measured."""
        for number, plan in enumerate(searched.candidate_plans):
            plan.save(self.run / self.plan(number))
        answer = searched.answer
        self._origins.keep(
            self.task, _Origin(len(searched.candidate_plans), searched.seconds, answer.warning, answer.remark)
        )

    def passes(self, plans: Sequence[Plan]) -> Journal[Pass]:
        """Return the journal of the passes over these candidate plans."""
        return Journal((self.run / self.plan(0)).parent, "pass", Pass, lambda _, measured: measured.wrong(plans))

    def read(self, task: Task) -> Searched | None:
        """Return the saved state of the task's answer; None if its search has not ended.

        Raises:
            UserError: a file is damaged, or belongs to another task.
        """
        if (origin := self._origins.get(self.task)) is None:
            return None
        plans = tuple(self._read_plan(number, task) for number in range(origin.count))
        found = Found(plans[0], origin.warning, remark=origin.remark)
        return Searched(found, origin.seconds, plans, self.passes(plans).read())

    def rows(self, searched: Searched) -> list[dict[str, Any]]:
        """Return the rows of `candidate_plans.parquet`: one for each plan."""
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
    def _origins(self) -> Journal[_Origin]:
        return Journal(self.run / "candidate_plans", "task", _Origin, after_deletion="the task is searched again")
