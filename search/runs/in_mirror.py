"""Plans measured in mirrored training steps: what `evaluate through=mirrored` is asked."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import Progress

from neuroshard.cost.parts import BACKWARD, FORWARD, INPUT
from neuroshard.hardware import Hardware
from neuroshard.hardware.hardware import Warn
from neuroshard.hardware.mirror_meters import check_mirrored, measure_rank, rank_jobs
from neuroshard.hardware.step_samples import StepProtocol
from neuroshard.lab.plan_costs import Advance
from neuroshard.models import CostModels
from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.parquet import write_frame
from neuroshard.plumbing.progress import print_lines, printer, progress_bar
from neuroshard.plumbing.schema import PathName
from neuroshard.records.run_directory import RunDirectory
from neuroshard.stages.search.results.comparison import Evaluated, failures, plans_of
from neuroshard.stages.search.results.finalist_files import MeasuredOnce
from neuroshard.stages.search.results.mirrored_times import RankSteps, TaskInMirror, by_plan, ranks_in, timeline
from neuroshard.stages.search.runs.means import Measure, begun_in_builds
from neuroshard.tasks.task import Task


@dataclass(frozen=True)
class InMirror:
    """TorchRec trains a stand-in of the user's model on one rank after another, the other ranks being its mirrors.

    Local work is measured, exchanges are predicted. So one device measures plans for any number of devices.

    Attributes:
        protocol: how steps are timed; each build of a rank is in a fresh process.
        exchanges: cost models whose exchanges are added to the local work; None leaves exchanges out.
    """

    protocol: StepProtocol = field(default_factory=StepProtocol)
    exchanges: PathName | None = None

    def check(self, tasks: Sequence[Task], plans: Sequence[Sequence[Plan]], hardware: Hardware) -> None:
        """Raise UserError unless TorchRec is installed, and each task's plans can be measured mirrored here."""
        import neuroshard.torchrec  # noqa: F401  # says what to install

        for its in plans:
            check_mirrored(its, hardware)

    def follow(self, hardware: Hardware) -> None:
        """Take no part: `check` refuses torchrun's processes."""

    @contextmanager
    def opened(self, tasks: Sequence[Task], hardware: Hardware, count_input: bool, warn: Warn) -> Iterator[Measure]:
        """Processes are started anew for every rank."""
        yield partial(self._measured, hardware, count_input, warn)

    def amount(self, plans: Sequence[Plan], count_input: bool) -> int:
        """Count the ranks that are measured."""
        return len(rank_jobs(plans))

    def evaluated(
        self, entries: Sequence[Evaluated], hardware: Hardware, seed: int, count_input: bool, directory: RunDirectory
    ) -> "MirrorResult":
        """Measure every task's plans; ranks that are on disk already are not measured again.

        The first plan is measured twice: what equal plans differ by is the floor. Exchanges of indices are predicted
        too where they count; else a pipeline hides them.

        Raises:
            UserError: the directory holds another run.
        """
        by_task, _, facts = begun_in_builds(entries, "mirrored", self.protocol, hardware, seed, directory)
        with progress_bar() as progress:
            found = tuple(
                self._of_task(task, its, hardware, seed, count_input, directory.path, progress)
                for task, its in by_task.items()
            )
        result = MirrorResult(directory.path, tuple(entries), found)
        result.save(facts)
        return result

    def _of_task(
        self,
        task: int,
        entries: Sequence[Evaluated],
        hardware: Hardware,
        seed: int,
        count_input: bool,
        run: Path,
        progress: Progress,
    ) -> "TaskInMirror":
        plans = plans_of(entries)
        again = [*plans, plans[0]]
        jobs = rank_jobs(again)
        journal = ranks_in(run, task, jobs)
        total = len(jobs) * self.protocol.builds
        bar = progress.add_task(f"ranks, task {task}", total=total, completed=len(journal.read()))

        def measured(before: Sequence[RankSteps]) -> RankSteps:
            """Measure the next rank; after the last one begins another build."""
            build, number = divmod(len(before), len(jobs))
            where = (hardware, printer(progress))
            steps = measure_rank(jobs[number], again, self.protocol, [seed, task, build], *where)
            progress.advance(bar)
            return RankSteps(steps)

        done = journal.filled(total, measured)
        builds = [by_plan(jobs, done[first : first + len(jobs)]) for first in range(0, total, len(jobs))]
        return TaskInMirror(task, tuple(entries), tuple(builds), self._exchange_ms(plans, count_input))

    def _exchange_ms(self, plans: Sequence[Plan], count_input: bool) -> tuple[float, ...]:
        """(K,) of each plan's exchanges where all devices come to them together; not numbers without models."""
        if self.exchanges is None:
            return (float("nan"),) * len(plans)
        sim = Simulator(CostModels.load(self.exchanges), count_input)
        idle = np.zeros((1, plans[0].task.topology.num_devices))
        names = (FORWARD, BACKWARD, *([INPUT] if count_input else []))
        steps = [sim.step(sim.called(plan.device_loads, idle.shape[1]), plan.traffic, idle) for plan in plans]
        return tuple(float(np.sum([step.ms(name) for name in names], axis=0).max()) for step in steps)

    def _measured(
        self,
        hardware: Hardware,
        count_input: bool,
        warn: Warn,
        plans: Sequence[Plan],
        seed: int,
        advance: Advance,
        _run: Path,
    ) -> list[MeasuredOnce]:
        """Measure every plan once: ms of its local work and predicted exchanges, or the error that stopped it."""
        check_mirrored(plans, hardware)
        jobs, done = rank_jobs(plans), []
        for job in jobs:
            done.append(RankSteps(measure_rank(job, plans, self.protocol, [seed], hardware, warn)))
            advance(1)
        steps = map(timeline, by_plan(jobs, done))
        exchanges = np.nan_to_num(self._exchange_ms(plans, count_input)).tolist()
        return [
            MeasuredOnce(error=step) if isinstance(step, str) else MeasuredOnce(step_ms=step.step_ms + ms)
            for step, ms in zip(steps, exchanges, strict=True)
        ]


@dataclass(frozen=True)
class MirrorResult:
    """Everything that was measured mirrored, and where it is stored."""

    path: Path
    entries: tuple[Evaluated, ...]
    tasks: tuple[TaskInMirror, ...]

    def save(self, facts: Mapping[str, object]) -> None:
        """Write `results.parquet`, `stretches.parquet`, and last `run.json` with the facts."""
        write_frame(self.path / "results.parquet", pd.DataFrame([row for task in self.tasks for row in task.rows()]))
        stretches = [row for task in self.tasks for row in task.stretch_rows()]
        write_frame(self.path / "stretches.parquet", pd.DataFrame(stretches))
        RunDirectory(self.path).finish("evaluate", facts)

    def show(self, console: Console) -> None:
        """Print the tables, what equal plans differ by, and what failed."""
        for task in self.tasks:
            console.print(task.table())
            console.print(f"the first plan, measured twice, differs from itself by {task.floor:.1%}", soft_wrap=True)
            print_lines(console, failures(task.entries, map(task.error, range(len(task.entries)))))
        own = failures(self.entries, (entry.error for entry in self.entries))
        print_lines(console, [*own, f"results: {self.path}"])
