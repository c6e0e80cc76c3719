"""Measuring plans by TorchRec's training steps: `evaluate measure=steps` and `search verify=steps`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from rich.progress import Progress
from rich.table import Table as Grid

from neuroshard.hardware import Hardware
from neuroshard.hardware.hardware import Warn
from neuroshard.hardware.step_meters import Builds, check_steps, step_builds
from neuroshard.hardware.step_samples import PHASES, BuildTimes, StepProtocol
from neuroshard.lab.plan_costs import Advance
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.errors import warn_of
from neuroshard.plumbing.journal import Journal
from neuroshard.plumbing.messages import Message, number_of
from neuroshard.plumbing.progress import printer, progress_bar
from neuroshard.records.run_directory import RunDirectory
from neuroshard.stages.search.report.figures import phase_bars
from neuroshard.stages.search.results.candidate_plan_files import MeasuredOnce
from neuroshard.stages.search.results.comparison import (
    Evaluated,
    failures,
    grid_of,
    names_and_forms,
    plans_of,
    provenance_lines,
)
from neuroshard.stages.search.runs.in_parts import EvaluateResult, Measure, begun
from neuroshard.tasks.task import Task
from neuroshard.words.model_choice import TORCHREC

LOOKUPS_ALONE = "lookups, one device after another"
_TRUSTED = 0.03  # equal plans must agree as well as that before differences are worth anything


@dataclass(frozen=True)
class Build:
    """What one build of a task's K plans took, and of the first one once more: (K + 1,)."""

    plans: tuple[BuildTimes, ...]

    def wrong(self, plans: int) -> str | None:
        """Return why this can't be a build of so many plans, as a predicate; None if it may be."""
        its = self.plans
        fits = len(its) == plans and all(one.error is not None or len(one.phase_ms) == len(PHASES) for one in its)
        return None if fits else f"does not have the times of {number_of(plans, 'plan')}"


def builds_in(run: Path, task: int, plans: int) -> Journal[Build]:
    """Open the journal of a task's builds in a run, of so many plans each: `builds/task-0000/build-0000.json`."""
    return Journal(run / "builds" / f"task-{task:04d}", "build", Build, lambda _, build: build.wrong(plans))


def floor_of(ratios: FloatArray) -> float:
    """Compute what equal plans differ by over all builds: the standard error of a plan's ratios to itself, (B,)."""
    return float(np.sqrt(np.square(ratios - 1).mean() / len(ratios)))


