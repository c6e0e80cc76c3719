"""What runs left, as tables."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import pandas as pd

from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import read_json
from neuroshard.plumbing.schema import NonNegative, parse
from neuroshard.records.run_directory import RunDirectory, RunFile, runs_below
from neuroshard.stages.search.report.names import NamedRun, named
from neuroshard.stages.search.report.rows import EvaluationRow, SearchRow, TrainingRow, read_rows, typed
from neuroshard.stages.search.results.search_results import SearchRun
from neuroshard.tasks.draw import from_file

_COSTS = ["predicted_ms", "margin_ms", "seconds"]
_SEARCHED = ["tasks", "method", "setting", "value", "task", *_COSTS, "solved", "path", "caveat"]
_MEASURED = ["run", "method", "task", *_COSTS, "measured_ms", "solved"]
_LEARNED = ["run", "method", "round", "valid_ms"]
_Search = tuple[NamedRun, tuple[SearchRow, ...]]


@dataclass(frozen=True, eq=False)
class Gathered:
    """One row for each task of every search, for each plan of every evaluation, for each round of every training.

    Attributes:
        searched: tasks (what the tasks are), method, setting and value (of a sweep over a number; None and NaN for
            others), task, predicted_ms, margin_ms, seconds, solved, path, caveat (what is said of the predicted cost).
        measured: run, method, task, predicted_ms, margin_ms, seconds, measured_ms, solved.
        learned: run, method, round, valid_ms.
        references: ms of other methods on a training's validation tasks, by run.
    """

    searched: pd.DataFrame
    measured: pd.DataFrame
    learned: pd.DataFrame
    references: dict[str, dict[str, float]]


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The directories of all runs in the directories and below them.

    Raises:
        UserError: a directory isn't there.
    """
    for path in paths:
        if not path.is_dir():
            raise UserError(f"no directory {path}; give directories of runs")
    return sorted({run.path for path in paths for run in runs_below(path)}, key=_natural)


def _natural(path: Path) -> list[tuple[int, str]]:
    """An order in which 8 comes before 16."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(path))]


def gather(paths: Sequence[Path]) -> Gathered:
    """All runs in the directories and below them.

    Raises:
        UserError: a directory isn't there, none holds a finished run, or a run is damaged.
    """
    searches: list[_Search] = []
    measured: dict[str, tuple[EvaluationRow, ...]] = {}
    learned: dict[str, tuple[TrainingRow, ...]] = {}
    references: dict[str, dict[str, float]] = {}
    sets: dict[str, str] = {}
    for folder in find_runs(paths):
        match RunDirectory(folder).read():
            case RunFile("search"):
                searches.append(_search(folder, sets))
            case RunFile("train-policy"):
                _need_files(folder, "curve.parquet", "policy.json")
                learned[str(folder)] = read_rows(folder / "curve.parquet", TrainingRow)
                references[str(folder)] = _references(folder / "policy.json")
            case RunFile("evaluate"):
                _need_files(folder, "results.parquet")
                measured[str(folder)] = read_rows(folder / "results.parquet", EvaluationRow)
    if not (searches or measured or learned):
        raise UserError(f"no finished run in {', '.join(map(str, paths))}")
    return Gathered(
        _searched_frame(_with_tasks_named(searches, sets)),
        _measured_frame(measured),
        _learned_frame(learned),
        references,
    )


def _search(folder: Path, sets: dict[str, str]) -> _Search:
    """Read a search; name its tasks by a digest that tells sets of them apart, and describe them in `sets`."""
    _need_files(folder, "results.parquet", "tasks.json")
    run = SearchRun.load(folder)
    path = folder / "results.parquet"
    wanted = [field.name for field in fields(SearchRow)]
    rows = typed([{name: getattr(record, name) for name in wanted} for record in run.records], SearchRow, path)
    digest = hashlib.sha256((folder / "tasks.json").read_bytes()).hexdigest()
    if digest not in sets:  # the runs of a sweep have the same tasks
        sets[digest] = _described(folder / "tasks.json")
    return NamedRun(str(folder), digest, run.searcher, run.model, run.settings), rows


def _with_tasks_named(searches: Sequence[_Search], sets: Mapping[str, str]) -> list[_Search]:
    """Name tasks by what they are; sets that look alike are numbered."""
    alike: dict[str, list[str]] = {}
    for digest, text in sets.items():
        alike.setdefault(text, []).append(digest)
    names = {
        digest: text if len(digests) == 1 else f"{text} (set {number})"
        for text, digests in alike.items()
        for number, digest in enumerate(digests, 1)
    }
    return [(replace(run, tasks=names[run.tasks]), rows) for run, rows in searches]


def _need_files(folder: Path, *names: str) -> None:
    """Raise UserError for what is no file: a pipe would be waited for without end."""
    for name in names:
        if not (folder / name).is_file():
            raise UserError(f"no file {folder / name}; delete the run's directory, or run it again")


def _references(path: Path) -> dict[str, float]:
    content = read_json(path, "policy")
    card = content.get("card") if isinstance(content, dict) else None
    if not isinstance(card, dict) or "references_ms" not in card:
        raise UserError(f"{path}: card: field 'references_ms' is missing")
    return parse(card["references_ms"], dict[str, NonNegative], f"{path}: references_ms")


def _searched_frame(searches: Sequence[_Search]) -> pd.DataFrame:
    names = named([run for run, _ in searches])
    rows = [
        asdict(row) | {"tasks": run.tasks, "path": run.path, "solved": row.error is None} | asdict(names[run.path])
        for run, found in searches
        for row in found
    ]
    return _frame(rows, _SEARCHED, [*_COSTS, "value"])


def _measured_frame(measured: dict[str, tuple[EvaluationRow, ...]]) -> pd.DataFrame:
    rows = [
        asdict(row) | {"run": path, "solved": row.measured_ms is not None}
        for path, found in measured.items()
        for row in found
    ]
    return _frame(rows, _MEASURED, [*_COSTS, "measured_ms"])


def _learned_frame(learned: dict[str, tuple[TrainingRow, ...]]) -> pd.DataFrame:
    rows = [asdict(row) | {"run": path, "method": Path(path).name} for path, found in learned.items() for row in found]
    return _frame(rows, _LEARNED, ["valid_ms"])


def _frame(rows: Sequence[dict[str, Any]], columns: list[str], numbers: Sequence[str]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=columns)
    kinds = dict.fromkeys(numbers, "float64") | ({"solved": "bool"} if "solved" in columns else {})
    return frame.astype(kinds)


def _described(path: Path) -> str:
    """What the tasks of a run are, for people.

    Raises:
        UserError: the file is malformed.
    """
    tasks = from_file(str(path))
    counts = sorted({len(task.tables) for task in tasks})
    devices = ", ".join(map(str, sorted({task.topology.num_devices for task in tasks})))
    batches = ", ".join(f"{batch_size:,}" for batch_size in sorted({task.batch_size for task in tasks}))
    widest = max(table.dim for task in tasks for table in task.tables)
    tables = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    many = "1 task" if len(tasks) == 1 else f"{len(tasks):,} tasks"
    return f"{many} of {tables} tables, dims up to {widest}, {devices} devices, batch {batches}"
