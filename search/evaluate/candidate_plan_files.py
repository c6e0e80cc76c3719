"""The search for one task: the candidate plans, the measurements of these plans, and the choice of the plan to deploy.
The candidate plans are saved in files.

A run that was killed measures nothing twice.
"""

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
    """The saved record of the search for one task.
    The record has the number of candidate plans, the search time, and the warning and the remark of the search.
    """

    count: PositiveCount
    seconds: NonNegative
    warning: Message | None
    remark: str | None = None


@dataclass(frozen=True)
class Searched:
    """The result of the search for one task: the found plan or an error, and the candidate plans with measurements.
    More measurements may follow later.

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
        """The plan that the search found, together with the warning and the remark of the search.

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
        """The measured cost in ms of each of K candidate plans in each of P passes, (K, P); NaN for failed
        measurements.
        """
        return costs_ms(self.passes, len(self.candidate_plans))

    @property
    def verdict(self) -> Verdict:
        """The verdict on which candidate plan to deploy, based on all measured passes."""
        return Verdict.of(self.costs_ms)

    @property
    def measured_ms(self) -> float | None:
        """The measured cost in ms of the candidate plan that the measurements choose for deployment; None if the cost
        of this plan was not measured.
        """
        if not self.passes:
            return None
        measured_ms = float(self.verdict.measured_ms[self.verdict.taken])
        return None if np.isnan(measured_ms) else measured_ms

    def judged(self) -> "Searched":
        """Return a copy of this search in which `found` has the candidate plan to deploy, chosen by the measurements.
        The remark of `found` explains the choice.
        """
        verdict, why = self.verdict, self.errors[0]
        remarks = self.answer.remark, f"{verdict}" if why is None else f"{verdict} ({why})"
        remark = "; ".join(filter(None, remarks))
        return replace(self, found=Found(self.candidate_plans[verdict.taken], self.answer.warning, remark=remark))


def write_searched(run: Path, number: int, searched: Searched) -> None:
    """Write the candidate plans of task `number` to the directory of a run, before any plan is measured.

    The directory `candidate_plans/task-0000` has the plans. `candidate_plans/task-0000.json`, written last, describes
    how the plans were found.
    """
    for index, plan in enumerate(searched.candidate_plans):
        plan.save(run / _plan_file(number, index))
    answer = searched.answer
    origin = _Origin(len(searched.candidate_plans), searched.seconds, answer.warning, answer.remark)
    _origins(run).write(number, origin)


def read_searched(run: Path, number: int, task: Task) -> Searched | None:
    """Read the saved search for task `number`, with the candidate plans and the measurements of these plans. Return
    None if the search has not ended.

    Raises:
        UserError: a file is damaged, or belongs to another task.
    """
    if (origin := _origins(run).get(number)) is None:
        return None
    plans = tuple(_read_plan(run, number, index, task) for index in range(origin.count))
    found = Found(plans[0], origin.warning, remark=origin.remark)
    return Searched(found, origin.seconds, plans, passes_in(run, number, plans).leading())


def candidate_plan_rows(task: int, searched: Searched) -> list[dict[str, Any]]:
    """Return the rows of `candidate_plans.parquet` for one task: one row for each candidate plan."""
    verdict, costs, errors = searched.verdict, searched.costs_ms, searched.errors
    return [
        {
            "task": task,
            "candidate_plan": number,
            "plan": _plan_file(task, number),
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


def _origins(run: Path) -> Parts[_Origin]:
    return Parts(run / "candidate_plans", json_codec("task", _Origin, SEARCHED_AGAIN))


def _plan_file(task: int, number: int) -> str:
    """Return the path of a candidate plan's file, relative to the directory of the run."""
    return f"candidate_plans/task-{task:04d}/plan-{number:02d}.json"


def _read_plan(run: Path, number: int, index: int, task: Task) -> Plan:
    """Return a candidate plan of task `number`; raise UserError if the file has a plan of another task."""
    path = run / _plan_file(number, index)
    plan = Plan.load(path)
    if replace(plan.task, constraints=task.constraints) != task:  # searches for a target system may add rules
        where = _origins(run).path(number)
        raise UserError(
            "candidate-plan-other-task",
            f"the file '{path}' has a plan of another task",
            remedy=f"Delete the file '{where}', which records that this search has ended, and search again; the "
            "search then writes its plans again",
        )
    return plan
