"""The answer of a search to a task: a plan, or the best of candidate plans by measurement, which are kept on disk.

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
from neuroshard.stages.search.results.search_results import predicted_columns
from neuroshard.stages.search.results.verdict import Verdict
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
    """What one plan cost in one pass: (D,) ms of each part, by its name, or ms of a training step; or what stopped it.

    Attributes:
        when: the place of each part in the step.
    """

    parts: dict[str, tuple[float, ...]] = field(default_factory=dict)
    error: str | None = None
    step_ms: NonNegative | None = None
    when: dict[str, When] = field(default_factory=dict)

    @classmethod
    def of(cls, outcome: Cost | str) -> "MeasuredOnce":
        """Take the parts of a measured cost, or the error in their place."""
        if isinstance(outcome, str):
            return cls(error=outcome)
        when = {part.name: part.when for part in outcome.parts}
        return cls({part.name: tuple(part.ms.tolist()) for part in outcome.parts}, when=when)

    @property
    def outcome(self) -> Cost | str:
        """The measured cost that `of` took the parts of, or the error."""
        if self.error is not None:
            return self.error
        return Cost(tuple(Part(name, self.when[name], np.array(ms)) for name, ms in self.parts.items()))

    @property
    def total_ms(self) -> float:
        """The plan's measured cost, ms; NaN where it couldn't be measured."""
        if self.error is not None:
            return float("nan")
        return max(map(sum, zip(*self.parts.values(), strict=True))) if self.step_ms is None else self.step_ms

    def fits(self, devices: int) -> bool:
        """Return True if the measurement may be of a plan for so many devices."""
        known, in_parts = self.parts.keys() == self.when.keys(), self.error is None and self.step_ms is None
        sizes = {len(self.parts.get(name, ())) for name in (*PARTS, *self.parts)} if in_parts else {devices}
        return known and sizes == {devices}


@dataclass(frozen=True)
class Pass:
    """The measurements of one pass over all candidate plans, (K,)."""

    plans: tuple[MeasuredOnce, ...]

    def wrong(self, plans: Sequence[Plan]) -> str | None:
        """Return why the pass can't be of these plans, as a predicate; None if it may be."""
        devices = [plan.task.topology.num_devices for plan in plans]
        if len(self.plans) == len(plans) and all(map(MeasuredOnce.fits, self.plans, devices)):
            return None
        numbers = " or ".join(map(str, sorted({*devices})))
        return f"does not have the measurements of {number_of(len(plans), 'plan')} for {numbers} devices"


@dataclass(frozen=True)
class Searched:
    """What is known of the answer to a task.

    Attributes:
        found: a plan; or why there is none.
        seconds: of search.
        candidate_plans: (K,) plans that may be measured, with their predictions, the predicted best first; none if
            none were asked for, or nothing was found.
        passes: (P, K) what was measured of them so far.
    """

    found: Found | InfeasibleError
    seconds: float
    candidate_plans: tuple[Plan, ...] = ()
    passes: tuple[Pass, ...] = ()

    @property
    def answer(self) -> Found:
        """What was found.

        Raises:
            InfeasibleError: nothing.
        """
        if isinstance(self.found, InfeasibleError):
            raise self.found
        return self.found

    @property
    def errors(self) -> tuple[str | None, ...]:
        """The first error that stopped measuring each plan, (K,); None where nothing did."""
        return tuple(next((one.error for one in its if one.error is not None), None) for its in self._measured)

    @property
    def costs_ms(self) -> FloatArray:
        """The cost of each plan in each pass, (K, P) ms; NaN where it couldn't be measured."""
        return np.array([[one.total_ms for one in its] for its in self._measured])

    @property
    def _measured(self) -> list[list[MeasuredOnce]]:
        """What each plan cost in each pass, (K, P)."""
        return [[one.plans[number] for one in self.passes] for number in range(len(self.candidate_plans))]

    @property
    def verdict(self) -> Verdict:
        """The verdict on the candidate plans by all passes that were measured."""
        return Verdict.of(self.costs_ms)

    @property
    def measured_ms(self) -> float | None:
        """The measured cost of the candidate plan to deploy, ms; None if it could not be measured."""
        if not self.passes:
            return None
        measured_ms = float(self.verdict.measured_ms[self.verdict.taken])
        return None if np.isnan(measured_ms) else measured_ms

    def judged(self) -> "Searched":
        """Return the same with the candidate plan to deploy as its answer, and a remark that says why."""
        verdict, why = self.verdict, self.errors[0]
        said = self.answer.remark, f"{verdict}" if why is None else f"{verdict} ({why})"
        remark = "; ".join(filter(None, said))
        return replace(self, found=Found(self.candidate_plans[verdict.taken], self.answer.warning, remark=remark))


@dataclass(frozen=True)
class CandidatePlanFiles:
    """The files of a task's candidate plans in a run's directory.

    `candidate_plans/task-0000.json` says how the plans were found. The directory `candidate_plans/task-0000` holds the
    plans and a file for each pass.
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
        its = searched.answer
        self._origins.keep(self.task, _Origin(len(searched.candidate_plans), searched.seconds, its.warning, its.remark))

    def passes(self, plans: Sequence[Plan]) -> Journal[Pass]:
        """Open the journal of the passes over these candidate plans."""
        return Journal((self.run / self.plan(0)).parent, "pass", Pass, lambda _, one: one.wrong(plans))

    def read(self, task: Task) -> Searched | None:
        """Read what is known of the task; None if its search hasn't ended.

        Raises:
            UserError: a file is damaged, or of another task.
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
        if replace(plan.task, constraints=task.constraints) != task:  # searches for a target may add rules
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
