"""A search run while it is under way: what it has found so far outlives it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import read_json, write_json
from neuroshard.records.run_directory import RunDirectory
from neuroshard.stages.search.results.search_results import SearchRecord, SearchRun
from neuroshard.tasks.task import Task


@dataclass(frozen=True)
class Unfinished:
    """A run's directory with a record for every task that was searched.

    The records stay beside `results.parquet` when the run is finished.
    """

    path: Path

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
        """Write a task's record to its file, so that the run can be resumed."""
        write_json(self._record(record.task), record.to_json())

    def forget(self, tasks: Sequence[Task]) -> None:
        """Make room for another run in the place of one with as many tasks."""
        for number in range(len(tasks)):
            self._record(number).unlink(missing_ok=True)
        RunDirectory(self.path).forget()

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
