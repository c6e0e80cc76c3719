"""The results of runs as tables; each run has a name that distinguishes the run from the other runs."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd

from neuroshard.measure.store.run_directory import RunDirectory, RunFile, flat, runs_below
from neuroshard.plumbing import parquet
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import by_place, digest_of, read_json
from neuroshard.plumbing.grouping import grouped
from neuroshard.plumbing.schema import Count, Name, NonNegative, parse
from neuroshard.stages.search.results.search_results import SearchRun
from neuroshard.tasks.draw import from_file

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?"
_SETTING = re.compile(rf"([\w.]+)=({_NUMBER})")
_LARGEST = 1e18
_SEED = "seed"  # a number that is not a quantity
_MOST_DIFFERENCES = 3  # with more differing settings, runs are named by their directories
_COSTS = ["predicted_ms", "margin_ms", "seconds"]
_SEARCHED = ["tasks", "method", "setting", "value", "task", *_COSTS, "solved", "path", "caveat"]
_MEASURED = ["run", "method", "task", *_COSTS, "measured_ms", "solved"]
_LEARNED = ["run", "method", "round", "valid_ms"]
_Search = tuple[str, SearchRun]  # a description of the tasks, and the run


@dataclass(frozen=True)
class RunName:
    """The name of a run, which distinguishes the run from all other runs on the same tasks. If the run is part of a
    sweep, the name includes the setting that the sweep varies, and the value of this setting in the run.
    """

    method: str
    setting: str | None
    value: float | None


def named(runs: Sequence[tuple[str, SearchRun]]) -> dict[Path, RunName]:
    """Return a different name for each run, as a dict from the path of the run to the name. Each entry of `runs` is a
    pair: a description of the run's tasks, and the run.

    Runs of one method on the same tasks are distinguished by their settings, or otherwise by their paths. A method
    named "setting=number" is part of a sweep, and so are runs that differ in only one number other than a seed.
    """
    groups = grouped(runs, lambda tasks_and_run: (tasks_and_run[0], tasks_and_run[1].searcher)).values()
    return {path: name for group in groups for path, name in _of_group([run for _, run in group]).items()}


def _of_group(group: Sequence[SearchRun]) -> dict[Path, RunName]:
    """Return a different name for each run in a group, as a dict from the path of the run to the name. All runs of the
    group used the same method on the same tasks, so the names add the settings in which the runs differ, or the paths
    of the runs.
    """
    settings = {run.path: flat(run.settings) for run in group}
    keys = dict.fromkeys(key for own in settings.values() for key in own)
    differing = [key for key in keys if len({repr(own.get(key)) for own in settings.values()}) > 1]
    marks = {run.path: tuple(f"{key}={settings[run.path].get(key)}" for key in differing) for run in group}
    if len(differing) > _MOST_DIFFERENCES or len(set(marks.values())) < len(group):
        marks = {run.path: (str(run.path),) for run in group}
    swept = _swept(differing[0], settings) if len(differing) == 1 else {}
    return {run.path: _name(run.searcher, marks[run.path], differing, swept.get(run.path)) for run in group}


def _name(method: str, marks: Sequence[str], differing: Sequence[str], value: float | None) -> RunName:
    suffix = f" ({', '.join(marks)})" if marks else ""
    if value is not None:
        return RunName(method + suffix, f"{differing[0]} of {method}", value)
    if (match := _SETTING.fullmatch(method)) and _is_number(float(match[2])):
        return RunName(method + suffix, match[1] + suffix, float(match[2]))
    return RunName(method + suffix, None, None)


def _swept(key: str, settings: Mapping[Path, Mapping[str, Any]]) -> dict[Path, float]:
    """Return the value of the setting `key` in each run, as a dict from the path of the run to the value. The dict is
    empty if the setting is a seed, if two runs have the same value, or if some value is not a number.
    """
    values = {path: own.get(key) for path, own in settings.items()}
    numbers = {path: float(value) for path, value in values.items() if value is not None and _is_number(value)}
    if key.rpartition(".")[2] == _SEED or len(set(numbers.values())) < len(values):
        return {}
    return numbers


def _is_number(value: object) -> bool:
    """Return True if a value is a number that a figure can show."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -_LARGEST <= value <= _LARGEST


