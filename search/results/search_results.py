"""What a search run leaves: `run.json`, `results.parquet`, `tasks.json` and one JSON per plan."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd

from neuroshard.plans.plan import Plan
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.journal import Journal
from neuroshard.plumbing.messages import number_of
from neuroshard.plumbing.parquet import read_rows, write_frame
from neuroshard.plumbing.schema import Count, Name, NonNegative, parse, shown
from neuroshard.records.run_directory import RunDirectory
from neuroshard.words.model_choice import ModelChoice

_SEARCH_AGAIN = "Delete the directory of the run and search again"


@dataclass(frozen=True)
@checked
class SearchRecord:
    """What became of one task: a plan file with its predicted cost, or the error; `seconds` of search either way.

    Attributes:
        plan: its file, inside the run's directory.
        predicted_ms: the plan's cost; None where there is no plan.
        margin_ms: half the width of the predicted cost's 90% interval; None where the models know none.
        remark: what the searcher says of its plan.
        warnings: reasons why the predicted cost may be wrong, such as tables outside the training range of the models;
            one line for each.
        expected_ms: the cost to be expected (`Cost.expected_ms`); None where the models know no margin.
        measured_ms: on hardware, the mean over the passes of verification; None where it wasn't measured.
        caveat: what is said wherever the predicted cost is shown (`Cost.caveat`).
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
    """Collect what its models say of a plan, by the names of `SearchRecord`; None where nobody knows."""
    known = plan.prediction
    if known is None:
        return dict.fromkeys(("predicted_ms", "margin_ms", "expected_ms"))
    return {"predicted_ms": known.cost_ms, "margin_ms": known.margin_ms, "expected_ms": known.expected_ms}


def _of_another(task: int, record: SearchRecord) -> str | None:
    return None if record.task == task else f"belongs to task {record.task}"


def _is_inside(name: str) -> bool:
    """Return True if a relative path stays inside the directory that it starts from, by the names in it."""
    path = PurePosixPath(name)
    return name.isprintable() and not path.is_absolute() and bool(path.parts) and ".." not in path.parts


@dataclass(frozen=True)
class _Facts:
    """What is read again of a search's `run.json`."""

    searcher: Name
    model: ModelChoice
    settings: dict[str, Any]
    count_input: bool = False


@dataclass(frozen=True)
class SearchRun:
    """A directory of plans that one searcher found.

    Attributes:
        searcher: its name.
        model: the cost models, as `CostModels.of` takes them.
        settings: of the searcher.
        count_input: whether predicted costs count the exchange of indices.
    """

    path: Path
    searcher: str
    records: tuple[SearchRecord, ...]
    model: ModelChoice
    settings: Mapping[str, Any]
    count_input: bool = False

    def save(self, more: Mapping[str, Any]) -> None:
        """Write the records, then mark the run as whole, with `more` that is to be known of it; the plans are there."""
        frame = pd.DataFrame([asdict(record) for record in self.records], dtype="object")
        numbers = {"task": "int64"} | {name: "float64" for name in map(str, frame) if name.endswith(("_ms", "seconds"))}
        frame = frame.astype(numbers)
        write_frame(self.path / "results.parquet", frame)
        facts = {"searcher": self.searcher, "model": self.model.fields, "settings": self.settings}
        RunDirectory(self.path).finish("search", {**facts, **more})

    @classmethod
    def load(cls, path: Path) -> "SearchRun":
        """Load the run in a directory.

        Raises:
            UserError: the directory doesn't have a search run, or the run is malformed.
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
    def journal(path: Path) -> Journal[SearchRecord]:
        """Open the journal of a run's records by task: each is there once found, and stays when the run is whole."""
        return Journal(path / "records", "task", SearchRecord, _of_another, "the task is searched again")

    def plans(self) -> dict[int, Plan]:
        """Load the plans that were found, by number of the task."""
        found = ((record.task, self.plan_of(record)) for record in self.records)
        return {task: plan for task, plan in found if plan is not None}

    def plan_of(self, record: SearchRecord) -> Plan | None:
        """Load the plan that was found for one task, if any."""
        return None if record.plan is None else Plan.load(self.path / record.plan)
