"""A search run while it is under way: what it has found so far outlives it."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from neuroshard.errors import UserError
from neuroshard.files import read_json, write_json
from neuroshard.search.runs import SearchRecord, is_finished
from neuroshard.task import Task
from neuroshard.tasks import from_file, save_tasks

_NUMBERS = ("predicted_ms", "seconds", "margin_ms")


@dataclass(frozen=True)
class Unfinished:
    """A directory with `settings.json`, `tasks.json` and a record for every task that was searched.

    The records stay beside `results.parquet` when the run is finished.
    """

    path: Path

    def claim(self, settings: Mapping[str, Any], tasks: tuple[Task, ...]) -> None:
        """Make the directory this run's, or see that it is.

        Raises:
            UserError: it holds another one's.
        """
        known, plain = self.path / "settings.json", json.loads(json.dumps(settings))
        if not known.exists():
            if is_finished(self.path):
                raise self._taken()
            save_tasks(self.path / "tasks.json", tasks)
            write_json(known, plain)
        elif read_json(known, "settings") != plain or from_file(str(self.path / "tasks.json")) != tasks:
            raise self._taken()

    def _taken(self) -> UserError:
        return UserError(
            f"{self.path} holds a run already, with other tasks or settings; give another out=DIRECTORY or delete it"
        )

    def record(self, number: int) -> SearchRecord | None:
        """What is known of a task."""
        path = self._record(number)
        if not path.exists():
            return None
        try:
            fields = read_json(path, "record")
            return SearchRecord(**(fields | {name: _number(fields[name]) for name in _NUMBERS}))
        except (KeyError, TypeError, OverflowError) as error:
            raise UserError(f"{path} is malformed ({error}); delete it, and the task is searched again") from None

    def keep(self, record: SearchRecord) -> None:
        """Write it down."""
        fields = asdict(record)
        write_json(self._record(record.task), fields | {name: _plain(fields[name]) for name in _NUMBERS})

    def _record(self, number: int) -> Path:
        return self.path / "records" / f"task-{number:04d}.json"


def _plain(number: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(number) else number


def _number(plain: float | None) -> float:
    if plain is not None and not isinstance(plain, (int, float)):
        raise TypeError(f"{plain!r} is not a number")
    return math.nan if plain is None else float(plain)
