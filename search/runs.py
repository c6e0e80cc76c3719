"""What a search run leaves: `run.json`, `results.parquet`, `tasks.json` and one JSON per plan."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from neuroshard.errors import UserError
from neuroshard.files import read_json, write_atomically, write_json
from neuroshard.plan import Plan

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
_TEXTS = ["plan", "error", "remark", "warnings"]


@dataclass(frozen=True)
class SearchRecord:
    """What became of one task: a plan file with its predicted cost, or the error; `seconds` of search either way.

    Attributes:
        margin_ms: half the width of the predicted cost's 90% interval; NaN where the models know none.
        remark: what the searcher says of its plan.
        warnings: what lies outside the range of the models, a line each.
    """

    task: int
    plan: str | None
    error: str | None
    predicted_ms: float
    seconds: float
    margin_ms: float = float("nan")
    remark: str | None = None
    warnings: str | None = None


@dataclass(frozen=True)
class SearchRun:
    """A directory of plans that one searcher found."""

    path: Path
    searcher: str
    records: tuple[SearchRecord, ...]

    def save(self, settings: dict[str, Any]) -> None:
        """Write the records, then `run.json` with the settings; the plans are there already."""
        frame = pd.DataFrame([asdict(record) for record in self.records], columns=list(_COLUMNS)).astype(_COLUMNS)
        write_atomically(self.path / "results.parquet", lambda temporary: frame.to_parquet(temporary, index=False))
        write_json(self.path / "run.json", {"format": _FORMAT, "searcher": self.searcher} | settings)

    @classmethod
    def load(cls, path: Path) -> "SearchRun":
        """The run in a directory.

        Raises:
            UserError: it isn't one, or is malformed.
        """
        content = read_json(path / "run.json", "search run")
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise UserError(f"{path} is not a search run of format {_FORMAT!r}")
        try:
            frame = pd.read_parquet(path / "results.parquet")
            texts = frame[_TEXTS].astype(object)
            rows: Any = frame.assign(**texts.where(texts.notna(), None)).to_dict("records")
            records = tuple(SearchRecord(**row) for row in rows)
            searcher = str(content["searcher"])
        except (OSError, KeyError, TypeError, ValueError, pa.ArrowException) as error:
            raise UserError(f"the run in {path} can't be read: {error}") from None
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
        Path(out).mkdir(parents=True, exist_ok=True)
        return Path(out)
    parent = Path("runs") / kind
    parent.mkdir(parents=True, exist_ok=True)
    number = 1 + max((int(entry.name[:4]) for entry in parent.iterdir() if entry.name[:4].isdigit()), default=0)
    while True:
        path = parent / f"{number:04d}-{searcher}"
        try:
            path.mkdir()
        except FileExistsError:
            number += 1  # another run has just taken it
        else:
            return path