@dataclass(frozen=True)
class _EvaluationRow:
    """The result of an evaluation for one plan; unknown values are None."""

    method: Name
    task: Count
    predicted_ms: NonNegative | None
    margin_ms: NonNegative | None
    measured_ms: NonNegative | None
    seconds: NonNegative | None


@dataclass(frozen=True)
class _TrainingRow:
    """A round of a training, with the mean cost of the policy's plans for the validation tasks;
    the cost is infinite if the policy found no plan.
    """

    round: Count
    valid_ms: float | None


@dataclass(frozen=True, eq=False)
class Gathered:
    """The results of searches, evaluations and trainings in three tables. The table `searched` has a row for each task
    of every search, `measured` has a row for each plan of every evaluation, and `learned` has a row for each round of
    every training.

    Attributes:
        searched: tasks (a description), method, setting and value (in a sweep over a number; otherwise None and NaN),
            task, predicted_ms, margin_ms, seconds, solved, path, caveat (of the predicted cost).
        measured: run, method, task, predicted_ms, margin_ms, seconds, measured_ms, solved.
        learned: run, method, round, valid_ms.
        references: ms of other methods on a training's validation tasks, by run.
    """

    searched: pd.DataFrame
    measured: pd.DataFrame
    learned: pd.DataFrame
    references: dict[str, dict[str, float]]


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """Return the directories of all runs in `paths` and below, each directory only once.

    Raises:
        UserError: a directory does not exist.
    """
    for path in paths:
        if not path.is_dir():
            raise UserError(
                "report-directory-missing",
                f"'{path}' is not a directory",
                remedy="Give directories that contain runs",
            )
    found = [run.path for path in paths for run in runs_below(path)]
    return sorted((same[0] for same in by_place(found)), key=_natural)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Return a key that sorts paths by the numbers in the paths, so that 8 comes before 16."""
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in re.split(r"(\d+)", str(path))]


def gather(paths: Sequence[Path]) -> Gathered:
    """Return tables with the results of all runs in `paths` and below.

    Raises:
        UserError: a directory does not exist, there is no finished run, or a run is damaged.
    """
    searches: list[_Search] = []
    evaluated: list[dict[str, Any]] = []
    rounds: list[dict[str, Any]] = []
    references: dict[str, dict[str, float]] = {}
    sets: dict[str, str] = {}
    finished = False
    for folder in find_runs(paths):
        run = RunDirectory(folder).read()
        finished = finished or run is not None
        match run:
            case RunFile("search"):
                searches.append(_search(folder, sets))
            case RunFile("train-policy"):
                _need_files(folder, "curve.parquet", "policy.json")
                rows = _read_rows(folder / "curve.parquet", _TrainingRow)
                rounds += [row | {"run": str(folder), "method": folder.name} for row in rows]
                references[str(folder)] = _references(folder / "policy.json")
            case RunFile("evaluate"):
                _need_files(folder, "results.parquet")
                rows = _read_rows(folder / "results.parquet", _EvaluationRow)
                evaluated += [row | {"run": str(folder), "solved": row["measured_ms"] is not None} for row in rows]
    if not finished:
        raise UserError(
            "report-no-finished-run",
            f"no finished run was found in {', '.join(repr(str(path)) for path in paths)}",
            remedy="Finish the runs, or give other directories",
        )
    searched = _searched(_with_tasks_named(searches, sets))
    return Gathered(_frame(searched, _SEARCHED), _frame(evaluated, _MEASURED), _frame(rounds, _LEARNED), references)


def _read_rows(path: Path, row_type: type[_EvaluationRow | _TrainingRow]) -> list[dict[str, Any]]:
    """Return the rows of a Parquet file, with only the columns that are fields of `row_type`; NaN becomes None.

    Raises:
        UserError: the file is missing or unreadable, lacks a column, or has a wrong value; the error names the row.
    """
    wanted = {field.name for field in fields(row_type)}
    rows = [
        {name: _unless_nan(value) for name, value in row.items() if name in wanted}
        for row in parquet.read_rows(path, "results of a run")
    ]
    return [asdict(parse(row, row_type, f"{path}, row {number}")) for number, row in enumerate(rows)]


def _unless_nan(value: object) -> object:
    return None if isinstance(value, float) and math.isnan(value) else value


def _search(folder: Path, sets: dict[str, str]) -> _Search:
    """Read the search run in a directory. Return a pair: a digest that identifies the tasks of the run, and the run.
    The dict `sets` has a description of the tasks for each digest; if the digest is not in `sets`, add the description.
    """
    _need_files(folder, "results.parquet", "tasks.json")
    run, digest = SearchRun.load(folder), digest_of(folder / "tasks.json")
    if digest not in sets:  # the runs of a sweep share their tasks
        sets[digest] = _described(folder / "tasks.json")
    return digest, run


def _with_tasks_named(searches: Sequence[_Search], sets: Mapping[str, str]) -> list[_Search]:
    """Replace the digest of the tasks by a description of the tasks in each pair of `searches`, and return the new
    pairs. A pair in `searches` has the digest and the search run. The dict `sets` has the description for each digest.

    Different sets of tasks with the same description are numbered. If several cost models predicted the costs, the
    description names the models, because costs can be compared only within one set of models.
    """
    alike = grouped(sets, lambda digest: sets[digest])
    names = {
        digest: text if len(digests) == 1 else f"{text} (set {number})"
        for text, digests in alike.items()
        for number, digest in enumerate(digests, 1)
    }
    several = len({_predicted_by(run) for _, run in searches}) > 1
    return [(f"{names[digest]}{_predicted_by(run) if several else ''}", run) for digest, run in searches]


def _predicted_by(run: SearchRun) -> str:
    """Return text such as ", predicted by h100": the name of the cost models that predicted the costs of a search."""
    return f", predicted by {run.model}{', with the input dist' if run.count_input else ''}"


def _need_files(folder: Path, *names: str) -> None:
    """Raise UserError if the directory `folder` of a run lacks one of the files `names`.

    Pipes do not count as files, because reading from a pipe would never end.
    """
    for name in names:
        if not (folder / name).is_file():
            raise UserError(
                "run-file-missing",
                f"there is no file '{folder / name}'",
                limit="a finished run has this file",
                remedy=f"Delete the directory '{folder}', or run the command that wrote this run again",
            )


def _references(path: Path) -> dict[str, float]:
    content = read_json(path, "policy")
    card = content.get("card") if isinstance(content, dict) else None
    if not isinstance(card, dict) or "references_ms" not in card:
        raise UserError(
            "policy-references-missing",
            "field 'references_ms' is missing",
            where=f"{path}: card",
            remedy="Train the policy again with `neuroshard train-policy`",
        )
    return parse(card["references_ms"], dict[str, NonNegative], f"{path}: references_ms")


def _searched(searches: Sequence[_Search]) -> list[dict[str, Any]]:
    names = named(searches)
    return [
        asdict(record)
        | {"tasks": tasks, "path": str(run.path), "solved": record.error is None}
        | asdict(names[run.path])
        for tasks, run in searches
        for record in run.records
    ]


def _frame(rows: Sequence[dict[str, Any]], columns: list[str]) -> pd.DataFrame:
    dtypes = {name: "float64" for name in columns if name.endswith("_ms") or name in ("seconds", "value")}
    return pd.DataFrame(rows, columns=columns).astype(dtypes | ({"solved": "bool"} if "solved" in columns else {}))


def _described(path: Path) -> str:
    """Return a description of the tasks in the file `path` as text for readers of a report: the numbers of tasks,
    tables and devices, the widest dim, and the batch size.

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
