"""A search run while it is under way: what it has found so far outlives it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuroshard.errors import UserError
from neuroshard.files import read_json, write_json
from neuroshard.stages.search.results.search_results import SearchRecord, SearchRun, is_finished
from neuroshard.tasks.draw import from_file, save_tasks
from neuroshard.tasks.task import Task


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
            record = SearchRecord.from_json(read_json(path, "record"), f"record {path}")
            if record.task != number:
                raise UserError(f"record {path} is of task {record.task}")
        except UserError as error:
            raise UserError(f"{error}; delete it, and the task is searched again") from None
        return record

    def keep(self, record: SearchRecord) -> None:
        """Write it down."""
        write_json(self._record(record.task), record.to_json())

    def finished(self, tasks: Sequence[Task]) -> SearchRun:
        """The whole run.

        Raises:
            UserError: it is malformed, or has other tasks than `tasks`.
        """
        run = SearchRun.load(self.path)
        if len(run.records) != len(tasks):
            raise UserError(
                f"{self.path} holds results of {len(run.records)} tasks, not of {len(tasks)}; delete it and search anew"
            )
        return run

    def _record(self, number: int) -> Path:
        return self.path / "records" / f"task-{number:04d}.json"
