"""Directories of runs.
A run claims a directory, can be resumed in this directory after it was killed, and marks the directory when the run is
finished.

`settings.json` and `tasks.json` have the settings and tasks with which a run was started. `run.json`, written last,
shows that the run is finished; it has the kind of run and further results.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import check_directory, exclusive, read_json, write_json
from neuroshard.plumbing.schema import of_format, parse, shown
from neuroshard.tasks.draw import from_file, save_tasks
from neuroshard.tasks.task import Task

_MARKS = {
    "run.json": "a run",
    "settings.json": "a run",
    "manifest.json": "measurements",
    "bundle.json": "a bundle of models",
    "policy.json": "a policy",
}


def check_nothing_else(path: Path, own: Collection[str]) -> None:
    """Raise UserError if a directory contains a marker file that is not in `own`.
    A marker file, such as manifest.json, shows what type of data the directory contains.
    """
    for name, what in _MARKS.items():
        if name not in own and (path / name).exists():
            raise UserError(
                "out-other-contents",
                f"the directory '{path}' contains {what} ({name})",
                limit="the files of this command must not be mixed with other files",
                remedy="Choose another directory with out=DIRECTORY",
            )


RunKind = Literal["search", "evaluate", "train-policy"]

_FORMAT = "neuroshard-run-2"
_RUN, _SETTINGS, _TASKS = "run.json", "settings.json", "tasks.json"
READS = "reads"  # the setting with the digests of the files that a run reads


@dataclass(frozen=True)
class RunFile:
    """The content of `run.json`: the kind of run, such as "search", and the results of the run as a dict `facts`."""

    kind: RunKind
    facts: dict[str, Any]


@dataclass(frozen=True)
class RunDirectory:
    """The directory in which a run stores settings, tasks and results.
    A directory stores the results of only one run. While a run uses the directory, other runs are locked out (`held`).
    """

    path: Path

    @classmethod
    def at(cls, out: str | None, kind: RunKind, name: str) -> "RunDirectory":
        """Return the run directory `out`.
        If `out` is None, create and return the next free directory `runs/<kind>/<number>-<name>`.
        """
        return cls(_next_free(Path("runs") / kind, name) if out is None else Path(out))

    @contextmanager
    def held(self, marks: Collection[str] = (_RUN, _SETTINGS)) -> Iterator[None]:
        """Lock the directory for the duration of a `with` block, so that no other run can use the directory.
        The directory is created if it does not exist. If a new directory is still empty after the block, it is removed.

        `marks` are the marker files that runs of this kind may find in the directory.

        Raises:
            UserError: the directory is not writable, contains something else, or is used by another run.
        """
        check_directory(self.path)
        check_nothing_else(self.path, marks)
        with exclusive(self.path):
            yield

    def begin(self, settings: Mapping[str, Any], tasks: tuple[Task, ...]) -> None:
        """Write the settings and tasks of a new run.
        If a run was started in this directory before, check that the earlier settings and tasks are the same.

        Raises:
            UserError: a run with other settings or tasks was started here, or its files are damaged.
        """
        begun = self._begun()
        if begun is None:
            self.check_free()
            path = self.path / _TASKS
            write_own(path, lambda: save_tasks(path, tasks), lambda: from_file(str(path)) == tasks)
            write_json(self.path / _SETTINGS, _as_read(settings))
        else:
            check_same(self.path, begun, settings)
            if from_file(str(self.path / _TASKS)) != tasks:
                raise begun_otherwise(self.path, "other tasks")

    def check_free(self) -> None:
        """Raise UserError if a run was started in this directory, finished or not."""
        if any((self.path / name).exists() for name in (_RUN, _SETTINGS)):
            raise UserError(
                "out-has-run",
                f"the directory '{self.path}' contains a run",
                limit="each run needs a directory of its own",
                remedy="Choose another directory with out=DIRECTORY, or delete this directory",
            )

    def finish(self, kind: RunKind, facts: Mapping[str, Any]) -> None:
        """Mark the run as finished by writing `run.json`, which also contains the results in `facts`."""
        write_json(self.path / _RUN, {"format": _FORMAT, "kind": kind, **facts})

    def forget(self) -> None:
        """Remove the files that mark a started or finished run, so that another run can start."""
        for name in (_SETTINGS, _TASKS, _RUN):
            (self.path / name).unlink(missing_ok=True)

    @property
    def finished(self) -> bool:
        """True if the run in this directory is finished."""
        return (self.path / _RUN).exists()

    def read(self, what: str = "run") -> RunFile | None:
        """Return the content of `run.json`; None if the file has no field "format", because another program wrote the
        file.

        Raises:
            UserError: there is no such file, or it is malformed; `what` names the file in the error.
        """
        where = f"{what} {self.path / _RUN}"
        content = parse(read_json(self.path / _RUN, what), dict[str, Any], where)
        if "format" not in content:
            return None
        facts = of_format(content, _FORMAT, where)
        return parse({"kind": facts.pop("kind", None), "facts": facts}, RunFile, where)

    def facts(self, kind: RunKind) -> dict[str, Any]:
        """Return the results that a finished run of this kind stored in `run.json`.
        Raise UserError if the directory does not contain a finished run of this kind.
        """
        run = self.read(f"{kind} run")
        if run is None or run.kind != kind:
            raise UserError(
                "run-other-kind",
                f"the directory '{self.path}' does not contain a run of `neuroshard {kind}`",
                limit="" if run is None else f"the run in this directory is of kind {run.kind!r}",
                remedy=f"Give the directory that was set as out= of a finished run of `neuroshard {kind}`",
            )
        return run.facts

    def _begun(self) -> dict[str, Any] | None:
        """Return the settings with which a run was started in this directory; None if no run was started."""
        path = self.path / _SETTINGS
        return parse(read_json(path, "settings"), dict[str, Any], f"settings {path}") if path.exists() else None


def runs_below(path: Path) -> Iterator[RunDirectory]:
    """Yield the directory of every finished run in `path` and in the subdirectories."""
    return (RunDirectory(file.parent) for file in path.rglob(_RUN) if file.is_file())


def write_own(path: Path, write: Callable[[], None], is_same: Callable[[], bool]) -> None:
    """Write the file `path` at the start of a run, by calling `write`, if the file does not exist.
    If the file exists, `is_same` must return True. In this case an earlier start of the same run wrote the file and was
    then killed, so nothing is written.

    Raises:
        UserError: another file has that name.
    """
    if not path.exists():
        write()
        return
    try:
        same = is_same()
    except UserError:
        same = False
    if not same:
        raise UserError(
            "out-file-differs",
            f"the file '{path}' exists, and differs from the file that this run would write",
            remedy="Move the file to another directory, or choose another directory with out=DIRECTORY",
        )


def check_same(directory: Path, begun: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise UserError if the settings of a run differ now from the settings at the start of the run.
    The error names the first difference.

    `begun` are settings as JSON returns them. A missing setting equals a setting that is null.
    """
    before, after = flat(begun), flat(_as_read(now))
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            was, now_is = shown(before.get(key)), shown(after.get(key))
            of_files = "other models, plans or policies: the content of a file that the run reads has changed"
            raise begun_otherwise(directory, of_files if key == READS else f"{key}={was}, not {now_is}")


