"""What plans are measured in, finalists and what `evaluate` is asked: here kernels and exchanges, one by one.

`Means` is what all ways have in common; training steps are in modules of their own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Protocol

import pandas as pd
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from neuroshard.cost.cost import Cost
from neuroshard.hardware import Hardware
from neuroshard.hardware.hardware import Warn
from neuroshard.lab.plan_costs import Advance, PlanRecords, measure_plans, steps
from neuroshard.lab.recorder import Meters, meters_of
from neuroshard.plans.picture import plan_png, save_png
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import digest_of
from neuroshard.plumbing.journal import Journal
from neuroshard.plumbing.parquet import write_frame
from neuroshard.plumbing.progress import Result, print_lines, printer, progress_bar
from neuroshard.records.run_directory import RunDirectory
from neuroshard.stages.search.results.comparison import (
    Evaluated,
    comparison,
    failures,
    plans_of,
    runnable_by_task,
    trust_lines,
)
from neuroshard.stages.search.results.finalist_files import MeasuredOnce, Pass
from neuroshard.tasks.task import Task
from neuroshard.words.fingerprint import versions

# What some plans of one task cost, measured once in the order that they are given in; the number fixes the lookups, and
# the next is told of what is done; what can be learned from is kept in the run's directory.
Measure = Callable[[Sequence[Plan], int, Advance, Path], list[MeasuredOnce]]
_PICTURE = "plan.png"
_SHOWN_ERRORS = 3


class Means(Protocol):
    """How plans are measured: a search's finalists in turns, or the plans that people ask about."""

    def check(self, tasks: Sequence[Task], plans: Sequence[Sequence[Plan]], hardware: Hardware) -> None:
        """Raise UserError unless plans of tasks can be measured so, and these of each task together, if any."""
        ...

    def follow(self, hardware: Hardware) -> None:
        """Take part, as one of torchrun's processes other than rank 0."""
        ...

    def opened(
        self, tasks: Sequence[Task], hardware: Hardware, count_input: bool, warn: Warn
    ) -> AbstractContextManager[Measure]:
        """Start the processes that these tasks need, and end them with the block.

        Raises:
            UserError: torchrun started another number of processes than a task has devices.
        """
        ...

    def amount(self, plans: Sequence[Plan], count_input: bool) -> int:
        """What is told of as done in all, where plans are measured once."""
        ...

    def evaluated(
        self, entries: Sequence[Evaluated], hardware: Hardware, seed: int, count_input: bool, directory: RunDirectory
    ) -> Result:
        """Measure what can be run, and write the results into the directory, which is held.

        Raises:
            UserError: it can't be measured so, or the directory holds another run.
        """
        ...


def begun(
    entries: Sequence[Evaluated],
    through: str,
    settings: Mapping[str, object],
    hardware: Hardware,
    seed: int,
    run: RunDirectory,
) -> tuple[dict[int, list[Evaluated]], tuple[Task, ...], dict[str, object]]:
    """Begin an evaluation, or go on with it: the number of builds may grow.

    Returns:
        The entries with plans that can be run, by the number of their task; these tasks; what `run.json` says.

    Raises:
        UserError: the directory holds another run.
    """
    by_task = runnable_by_task(entries)
    tasks = tuple(plans_of(its)[0].task for its in by_task.values())
    here = {"hardware": hardware.fingerprint.to_json(), "seed": seed, "versions": versions()}
    facts = {"through": through, **settings, **here}
    fixed = {name: value for name, value in facts.items() if name != "builds"}
    files = [entry.file for entry in entries]
    contents = digest_of(*(Path(file) for file in files if file is not None))
    run.begin({**fixed, "plans": files, "digest of plans": contents}, tasks)
    return by_task, tasks, facts


