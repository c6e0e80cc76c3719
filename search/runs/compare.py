"""The comparison of the plans of a search with plans of another planner: `search compare=torchrec`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from neuroshard.models.simulator import Simulator
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.messages import number_of
from neuroshard.plumbing.progress import progress_bar
from neuroshard.stages.search.methods.torchrec_default import TORCHREC_DEFAULT, torchrec_default
from neuroshard.stages.search.results.search_results import SearchRecord
from neuroshard.tasks.task import Task

_SHOWN_ERRORS = 3


@dataclass(frozen=True)
class ComparedPlan:
    """The plan that TorchRec's default planner found for one task of a search, or the reason why there is none.

    Attributes:
        task: number of the task.
        plan: path of the plan file, relative to the run's directory; None if there is no plan.
        predicted_ms: predicted cost of the plan in ms; None if there is no plan.
        error: the reason why there is no plan, or the first limit of the task that the plan breaks; None if the plan
            can be used.
    """

    task: int
    plan: str | None
    predicted_ms: float | None
    error: str | None


def compared_plans(
    tasks: Sequence[Task], records: Sequence[SearchRecord], simulator: Simulator, directory: Path
) -> tuple[ComparedPlan, ...]:
    """Let TorchRec's default planner find a plan for every task for which the search has a plan; save and return these
    plans.

    The plans are written to `torchrec_plans/` in the directory of the run.
    """
    solved = [record.task for record in records if record.error is None]
    with progress_bar() as progress:
        return tuple(
            _compared(number, tasks[number], simulator, directory)
            for number in progress.track(solved, description=TORCHREC_DEFAULT)
        )


def _compared(number: int, task: Task, simulator: Simulator, directory: Path) -> ComparedPlan:
    try:
        plan = torchrec_default(task, simulator)
    except UserError as error:
        return ComparedPlan(number, None, None, str(error))
    assert plan.prediction is not None
    name = f"torchrec_plans/task-{number:04d}.json"
    plan.save(directory / name)
    return ComparedPlan(number, name, plan.prediction.cost_ms, next(iter(plan.violations), None))


def comparison_columns(records: Sequence[SearchRecord], compared: Sequence[ComparedPlan]) -> dict[str, list[str]]:
    """Return the columns that `compare=torchrec` adds to the table of results: the costs of TorchRec's plans, and
    the differences in cost.
    """
    by_task = {plan.task: plan for plan in compared}
    plans = [by_task.get(record.task) for record in records]
    differences = [
        None if plan is None else _difference(record, plan) for record, plan in zip(records, plans, strict=True)
    ]
    return {
        "TorchRec ms": ["" if plan is None else _cost(plan) for plan in plans],
        "vs. TorchRec": ["" if share is None else f"{share:+.1%}" for share in differences],
    }


def comparison_lines(records: Sequence[SearchRecord], compared: Sequence[ComparedPlan], directory: Path) -> list[str]:
    """Return lines of text that compare the plans of a search with the plans of TorchRec's default planner.
    The lines say how much the predicted costs differ on average, why some tasks cannot be compared, and in which
    directory TorchRec's plans are.
    """
    if not compared:
        return []
    by_task = {record.task: record for record in records}
    differences = [_difference(by_task[plan.task], plan) for plan in compared]
    known = [share for share in differences if share is not None]
    failed = [f"{TORCHREC_DEFAULT}, task {plan.task}: {plan.error}" for plan in compared if plan.error is not None]
    more = len(failed) - _SHOWN_ERRORS
    return [
        *([_mean_line(known)] if known else []),
        *failed[:_SHOWN_ERRORS],
        *([f"... and {number_of(more, 'more task')} that cannot be compared"] if more > 0 else []),
        *([f"plans of {TORCHREC_DEFAULT}: {directory / 'torchrec_plans'}"] if any(p.plan for p in compared) else []),
    ]


def _difference(record: SearchRecord, plan: ComparedPlan) -> float | None:
    """Return the relative difference between the predicted costs of the search's plan and of TorchRec's plan, for
    example 0.1 if the search's plan costs 10% more. Return None if the plans cannot be compared.
    """
    if record.predicted_ms is None or plan.predicted_ms is None or plan.error is not None:
        return None
    return record.predicted_ms / plan.predicted_ms - 1


def _mean_line(differences: Sequence[float]) -> str:
    mean = float(np.mean(differences))
    direction, tasks = "above" if mean > 0 else "below", number_of(len(differences), "task")
    return f"predicted costs are {abs(mean):.1%} {direction} those of {TORCHREC_DEFAULT} (mean of {tasks})"


def _cost(plan: ComparedPlan) -> str:
    if plan.predicted_ms is None:
        return "no plan"
    return f"{plan.predicted_ms:.2f}" + ("" if plan.error is None else " (breaks a limit)")