def begun_otherwise(directory: Path, what: str) -> UserError:
    """Return the error for a directory with a run that was started with other settings, tasks or tables than the
    current run. `what` describes the difference, such as "other tasks".
    """
    return UserError(
        "out-begun-otherwise",
        f"the directory '{directory}' contains a run that was begun with {what}",
        remedy="Do one of these: use the settings and files of that run, to resume the run; or choose another "
        "directory (out=DIRECTORY)",
    )


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings as one flat dictionary, with dotted names as keys: {"a": {"b": 1}} becomes {"a.b": 1}."""
    flattened: dict[str, Any] = {}
    for key, value in settings.items():
        flattened |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flattened


def _as_read(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings as if they were read from JSON: lists instead of tuples, and text as keys."""
    plain: dict[str, Any] = json.loads(json.dumps(settings))
    return plain


def _next_free(parent: Path, name: str) -> Path:
    """Create and return the next free numbered directory in `parent`."""
    parent.mkdir(parents=True, exist_ok=True)
    numbers = [int(match[1]) for entry in parent.iterdir() if (match := re.match(r"([0-9]{4})", entry.name))]
    number = 1 + max(numbers, default=0)
    while True:
        path = parent / f"{number:04d}-{name}"
        try:
            path.mkdir()
        except FileExistsError:
            number += 1  # another run has just created it
        else:
            return path


@dataclass(frozen=True)
class JobFigures:
    """Results of a finished search by which searches can be compared, such as the predicted costs and the search time.

    Attributes:
        tasks: digest of the searched tasks; costs can be compared if the digests are equal.
        costs_ms: predicted cost of each task; None for a task without a plan.
        seconds: search time, mean over the tasks.
        devices: number of devices; None if the tasks have different numbers of devices.
        headroom_bytes: smallest free memory of a device over all plans, in bytes; None without a plan.
        scopes: the kinds of work that the costs include, usually one text for all tasks.
    """

    tasks: str
    costs_ms: tuple[float | None, ...]
    seconds: float
    devices: int | None = None
    headroom_bytes: int | None = None
    scopes: tuple[str, ...] = ()

    @property
    def solved(self) -> frozenset[int]:
        """The indices of the tasks that have a plan, counted from 0."""
        return frozenset(number for number, cost in enumerate(self.costs_ms) if cost is not None)