@dataclass(frozen=True)
class InParts:
    """Kernels and exchanges are measured one by one, as cost models predict them."""

    def check(self, tasks: Sequence[Task], plans: Sequence[Sequence[Plan]], hardware: Hardware) -> None:
        """Raise UserError unless exchanges are between hosts here as in the tasks."""
        for task in tasks:
            hardware.check_hosts(task.topology)

    def follow(self, hardware: Hardware) -> None:
        """Take part in the exchanges."""
        hardware.follow()

    @contextmanager
    def opened(self, tasks: Sequence[Task], hardware: Hardware, count_input: bool, warn: Warn) -> Iterator[Measure]:
        """The processes stay for all passes."""
        with meters_of(hardware, warn) as meters:
            meters.join(task.topology for task in tasks)
            yield partial(_measured, meters, count_input, cache(partial(PlanRecords.of_run, hardware=hardware)))

    def amount(self, plans: Sequence[Plan], count_input: bool) -> int:
        """Count kernel calls and exchanges."""
        return steps(plans, count_input)

    def evaluated(
        self, entries: Sequence[Evaluated], hardware: Hardware, seed: int, count_input: bool, directory: RunDirectory
    ) -> "EvaluateResult":
        """Measure all plans once, those of one task together; tasks that are on disk already are not measured again.

        Raises:
            UserError: nothing could be measured, or the directory holds another run.
        """
        counted = {"count_input": True} if count_input else {}
        by_task, tasks, facts = begun(entries, "kernels", counted, hardware, seed, directory)
        found = list(entries)
        order = sorted(range(len(found)), key=lambda i: found[i].task)
        with progress_bar() as progress, self.opened(tasks, hardware, count_input, printer(progress)) as measure:
            amount = sum(self.amount(plans_of(its), count_input) for its in by_task.values())
            bar = progress.add_task("kernels and exchanges", total=amount)

            def measured(task: int) -> Sequence[MeasuredOnce]:
                """What the task's plans cost, now or before."""
                plans = plans_of(by_task[task])
                journal = _tasks_in(directory.path, plans)
                if (once := journal.get(task)) is None:
                    once = Pass(tuple(measure(plans, seed, partial(progress.advance, bar), directory.path)))
                    journal.keep(task, once)
                else:
                    progress.advance(bar, self.amount(plans, count_input))
                return once.plans

            took = [one for task in by_task for one in measured(task)]
        for i, one in zip((i for i in order if found[i].runnable), took, strict=True):
            outcome = one.outcome
            came = {"error": outcome} if isinstance(outcome, str) else {"measured": outcome}
            found[i] = replace(found[i], **came)
        result = EvaluateResult(directory.path, tuple(found))
        result.save(facts)
        if all(entry.measured is None for entry in found):
            why = next(entry.error for entry in found if entry.error is not None)
            raise UserError(f"nothing could be measured: {why}; what was tried stands in {directory.path}")
        return result


def _tasks_in(run: Path, plans: Sequence[Plan]) -> Journal[Pass]:
    """What an evaluation measured of each task; `plans` are those of the one that is asked for."""

    def wrong(_: int, one: Pass) -> str | None:
        steps_alone = any(its.step_ms is not None for its in one.plans)
        return "holds training steps" if steps_alone else one.wrong(plans)

    return Journal(run / "tasks", "task", Pass, wrong)


def _measured(
    meters: Meters,
    count_input: bool,
    records: Callable[[Path], PlanRecords],
    plans: Sequence[Plan],
    seed: int,
    advance: Advance,
    run: Path,
) -> list[MeasuredOnce]:
    """Measure every plan once; `records` of a run are read when it is asked for first."""
    return list(map(MeasuredOnce.of, measure_plans(meters, plans, seed, advance, count_input, records(run))))


@dataclass(frozen=True)
class EvaluateResult:
    """Everything evaluated, and where it is stored."""

    path: Path
    entries: tuple[Evaluated, ...] = field(repr=False)

    def save(self, facts: Mapping[str, object]) -> None:
        """Write `results.parquet`, `devices.parquet` and `run.json` with the facts, then draw the cheapest plan."""
        frame = pd.DataFrame([entry.row() for entry in self.entries])
        write_frame(self.path / "results.parquet", frame)
        devices = pd.DataFrame([row for entry in self.entries for row in entry.device_rows()])
        write_frame(self.path / "devices.parquet", devices)
        RunDirectory(self.path).finish("evaluate", facts)
        shown = self._shown()
        if shown is not None and shown.plan is not None and shown.measured is not None:
            title = f"{shown.method}, task {shown.task}: {shown.measured.total_ms:.1f} ms measured"
            save_png(self.path / _PICTURE, plan_png(shown.plan, shown.measured, title))

    def _shown(self) -> Evaluated | None:
        """The plan in the picture: the first task's cheapest."""
        solved = [entry for entry in self.entries if entry.measured is not None]
        return min(solved, key=lambda entry: (entry.task, entry.measured_ms), default=None)

    def show(self, console: Console) -> None:
        """Print the devices of a single plan, or the comparison of several."""
        if len(self.entries) == 1 and self.entries[0].measured is not None:
            _show_devices(console, self.entries[0], self.entries[0].measured)
        console.print(comparison(self.entries))
        failed = failures(self.entries, (entry.error for entry in self.entries))
        lines = [*trust_lines(self.entries), *failed[:_SHOWN_ERRORS]]
        if len(failed) > _SHOWN_ERRORS:
            lines.append(f"... and {len(failed) - _SHOWN_ERRORS} more failures in results.parquet")
        lines.append(f"results: {self.path}")
        if self._shown() is not None:
            lines.append(f"picture: {self.path / _PICTURE}")
        print_lines(console, lines)


def _show_devices(console: Console, entry: Evaluated, cost: Cost) -> None:
    assert entry.plan is not None
    grid = Grid(title=Text(f"{entry.file}, measured"))
    columns = ("device", "shards", "dims", "MiB", *(f"{part.name} ms" for part in cost.parts), "total ms")
    for column in columns:
        grid.add_column(column, justify="right")
    for d, tables in enumerate(entry.plan.device_tables):
        grid.add_row(
            str(d), str(len(tables)), str(entry.plan.device_dims[d]), f"{entry.plan.device_bytes[d] / 2**20:.1f}",
            *(f"{ms[d]:.2f}" for ms in (*(part.ms for part in cost.parts), cost.device_ms)),
        )  # fmt: skip
    console.print(grid)
