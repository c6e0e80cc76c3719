"""Measure plans by kernels and exchanges, one by one: `evaluate measure=kernels` and `search verify=kernels`.

`Means` is the interface of all ways to measure plans; two other modules have the other ways.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import pandas as pd
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from neuroshard.cost.cost import Cost
from neuroshard.hardware import Hardware
from neuroshard.hardware.hardware import Warn
from neuroshard.lab.plan_costs import Advance, PlanRecords, measure_plans, steps
from neuroshard.lab.recorder import meters_of
from neuroshard.plans.picture import plan_png
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import digest_of, write_atomically
from neuroshard.plumbing.journal import Journal
from neuroshard.plumbing.parquet import write_frame
from neuroshard.plumbing.progress import Result, print_lines, printer, progress_bar
from neuroshard.records.run_directory import RunDirectory
from neuroshard.stages.search.results.candidate_plan_files import MeasuredOnce, Pass
from neuroshard.stages.search.results.comparison import (
    Evaluated,
    comparison,
    failures,
    grid_of,
    plans_of,
    runnable_by_task,
    trust_lines,
)
from neuroshard.tasks.task import Task
from neuroshard.words.fingerprint import Fingerprint, versions

# Measures plans of one task once, in order. The number is the seed of the lookups, the callback receives the progress,
# and measurements that models can be fitted to are stored in the run's directory.
Measure = Callable[[Sequence[Plan], int, Advance, Path], list[MeasuredOnce]]
Drawn = tuple[str, Callable[[], bytes]]  # the name of the file, and the function that draws the picture
Kept = TypeVar("Kept")
_SHOWN_ERRORS = 3


class Means(Protocol):
    """A way to measure plans: the candidate plans of a search in passes, or the plans of an evaluation.

    Attributes:
        framework: the framework whose training steps are measured; None if no steps are measured.
    """

    framework: ClassVar[str | None]

    def check(self, tasks: Sequence[Task], plans: Sequence[Sequence[Plan]], hardware: Hardware) -> None:
        """Raise UserError if plans of these tasks, or the given plans of each task together,
        cannot be measured in this way.
        """
        ...

    def follow(self, hardware: Hardware) -> None:
        """Take part in the measurements, as one of torchrun's processes other than rank 0."""
        ...

    def opened(
        self, tasks: Sequence[Task], hardware: Hardware, count_input: bool, warn: Warn
    ) -> AbstractContextManager[Measure]:
        """Start the processes that these tasks need; they end with the context.

        Raises:
            UserError: torchrun started another number of processes than a task has devices.
        """
        ...

    def amount(self, plans: Sequence[Plan], count_input: bool) -> int:
        """Return the total progress that measuring these plans once reports."""
        ...

    def evaluated(
        self, entries: Sequence[Evaluated], hardware: Hardware, seed: int, count_input: bool, directory: RunDirectory
    ) -> Result:
        """Measure the plans that can be run, and write the results into the directory, which must be locked.

        Raises:
            UserError: the plans cannot be measured in this way, or the directory has another run.
        """
        ...


def begun(
    entries: Sequence[Evaluated],
    measure: str,
    settings: Mapping[str, object],
    hardware: Hardware,
    seed: int,
    run: RunDirectory,
) -> tuple[dict[int, list[Evaluated]], tuple[Task, ...], dict[str, object]]:
    """Start an evaluation, or resume it; a resumed evaluation may have more builds.

    Returns:
        The entries with plans that can be run, by the number of their task; these tasks; and the content of `run.json`.

    Raises:
        UserError: the directory has another run.
    """
    by_task = runnable_by_task(entries)
    tasks = tuple(plans_of(entries_of_task)[0].task for entries_of_task in by_task.values())
    here = asdict(hardware.fingerprint)
    facts = {"measure": measure, **settings, "hardware": here, "seed": seed, "versions": versions()}
    fixed = {name: value for name, value in facts.items() if name != "builds"}
    fixed |= {"hardware": asdict(hardware), "measured on": here}
    files = [entry.file for entry in entries]
    contents = digest_of(*(Path(file) for file in files if file is not None))
    run.begin({**fixed, "plans": files, "digest of plans": contents}, tasks)
    return by_task, tasks, facts


