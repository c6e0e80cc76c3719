"""What runs left, as tables."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from neuroshard.errors import UserError
from neuroshard.files import read_json
from neuroshard.search.runs import SearchRun

_SEARCHED = ["tasks", "method", "model", "task", "predicted_ms", "margin_ms", "seconds", "solved", "path"]
_MEASURED = ["run", "method", "task", "predicted_ms", "margin_ms", "measured_ms", "seconds", "solved"]
_LEARNED = ["run", "method", "round", "valid_ms"]


@dataclass(frozen=True, eq=False)
class Gathered:
    """One row for each task of every search, for each plan of every evaluation, for each round of every training.

    Attributes:
        searched: tasks (what the tasks are), method, model, task, predicted_ms, margin_ms, seconds, solved, path.
        measured: run, method, task, predicted_ms, margin_ms, measured_ms, seconds, solved.
        learned: run, method, round, valid_ms.
        references: ms of other methods on a training's validation tasks, by run.
    """

    searched: pd.DataFrame
    measured: pd.DataFrame
    learned: pd.DataFrame
    references: dict[str, dict[str, float]]


def gather(paths: Sequence[Path]) -> Gathered:
    """All runs in the directories and below them.

    Raises:
        UserError: a directory isn't there, none holds a finished run, or a run is damaged.
    """
    for path in paths:
        if not path.is_dir():
            raise UserError(f"no directory {path}; give directories of runs")
    folders = sorted({file.parent for path in paths for file in path.rglob("run.json")})
    searched, measured, learned = [], [], []
    references: dict[str, dict[str, float]] = {}
    for folder in folders:
        content = read_json(folder / "run.json", "run")
        if not isinstance(content, dict):
            raise UserError(f"{folder / 'run.json'} is no run")
        if "searcher" in content:
            searched.append(_search(folder, content))
        elif (folder / "curve.parquet").exists():
            frame, known = _training(folder)
            learned.append(frame)
            references[str(folder)] = known
        elif (folder / "results.parquet").exists():
            measured.append(_evaluation(folder))
    if not searched + measured + learned:
        raise UserError(f"no finished run in {', '.join(map(str, paths))}")
    frames = [
        _joined(parts, columns)
        for parts, columns in ((searched, _SEARCHED), (measured, _MEASURED), (learned, _LEARNED))
    ]
    return Gathered(_told_apart(frames[0]), frames[1], frames[2], references)


def _joined(parts: Sequence[pd.DataFrame], columns: list[str]) -> pd.DataFrame:
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def _search(folder: Path, content: dict[str, Any]) -> pd.DataFrame:
    run = SearchRun.load(folder)
    tasks = describe_tasks(folder / "tasks.json")
    rows = [
        {
            "tasks": tasks,
            "method": run.searcher,
            "model": str(content.get("model")),
            "task": record.task,
            "predicted_ms": record.predicted_ms,
            "margin_ms": record.margin_ms,
            "seconds": record.seconds,
            "solved": record.error is None,
            "path": str(folder),
        }
        for record in run.records
    ]
    return pd.DataFrame(rows, columns=_SEARCHED)


def _evaluation(folder: Path) -> pd.DataFrame:
    frame = _parquet(folder / "results.parquet")
    try:
        return frame.assign(run=str(folder), solved=frame["measured_ms"].notna())[_MEASURED]
    except KeyError as error:
        raise UserError(f"{folder / 'results.parquet'} lacks a column ({error})") from None


def _training(folder: Path) -> tuple[pd.DataFrame, dict[str, float]]:
    frame = _parquet(folder / "curve.parquet")
    card = read_json(folder / "policy.json", "policy")
    try:
        references = {str(name): float(ms) for name, ms in card["card"]["references_ms"].items()}
        return frame.assign(run=str(folder), method=folder.name)[_LEARNED], references
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{folder} holds a damaged training ({error})") from None


def _parquet(path: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(path)
    except Exception as error:  # whatever the reader makes of it
        raise UserError(f"{path} can't be read: {str(error).splitlines()[0]}") from None


def describe_tasks(path: Path) -> str:
    """What the tasks of a run are, for people; a short hash tells sets apart that look alike."""
    content = read_json(path, "task file")
    try:
        tasks = content["tasks"]
        counts = sorted({len(task["tables"]) for task in tasks})
        devices = sorted({task["topology"]["num_devices"] for task in tasks})
        batches = sorted({task["batch_size"] for task in tasks})
        widest = max(table["dim"] for task in tasks for table in task["tables"])
        digest = hashlib.sha256(json.dumps(tasks, sort_keys=True).encode()).hexdigest()[:4]
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is malformed ({error})") from None
    tables = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    named = [", ".join(map(str, values)) for values in (devices, batches)]
    many = "1 task" if len(tasks) == 1 else f"{len(tasks)} tasks"
    return f"{many} of {tables} tables, dims up to {widest}, {named[0]} devices, batch {named[1]} [{digest}]"


def _told_apart(searched: pd.DataFrame) -> pd.DataFrame:
    """Methods named with their models, or their directories, where one name stands for several runs."""
    frame = searched.copy()
    for column in ("model", "path"):
        several = frame.groupby(["tasks", "method"])[column].transform("nunique") > 1
        frame.loc[several, "method"] = frame["method"] + " (" + frame[column] + ")"
    return frame