@dataclass(frozen=True, eq=False)
class TaskSteps:
    """Steps of one task's K plans over B builds; the first of its entries is what the others are compared with.

    Not a number where a build failed.

    Attributes:
        step_ms: (K,) the median step of each plan over all turns.
        phase_ms: (K, P) the mean of its phases over builds.
        alone_ms: (K,) the mean of its lookups, one rank after another.
        ratios: (K, B) its step beside the first one's: the median of a build's turns, taken turn by turn.
        floor: what equal plans differ by over all builds.
        errors: (K + 1,) the first that stopped a build of each; the last plan is the first one once more.
    """

    task: int
    entries: tuple[Evaluated, ...]
    step_ms: FloatArray
    phase_ms: FloatArray
    alone_ms: FloatArray
    ratios: FloatArray
    floor: float
    errors: tuple[str | None, ...]

    @classmethod
    def of(cls, task: int, entries: Sequence[Evaluated], builds: Sequence[Build]) -> "TaskSteps":
        """Gather the times of all builds, and compare them."""
        its = [build.plans for build in builds]
        turns = max((len(one.step_ms) for build in its for one in build), default=1) or 1
        turns_ms = np.array([[one.step_ms or (np.nan,) * turns for one in build] for build in its])  # (B, K + 1, R)
        phases_ms = np.array([[one.phase_ms or (np.nan,) * len(PHASES) for one in build] for build in its])
        alones_ms = np.array([[one.alone_ms if one.step_ms else np.nan for one in build] for build in its])
        ratios = np.median(turns_ms / turns_ms[:, :1], axis=2).T
        errors = tuple(next((one.error for one in of_plan if one.error), None) for of_plan in zip(*its, strict=True))
        means = phases_ms.mean(axis=0)[:-1], alones_ms.mean(axis=0)[:-1]
        step_ms = np.median(turns_ms, axis=(0, 2))[:-1]
        return cls(task, tuple(entries), step_ms, *means, ratios[:-1], floor_of(ratios[-1]), errors)

    @property
    def names(self) -> list[str]:
        """The names of the methods that found the plans, (K,)."""
        return [entry.method for entry in self.entries]

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of `results.parquet`: one for each plan."""
        return [
            entry.row()
            | {
                "step_ms": step_ms,
                "beside_first": float(np.median(ratios)),
                "beside_first_least": float(ratios.min()),
                "beside_first_most": float(ratios.max()),
                "predicted_beside_first": entry.predicted_ms / self.entries[0].predicted_ms,
                "floor": self.floor,
                "error": error,
            }
            for entry, step_ms, ratios, error in zip(
                self.entries, self.step_ms, self.ratios, self.errors[:-1], strict=True
            )
        ]

    def phase_rows(self) -> list[dict[str, Any]]:
        """Return the rows of `phases.parquet`: one for each plan, with ms of each phase, and of lookups alone."""
        return [
            {"method": name, "task": self.task, **dict(zip(PHASES, ms.tolist(), strict=True)), LOOKUPS_ALONE: alone_ms}
            for name, ms, alone_ms in zip(self.names, self.phase_ms, self.alone_ms, strict=True)
        ]

    def table(self) -> Grid:
        """Make the table that people read: a row for each plan."""
        rows = self.rows()
        columns = {
            **names_and_forms(self.entries),
            "predicted ms": [f"{row['predicted_ms']:.2f}" for row in rows],
            "step ms": [f"{row['step_ms']:.2f}" for row in rows],
            "beside the first: predicted": [f"{row['predicted_beside_first']:.3f}" for row in rows],
            "trained": [f"{row['beside_first']:.3f}" for row in rows],
            "least to most": [f"{row['beside_first_least']:.3f} to {row['beside_first_most']:.3f}" for row in rows],
        }
        return grid_of(f"Training steps, task {self.task}", columns)

    def phases(self) -> Grid:
        """Make the table of every plan's ms of each phase, for people."""
        rows, phases = self.phase_rows(), (*PHASES, LOOKUPS_ALONE)
        ms = {name: [f"{row[name]:.2f}" for row in rows] for name in phases}
        return grid_of(f"Phases of a step, ms, task {self.task}", {"plan by": self.names, **ms})

    def told(self) -> list[Grid | str]:
        """Make tables and lines for people: also what equal plans differ by, and what failed."""
        failed = failures(self.entries, self.errors[:-1])
        return [self.table(), self.phases(), _floor_line(self.floor), *failed]

    def drawn(self) -> bytes:
        """Draw a bar for each plan, of its phases, to PNG."""
        return phase_bars(self.names, self.phase_ms, f"task {self.task}: ms of a step")