@dataclass(frozen=True)
class EvaluateResult(Generic[Kept]):
    """The measurements of plans, their files, and their presentation for people.

    Attributes:
        path: directory of the run.
        entries: the plans.
        frames: rows of the written files, by the files' names.
        shown: tables and lines for people.
        tasks: results of each task's plans together.
        picture: a picture of the results; None if there is none.
    """

    path: Path
    entries: tuple[Evaluated, ...] = field(repr=False)
    frames: Mapping[str, list[dict[str, Any]]] = field(repr=False)
    shown: Sequence[Grid | str] = field(repr=False)
    tasks: tuple[Kept, ...] = field(default=(), repr=False)
    picture: Drawn | None = None

    def save(self, facts: Mapping[str, object]) -> None:
        """Write the frames, `run.json` with the facts, and the picture."""
        for name, rows in self.frames.items():
            write_frame(self.path / f"{name}.parquet", pd.DataFrame(rows))
        RunDirectory(self.path).finish("evaluate", facts)
        if self.picture is not None:
            name, draw = self.picture
            write_atomically(self.path / name, draw())

    def show(self, console: Console) -> None:
        """Print the tables and lines, and the paths of the files."""
        files = [f"results: {self.path}"]
        files += [] if self.picture is None else [f"picture: {self.path / self.picture[0]}"]
        for table_or_line in (*self.shown, *files):
            if isinstance(table_or_line, str):
                print_lines(console, [table_or_line])
            else:
                console.print(table_or_line)


@dataclass(frozen=True)
class InParts:
    """Measures kernels and exchanges one by one, which are the costs that cost models predict."""

    framework: ClassVar[str | None] = None

    def check(self, tasks: Sequence[Task], plans: Sequence[Sequence[Plan]], hardware: Hardware) -> None:
        """Raise UserError if exchanges on this machine have other hosts than the tasks."""
        for task in tasks:
            hardware.check_hosts(task.topology)

    def follow(self, hardware: Hardware) -> None:
        """Take part in the exchanges."""
        hardware.follow()

    @contextmanager
    def opened(self, tasks: Sequence[Task], hardware: Hardware, count_input: bool, warn: Warn) -> Iterator[Measure]:
        """Yield the function that measures plans; its processes stay alive for all passes."""
        # The records of a run are read at its first measurement.
        records = cache(partial(PlanRecords.of_run, hardware=hardware))
        with meters_of(hardware, warn) as meters:
            meters.join(task.topology for task in tasks)

            def measured(plans: Sequence[Plan], seed: int, advance: Advance, run: Path) -> list[MeasuredOnce]:
                """Measure every plan once."""
                costs = measure_plans(meters, plans, seed, advance, count_input, records(run))
                return [*map(MeasuredOnce.of, costs)]

            yield measured

    def amount(self, plans: Sequence[Plan], count_input: bool) -> int:
        """Return the number of kernel calls and exchanges."""
        return steps(plans, count_input)

    def evaluated(
        self, entries: Sequence[Evaluated], hardware: Hardware, seed: int, count_input: bool, directory: RunDirectory
    ) -> EvaluateResult[Any]:
        """Measure all plans once, plans of one task together; tasks that are on disk already are not measured again.

        Raises:
            UserError: nothing could be measured, predictions count other parts of the step, or the directory has
                another run.
        """
        _check_predictions(entries, count_input)
        counted = {"count_input": True} if count_input else {}
        by_task, tasks, facts = begun(entries, "kernels", counted, hardware, seed, directory)
        with progress_bar() as progress, self.opened(tasks, hardware, count_input, printer(progress)) as measure:
            amount = sum(self.amount(plans_of(entries_of_task), count_input) for entries_of_task in by_task.values())
            bar = progress.add_task("kernels and exchanges", total=amount)

            def measured(task: int) -> Sequence[MeasuredOnce]:
                """Return the measurements of the task's plans; measure them if they are not on disk."""
                plans = plans_of(by_task[task])
                journal = _tasks_in(directory.path, plans)
                if (once := journal.get(task)) is None:
                    once = Pass(tuple(measure(plans, seed, partial(progress.advance, bar), directory.path)))
                    journal.keep(task, once)
                else:
                    progress.advance(bar, self.amount(plans, count_input))
                return once.plans

            took = {task: iter(measured(task)) for task in by_task}
        done = [_with(entry, next(took[entry.task]).outcome) if entry.runnable else entry for entry in entries]
        result = _result(directory.path, done, hardware.fingerprint)
        result.save(facts)
        if all(entry.measured is None for entry in done):
            first = next(entry.error for entry in done if entry.error is not None)
            raise UserError(
                "evaluate-nothing-measured",
                "none of the plans could be measured",
                limit=f"the first error is: {first}",
                remedy=f"Read the errors of all plans in the file '{directory.path / 'results.parquet'}', correct the "
                "cause, and evaluate the plans again with another out=DIRECTORY",
            )
        return result


