"""The results of a search run: the files `run.json`, `results.parquet` and `tasks.json`, and one JSON file for each
plan.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd

from neuroshard.measure.store.parts import Parts, json_codec
from neuroshard.measure.store.run_directory import RunDirectory
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.messages import number_of
from neuroshard.plumbing.parquet import read_rows, write_frame
from neuroshard.plumbing.schema import Count, Name, NonNegative, parse, shown
from neuroshard.words.model_choice import ModelChoice

_SEARCH_AGAIN = "Delete the directory of the run and search again"
SEARCHED_AGAIN = "Delete {path} and run the command again; then the task is searched again"  # remedy of a `Codec`


@dataclass(frozen=True)
@checked
class SearchRecord:
    """The result of a search for one task: a plan file with the predicted cost of the plan, or an error.

    Attributes:
        task: number of the task.
        plan: path of the plan file, relative to the run's directory; None after an error.
        error: the reason why there is no plan; None if there is one.
        predicted_ms: predicted cost of the plan; None if there is no plan.
        seconds: search time, with or without a plan.
        margin_ms: half the width of the predicted cost's 90% interval; None if the models have no margins.
        remark: remark of the searcher on its plan.
        warnings: reasons why the predicted cost may be wrong, such as tables outside the training range of the models;
            one line for each.
        expected_ms: expected cost (`Cost.expected_ms`); None if the models have no margins.
        measured_ms: cost on hardware, mean over the passes of verification; None if it was not measured.
        caveat: caveat that is shown with the predicted cost (`Cost.caveat`).
    """

    task: Count
    plan: Name | None
    error: str | None
    predicted_ms: NonNegative | None
    seconds: NonNegative
    margin_ms: NonNegative | None = None
    remark: str | None = None
    warnings: str | None = None
    expected_ms: NonNegative | None = None
    measured_ms: NonNegative | None = None
    caveat: str | None = None

    def __post_init__(self) -> None:
        if (self.plan is None) == (self.error is None):
            raise UserError(
                "search-record-plan-or-error",
                f"task {self.task} has {'neither a plan nor an error' if self.plan is None else 'a plan and an error'}",
                limit="a task must have either a plan or an error",
                remedy=_SEARCH_AGAIN,
            )
        if self.plan is not None and not _is_inside(self.plan):
            raise UserError(
                "search-record-plan-outside",
                f"plan {shown(self.plan)} of task {self.task} is not a path inside the run's directory",
                remedy=_SEARCH_AGAIN,
            )


def predicted_columns(plan: Plan) -> dict[str, float | None]:
    """Return the predicted cost, the margin and the expected cost of a plan, in ms, as a dict with the field names of
    `SearchRecord`. The margin is half the width of the 90% interval of the predicted cost. Unknown values are None.
    """
    known = plan.prediction
    if known is None:
        return dict.fromkeys(("predicted_ms", "margin_ms", "expected_ms"))
    return {"predicted_ms": known.cost_ms, "margin_ms": known.margin_ms, "expected_ms": known.expected_ms}


def _of_another(task: int, record: SearchRecord) -> str | None:
    return None if record.task == task else f"belongs to task {record.task}"


def _is_inside(name: str) -> bool:
    """Return True if `name` is a relative path without "..", so that the path cannot leave the directory where it
    starts. Return False if `name` is empty or not printable. Symbolic links are not checked.
    """
    path = PurePosixPath(name)
    return name.isprintable() and not path.is_absolute() and bool(path.parts) and ".." not in path.parts


@dataclass(frozen=True)
class _Facts:
    """The fields that `SearchRun.load` reads from the file `run.json` of a search."""

    searcher: Name
    model: ModelChoice
    settings: dict[str, Any]
    count_input: bool = False


@dataclass(frozen=True)
class SearchRun:
    """A directory with the plans that one searcher found for a list of tasks.

    Attributes:
        path: the directory.
        searcher: name of the searcher.
        records: the result of each task.
        model: the cost models, in the form that `CostModels.of` takes.
        settings: settings of the searcher.
        count_input: True if predicted costs count the input dist.
    """

    path: Path
    searcher: str
    records: tuple[SearchRecord, ...]
    model: ModelChoice
    settings: Mapping[str, Any]
    count_input: bool = False

    def save(self, more: Mapping[str, Any]) -> None:
        """Write the records, and then mark the run as finished; the fields in `more` are added to `run.json`.
        The plan files must exist already.
        """
        frame = pd.DataFrame([asdict(record) for record in self.records], dtype="object")
        numbers = {"task": "int64"} | {name: "float64" for name in map(str, frame) if name.endswith(("_ms", "seconds"))}
        frame = frame.astype(numbers)
        write_frame(self.path / "results.parquet", frame)
        facts = {"searcher": self.searcher, "model": self.model.fields, "settings": self.settings}
        RunDirectory(self.path).finish("search", {**facts, **more})

    @classmethod
    def load(cls, path: Path) -> "SearchRun":
        """Return the search run in the directory `path`.

        Raises:
            UserError: the directory does not have a search run, or the run is malformed.
        """
        results = path / "results.parquet"
        facts = RunDirectory(path).facts("search")
        known = {item.name: facts[item.name] for item in fields(_Facts) if item.name in facts}
        described = parse(known, _Facts, f"search run {path}")
        rows = read_rows(results, "results of a search run")
        records = tuple(parse(row, SearchRecord, str(results)) for row in rows)
        if [record.task for record in records] != list(range(len(records))):
            raise UserError(
                "search-run-task-numbers",
                "the task numbers are wrong",
                where=str(results),
                limit=f"{number_of(len(records), 'task')} must be numbered 0, 1, 2, ... in this order",
                remedy=_SEARCH_AGAIN,
            )
        return cls(path, described.searcher, records, described.model, described.settings, described.count_input)

    @staticmethod
    def record_parts(path: Path) -> Parts[SearchRecord]:
        """Return the store of the records in the directory of a run. The store has one file for each task; a search
        writes the file of a task as soon as the task is done.
        """
        return Parts(path / "records", json_codec("task", SearchRecord, SEARCHED_AGAIN), _of_another)

    def plans(self) -> dict[int, Plan]:
        """Return the plans that the search found, by number of the task."""
        found = ((record.task, self.plan_of(record)) for record in self.records)
        return {task: plan for task, plan in found if plan is not None}

    def plan_of(self, record: SearchRecord) -> Plan | None:
        """Return the plan that the search found for one task; None if there is no plan."""
        return None if record.plan is None else Plan.load(self.path / record.plan)
