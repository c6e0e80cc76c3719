"""Directories that runs claim, go on in after they were killed, and mark when they are whole.

`settings.json` and `tasks.json` say what a run was begun with. `run.json`, written last, says that it is whole, which
kind of run it is, and what else there is to say of it.
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
    """Raise UserError if a directory contains a marker file, such as manifest.json, that is not in `own`."""
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
READS = "reads"  # digests of the files that a run reads, among what it depends on


@dataclass(frozen=True)
class RunFile:
    """What `run.json` says: the kind of run, and its other fields."""

    kind: RunKind
    facts: dict[str, Any]


@dataclass(frozen=True)
class RunDirectory:
    """A directory that belongs to one run at a time, and keeps the results of one run only."""

    path: Path

    @classmethod
    def at(cls, out: str | None, kind: RunKind, name: str) -> "RunDirectory":
        """Choose `out`, or make the next free `runs/<kind>/<number>-<name>`."""
        return cls(_next_free(Path("runs") / kind, name) if out is None else Path(out))

    @contextmanager
    def held(self, marks: Collection[str] = (_RUN, _SETTINGS)) -> Iterator[None]:
        """Keep other runs out of it; a run that leaves no file leaves no new directory either.

        `marks` are the files that say that what is there is of this kind.

        Raises:
            UserError: it can't be written to, holds something else, or another run is at work there.
        """
        check_directory(self.path)
        check_nothing_else(self.path, marks)
        with exclusive(self.path):
            yield

    def begin(self, settings: Mapping[str, Any], tasks: tuple[Task, ...]) -> None:
        """Write the settings and tasks of the run, or check that the run that was begun here has the same ones.

        Raises:
            UserError: a run with other settings or tasks was begun here, or its files are damaged.
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
        """Raise UserError if a run was begun here, whether it is whole or not."""
        if any((self.path / name).exists() for name in (_RUN, _SETTINGS)):
            raise UserError(
                "out-has-run",
                f"the directory '{self.path}' contains a run",
                limit="each run needs a directory of its own",
                remedy="Choose another directory with out=DIRECTORY, or delete this directory",
            )

    def finish(self, kind: RunKind, facts: Mapping[str, Any]) -> None:
        """Mark the run as whole; `facts` are for whoever reads its results."""
        write_json(self.path / _RUN, {"format": _FORMAT, "kind": kind, **facts})

    def forget(self) -> None:
        """Remove what says that a run was begun here and is whole: another may begin."""
        for name in (_SETTINGS, _TASKS, _RUN):
            (self.path / name).unlink(missing_ok=True)

    @property
    def finished(self) -> bool:
        """True if the run in this directory is finished."""
        return (self.path / _RUN).exists()

    def read(self, what: str = "run") -> RunFile | None:
        """Read what `run.json` says; None where it is another program's.

        Raises:
            UserError: there is none, or it is malformed; `what` names it.
        """
        where = f"{what} {self.path / _RUN}"
        content = parse(read_json(self.path / _RUN, what), dict[str, Any], where)
        if "format" not in content:
            return None
        facts = of_format(content, _FORMAT, where)
        return parse({"kind": facts.pop("kind", None), "facts": facts}, RunFile, where)

    def facts(self, kind: RunKind) -> dict[str, Any]:
        """Read what `run.json` says of a whole run of a kind; raise UserError if there is none, or it is malformed."""
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
        """Read the settings that a run was begun with here, if one was."""
        path = self.path / _SETTINGS
        return parse(read_json(path, "settings"), dict[str, Any], f"settings {path}") if path.exists() else None


def runs_below(path: Path) -> Iterator[RunDirectory]:
    """Yield every run in a directory and below it that was marked as whole."""
    return (RunDirectory(file.parent) for file in path.rglob(_RUN) if file.is_file())


def write_own(path: Path, write: Callable[[], None], is_same: Callable[[], bool]) -> None:
    """Write what a run begins with, unless it is there already, as after a run that was killed just then.

    Raises:
        UserError: there is something else of that name.
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
    """Raise UserError, with the first difference, unless a run about to go on has the settings that it was begun with.

    `begun` are as JSON gave them. A setting that isn't there is the same as one that is null.
    """
    before, after = flat(begun), flat(_as_read(now))
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            was, now_is = shown(before.get(key)), shown(after.get(key))
            of_files = "other models, plans or policies: the content of a file that the run reads has changed"
            raise begun_otherwise(directory, of_files if key == READS else f"{key}={was}, not {now_is}")


def begun_otherwise(directory: Path, what: str) -> UserError:
    """Make the error for a directory whose run was begun with something else."""
    return UserError(
        "out-begun-otherwise",
        f"the directory '{directory}' contains a run that was begun with {what}",
        remedy="Do one of these: use the settings and files of that run, to resume the run; or choose another "
        "directory (out=DIRECTORY)",
    )


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested settings to names with dots."""
    flattened: dict[str, Any] = {}
    for key, value in settings.items():
        flattened |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flattened


def _as_read(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Convert settings to what JSON gives back: lists for tuples, text for keys."""
    plain: dict[str, Any] = json.loads(json.dumps(settings))
    return plain


def _next_free(parent: Path, name: str) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    numbers = [int(match[1]) for entry in parent.iterdir() if (match := re.match(r"([0-9]{4})", entry.name))]
    number = 1 + max(numbers, default=0)
    while True:
        path = parent / f"{number:04d}-{name}"
        try:
            path.mkdir()
        except FileExistsError:
            number += 1  # another run has just taken it
        else:
            return path


@dataclass(frozen=True)
class JobFigures:
    """A search's figures.

    Attributes:
        tasks: digest of what was searched: costs of the same tasks compare.
        costs_ms: predicted, one for each task; None where there is no plan.
        seconds: of search, mean over the tasks.
    """

    tasks: str
    costs_ms: tuple[float | None, ...]
    seconds: float

    @property
    def solved(self) -> frozenset[int]:
        """Numbers of the tasks that have a plan."""
        return frozenset(number for number, cost in enumerate(self.costs_ms) if cost is not None)
