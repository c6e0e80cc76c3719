"""What a search run leaves: `run.json`, `results.parquet`, `tasks.json` and one JSON per plan."""

import math
import re
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd

from neuroshard.checked import checked
from neuroshard.errors import UserError
from neuroshard.files import read_json, write_json
from neuroshard.parquet import read_rows, write_frame
from neuroshard.plans.plan import Plan
from neuroshard.schema import Count, Name, of_format, parse, shown

_FORMAT = "neuroshard-search-1"
_COLUMNS = {
    "task": "int64",
    "plan": "object",
    "error": "object",
    "predicted_ms": "float64",
    "seconds": "float64",
    "margin_ms": "float64",
    "remark": "object",
    "warnings": "object",
}
_NUMBERS = ("predicted_ms", "seconds", "margin_ms")
_LARGEST = 1e18


@dataclass(frozen=True)
@checked
class SearchRecord:
    """What became of one task: a plan file with its predicted cost, or the error; `seconds` of search either way.

    Attributes:
        plan: its file, inside the run's directory.
        margin_ms: half the width of the predicted cost's 90% interval; NaN where the models know none.
        remark: what the searcher says of its plan.
        warnings: what lies outside the range of the models, a line each.
    """

    task: Count
    plan: Name | None
    error: str | None
    predicted_ms: float
    seconds: float
    margin_ms: float = float("nan")
    remark: str | None = None
    warnings: str | None = None

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            value = getattr(self, name)
            if not (math.isnan(value) or 0 <= value <= _LARGEST):
                raise UserError(f"task {self.task}: {name}={value} must be a number from 0 to {_LARGEST:g}")
        if (self.plan is None) == (self.error is None):
            raise UserError(f"task {self.task} must have either a plan or an error")
        if self.plan is not None and not _is_inside(self.plan):
            raise UserError(f"task {self.task}: plan {shown(self.plan)} must be a file in the run's directory")

    def to_json(self) -> dict[str, Any]:
        """The fields, for a file of its own; JSON has no NaN."""
        fields = asdict(self)
        return fields | {name: None if math.isnan(fields[name]) else fields[name] for name in _NUMBERS}

    @classmethod
    def from_json(cls, fields: object, where: str) -> "SearchRecord":
        """The record in `fields`, as `to_json` gives them, or of a row of `results.parquet`.

        Raises:
            UserError: a field is missing, unknown, of the wrong type or out of range.
        """
        if isinstance(fields, dict):
            known = {name: fields[name] for name in _NUMBERS if name in fields}
            fields = fields | {name: math.nan if value is None else value for name, value in known.items()}
        return parse(fields, cls, where)


def _is_inside(name: str) -> bool:
    """Whether a path stays in the directory that it starts from, by its words."""
    path = PurePosixPath(name)
    return name.isprintable() and not path.is_absolute() and bool(path.parts) and ".." not in path.parts


@dataclass(frozen=True)
class _RunFile:
    searcher: Name


@dataclass(frozen=True)
class SearchRun:
    """A directory of plans that one searcher found."""

    path: Path
    searcher: str
    records: tuple[SearchRecord, ...]

    def save(self, settings: dict[str, Any]) -> None:
        """Write the records, then `run.json` with the settings; the plans are there already."""
        frame = pd.DataFrame([asdict(record) for record in self.records], columns=list(_COLUMNS)).astype(_COLUMNS)
        write_frame(self.path / "results.parquet", frame)
        write_json(self.path / "run.json", {"format": _FORMAT, "searcher": self.searcher} | settings)

    @classmethod
    def load(cls, path: Path) -> "SearchRun":
        """The run in a directory.

        Raises:
            UserError: it isn't one, or is malformed.
        """
        described, results = path / "run.json", path / "results.parquet"
        content = of_format(read_json(described, "search run"), _FORMAT, f"search run {path}")
        searcher = parse({"searcher": content.get("searcher")}, _RunFile, str(described)).searcher
        rows = read_rows(results, "results of a search run")
        records = tuple(SearchRecord.from_json(row, str(results)) for row in rows)
        if [record.task for record in records] != list(range(len(records))):
            raise UserError(f"{results}: its tasks must be 0, 1, ..., {len(records) - 1}, each once")
        return cls(path, searcher, records)

    def plans(self) -> dict[int, Plan]:
        """The plans found, by number of the task."""
        found = ((record.task, self.plan_of(record)) for record in self.records)
        return {task: plan for task, plan in found if plan is not None}

    def plan_of(self, record: SearchRecord) -> Plan | None:
        """The plan that was found for one task, if any."""
        return None if record.plan is None else Plan.load(self.path / record.plan)


def is_finished(path: Path) -> bool:
    """Whether a directory holds a whole run."""
    return (path / "run.json").exists()


def claim_directory(out: str | None, kind: str, searcher: str) -> Path:
    """A directory for a run: `out` itself, or the next free `runs/<kind>/<number>-<searcher>`."""
    if out is not None:
        return Path(out)
    parent = Path("runs") / kind
    parent.mkdir(parents=True, exist_ok=True)
    numbers = [int(found[1]) for entry in parent.iterdir() if (found := re.match(r"([0-9]{4})", entry.name))]
    number = 1 + max(numbers, default=0)
    while True:
        path = parent / f"{number:04d}-{searcher}"
        try:
            path.mkdir()
        except FileExistsError:
            number += 1  # another run has just taken it
        else:
            return path