def _check_predictions(entries: Sequence[Evaluated], count_input: bool) -> None:
    """Raise UserError if only the measured costs or only the predicted costs would count the input dist."""
    for entry in entries:
        if entry.prediction is not None and entry.prediction.counts_input is not count_input:
            raise UserError(
                "count-input-differs",
                f"the predicted cost {'leaves out' if count_input else 'counts'} the input dist (exchange of indices)",
                where=entry.file or entry.method,
                limit=f"measured costs would {'count' if count_input else 'leave out'} the input dist, so the costs "
                "could not be compared",
                remedy="Remove count_input=true from this evaluation, or search again with count_input=true"
                if count_input
                else "Set count_input=true",
            )


def _with(entry: Evaluated, outcome: Cost | str) -> Evaluated:
    """Return the entry with its plan's measured cost, or with the error that stopped the measurement."""
    return replace(entry, error=outcome) if isinstance(outcome, str) else replace(entry, measured=outcome)


def _tasks_in(run: Path, plans: Sequence[Plan]) -> Journal[Pass]:
    """Return the journal of an evaluation's measurements by task; `plans` are the plans of the requested task."""

    def wrong(_number: int, measured: Pass) -> str | None:
        """Return the fault of a pass as text; None if the pass fits these plans."""
        in_steps = any(plan.step_ms is not None for plan in measured.plans)
        return "has times of training steps, not of kernels" if in_steps else measured.wrong(plans)

    return Journal(run / "tasks", "task", Pass, wrong)


def _result(path: Path, entries: Sequence[Evaluated], here: Fingerprint) -> EvaluateResult[Any]:
    """Return the result: for one plan its devices, for several plans a comparison;
    draw the cheapest plan of the first task.
    """
    solved = [(e, e.plan, e.measured) for e in entries if e.plan is not None and e.measured is not None]
    devices = [_devices(*evaluated) for evaluated in solved] if len(entries) == 1 else []
    failed = failures(entries)
    more = len(failed) - _SHOWN_ERRORS
    lines = [*trust_lines(entries, here), *failed[:_SHOWN_ERRORS]]
    lines += [f"... and {more} more failures in results.parquet"] if more > 0 else []
    frames = {
        "results": [entry.row() for entry in entries],
        "devices": [row for entry in entries for row in entry.device_rows()],
    }
    picture: Drawn | None = None
    if solved:
        shown, plan, cost = min(solved, key=lambda evaluated: (evaluated[0].task, evaluated[0].measured_ms))
        title = f"{shown.method}, task {shown.task}: {cost.total_ms:.1f} ms measured"
        picture = "plan.png", lambda: plan_png(plan, cost, title)
    return EvaluateResult(path, tuple(entries), frames, [*devices, comparison(entries), *lines], picture=picture)


def _devices(entry: Evaluated, plan: Plan, cost: Cost) -> Grid:
    """Return a table of a plan's devices."""
    columns = {
        "device": [str(device) for device in range(len(plan.device_tables))],
        "shards": [str(len(tables)) for tables in plan.device_tables],
        "dims": [str(dims) for dims in plan.device_dims],
        "MiB": [f"{size / 2**20:.1f}" for size in plan.device_bytes],
        **{f"{part.name} ms": [f"{ms:.2f}" for ms in part.ms] for part in cost.parts},
        "total ms": [f"{ms:.2f}" for ms in cost.device_ms],
    }
    return grid_of(Text(f"{entry.file}, measured"), columns, words=0)