@dataclass(frozen=True)
class InSteps:
    """Measuring in steps: TorchRec trains a stand-in of the user's model on the plans of a task, alternately.

    Each build of all of a task's plans is in fresh processes.

    Attributes:
        protocol: how steps are timed. Each pass over candidate plans is one build.
    """

    framework: ClassVar[str | None] = TORCHREC

    protocol: StepProtocol = field(default_factory=StepProtocol)

    def check(self, tasks: Sequence[Task], plans: Sequence[Sequence[Plan]], hardware: Hardware) -> None:
        """Raise UserError unless TorchRec is installed, and steps of each task's plans can be compared here."""
        import neuroshard.torchrec  # noqa: F401  # says what to install

        for task in tasks:
            hardware.check_hosts(task.topology)
        for its in plans:
            check_steps(its, hardware)
        warn_of("neuroshard.evaluate", self.protocol.remarks((*tasks, *(its[0].task for its in plans))))

    def follow(self, hardware: Hardware) -> None:
        """Take part in the steps."""
        hardware.follow(self.protocol)

    @contextmanager
    def opened(self, tasks: Sequence[Task], hardware: Hardware, count_input: bool, warn: Warn) -> Iterator[Measure]:
        """Yield what measures plans; under torchrun the processes stay.

        The exchange of indices is in every step, or hidden by its pipeline.
        """
        with step_builds(hardware, self.protocol, tasks[0].topology, warn) as builds:

            def measured(plans: Sequence[Plan], seed: int, advance: Advance, _run: Path) -> list[MeasuredOnce]:
                """Build every plan and time its steps: the median over the build, or the error that stopped it."""
                check_steps(plans, hardware)
                built = builds(plans, [seed])
                advance(1)
                step_ms = [None if one.error else float(np.median(one.step_ms)) for one in built]
                return [MeasuredOnce(error=one.error, step_ms=ms) for one, ms in zip(built, step_ms, strict=True)]

            yield measured

    def amount(self, plans: Sequence[Plan], count_input: bool) -> int:
        """Count the build of all plans as one."""
        return 1

    def evaluated(
        self, entries: Sequence[Evaluated], hardware: Hardware, seed: int, count_input: bool, directory: RunDirectory
    ) -> EvaluateResult[TaskSteps]:
        """Time the steps of every task's plans; builds that are on disk already are not measured again.

        The first plan is built twice: what equal plans differ by is the floor. The input's exchange counts as far as
        no pipeline hides it.
        """
        by_task, tasks, facts = begun(entries, "steps", asdict(self.protocol), hardware, seed, directory)
        with (
            progress_bar() as progress,
            step_builds(hardware, self.protocol, tasks[0].topology, printer(progress)) as builds,
        ):
            measured = tuple(self._of_task(*one, builds, seed, directory.path, progress) for one in by_task.items())
        rows = [row for task in measured for row in task.rows()]
        phases = [row for task in measured for row in task.phase_rows()]
        tables = (one for task in measured for one in task.told())
        told = [*tables, *provenance_lines(entries, hardware.fingerprint), *failures(entries)]
        frames, picture = {"results": rows, "phases": phases}, ("steps.png", measured[0].drawn)
        result = EvaluateResult(directory.path, tuple(entries), frames, told, measured, picture)
        result.save(facts)
        return result

    def _of_task(
        self, task: int, entries: Sequence[Evaluated], builds: Builds, seed: int, run: Path, progress: Progress
    ) -> TaskSteps:
        plans = plans_of(entries)
        again = [*plans, plans[0]]
        journal = builds_in(run, task, len(again))
        bar = progress.add_task(f"builds, task {task}", total=self.protocol.builds, completed=len(journal.read()))

        def build(before: Sequence[Build]) -> Build:
            """Time the steps of the next build."""
            built = Build(builds(again, [seed, task, len(before)]))
            progress.advance(bar)
            return built

        return TaskSteps.of(task, entries, journal.filled(self.protocol.builds, build))


def _floor_line(floor: float) -> str:
    """Return a line on the smallest difference between plans that means something; a warning if that is large."""
    said = f"the step times of the first plan, built twice, differ by {floor:.1%}"
    if np.isnan(floor) or floor > _TRUSTED:
        warning = Message(
            "steps-too-noisy",
            said,
            limit=f"differences between plans are reliable only if this difference is {_TRUSTED:.0%} or less",
            remedy="Stop other processes on this machine and measure again",
        )
        return f"warning: {warning}"
    return f"{said}; smaller differences between plans are noise"
