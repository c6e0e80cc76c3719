"""The search run: one searcher, many tasks."""

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from neuroshard.errors import InfeasibleError
from neuroshard.hardware.fingerprint import versions
from neuroshard.models import CostModels
from neuroshard.progress import progress_bar
from neuroshard.search.base import Searcher
from neuroshard.search.runs import SearchRecord, SearchRun, claim_directory
from neuroshard.simulator import Simulator
from neuroshard.task import Task
from neuroshard.tasks import save_tasks

_SHOWN_TASKS = 20


@dataclass(frozen=True)
class Search:
    """Everything `neuroshard search` needs.

    Attributes:
        model: path of a bundle.
        tasks: what is searched.
        searcher: how; `method` is its name in results.
        out: a directory for the run; None takes the next free one under runs/search.
    """

    model: str
    tasks: tuple[Task, ...]
    searcher: Searcher
    method: str
    out: str | None

    def run(self) -> "SearchResult":
        """Search every task; a task without a plan is recorded with its error.

        Raises:
            InfeasibleError: there is one task only, and it has no plan.
        """
        simulator = Simulator(CostModels.load(self.model))
        for task in self.tasks:
            simulator.models.check(task)
        first = _search_one(self.searcher, self.tasks[0], simulator)
        if len(self.tasks) == 1 and isinstance(first.found, InfeasibleError):
            raise first.found
        directory = claim_directory(self.out, "search", self.method)
        save_tasks(directory / "tasks.json", self.tasks)
        records = []
        with progress_bar() as progress:
            bar = progress.add_task(self.method, total=len(self.tasks))
            for number, task in enumerate(self.tasks):
                timed = first if number == 0 else _search_one(self.searcher, task, simulator)
                records.append(self._record(directory, number, timed, simulator))
                progress.advance(bar)
        run = SearchRun(directory, self.method, tuple(records))
        settings: dict[str, Any] = asdict(self.searcher) if is_dataclass(self.searcher) else {}
        run.save({"settings": settings, "model": self.model, "versions": versions()})
        return SearchResult(run, self.tasks)

    def _record(self, directory: Any, number: int, timed: "_Timed", simulator: Simulator) -> SearchRecord:
        if isinstance(timed.found, InfeasibleError):
            return SearchRecord(number, None, str(timed.found), float("nan"), timed.seconds)
        name = f"plans/task-{number:04d}.json"
        timed.found.save(directory / name)
        cost = simulator.cost(timed.found.task, timed.found)
        remark = self.searcher.remark(timed.found.task, simulator, timed.found)
        warnings = "\n".join(simulator.warnings(timed.found)) or None
        return SearchRecord(number, name, None, cost.total_ms, timed.seconds, cost.margin_ms, remark, warnings)


@dataclass(frozen=True)
class _Timed:
    found: Any
    seconds: float


def _search_one(searcher: Searcher, task: Task, simulator: Simulator) -> _Timed:
    start = time.perf_counter()
    try:
        found: Any = searcher.search(task, simulator)
    except InfeasibleError as error:
        found = error
    return _Timed(found, time.perf_counter() - start)


@dataclass(frozen=True)
class SearchResult:
    """A run and its tasks."""

    saved: SearchRun
    tasks: tuple[Task, ...]

    def show(self, console: Console) -> None:
        """Print a row for every task (the first 20), and the summary."""
        grid = Grid(title=f"{self.saved.searcher}: {self.saved.path}")
        for column in ("task", "tables", "devices", "predicted ms", "search s"):
            grid.add_column(column, justify="right")
        for record in self.saved.records[:_SHOWN_TASKS]:
            task = self.tasks[record.task]
            margin = "" if np.isnan(record.margin_ms) else f" ± {record.margin_ms:.2f}"
            cost = "no plan" if record.error is not None else f"{record.predicted_ms:.2f}{margin}"
            grid.add_row(
                str(record.task), str(len(task.tables)), str(task.topology.num_devices), cost, f"{record.seconds:.3f}"
            )
        console.print(grid)
        for record in self.saved.records[:_SHOWN_TASKS]:
            if record.remark is not None:
                console.print(f"task {record.task}: {record.remark}", markup=False, highlight=False)
        if len(self.saved.records) > _SHOWN_TASKS:
            console.print(f"... and {len(self.saved.records) - _SHOWN_TASKS} more in results.parquet")
        solved = [record for record in self.saved.records if record.error is None]
        mean = f", mean predicted {np.mean([r.predicted_ms for r in solved]):.2f} ms" if solved else ""
        seconds = np.mean([record.seconds for record in self.saved.records])
        console.print(f"solved {len(solved)} of {len(self.tasks)} tasks{mean}, mean search {seconds:.3f} s")
        console.print(f"plans: {self.saved.path / 'plans'}")
        for warning in self._warnings():
            console.print(f"warning: {warning}", style="yellow", markup=False, highlight=False)

    def _warnings(self) -> Iterator[str]:
        """One line for each quantity that lies outside the models' range, from the first task where it does."""
        found: dict[str, list[str]] = defaultdict(list)
        for record in self.saved.records:
            for warning in (record.warnings or "").splitlines():
                found[warning.split(":")[0]].append(f"task {record.task}: {warning}")
        for lines in found.values():
            yield lines[0] + (f" (and in {len(lines) - 1} more tasks)" if len(lines) > 1 else "")
