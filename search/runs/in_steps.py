"""Measure plans by TorchRec's training steps: `evaluate measure=steps` and `search verify=steps`."""

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
_TRUSTED = 0.03  # differences between plans are reliable only if equal plans differ by less than this


@dataclass(frozen=True)
class Build:
    """The times of one build of a task's K plans, and of the first plan once more: (K + 1,)."""

    plans: tuple[BuildTimes, ...]

    def wrong(self, plans: int) -> str | None:
        """Return the reason why this cannot be a build of this number of plans, as a predicate; None if it can."""
        times = self.plans
        fits = len(times) == plans and all(
            build.error is not None or len(build.phase_ms) == len(PHASES) for build in times
        )
        return None if fits else f"does not have the times of {number_of(plans, 'plan')}"


def builds_in(run: Path, task: int, plans: int) -> Journal[Build]:
    """Return the journal of a task's builds in a run, each of `plans` plans: `builds/task-0000/build-0000.json`."""
    return Journal(run / "builds" / f"task-{task:04d}", "build", Build, lambda _, build: build.wrong(plans))


def floor_of(ratios: FloatArray) -> float:
    """Return the relative difference of equal plans over all builds:
    the standard error of a plan's ratios to itself, (B,).
    """
    return float(np.sqrt(np.square(ratios - 1).mean() / len(ratios)))


@dataclass(frozen=True, eq=False)
class TaskSteps:
    """Steps of one task's K plans over B builds; the first entry is the baseline of the comparison.

    Values of failed builds are NaN.

    Attributes:
        task: number of the task.
        entries: (K,) the plans.
        step_ms: (K,) median step of each plan over all turns.
        phase_ms: (K, P) mean of each phase over builds.
        alone_ms: (K,) mean of the lookups if one rank after another looks up.
        ratios: (K, B) step relative to the first plan's step, compared turn by turn: the median over a build's turns.
        floor: relative difference of equal plans over all builds.
        errors: (K + 1,) first error of each plan's builds; the last plan is the first plan once more.
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
        """Collect the times of all builds, and compare them."""
        plans_of_builds = [build.plans for build in builds]
        turns = max((len(plan_times.step_ms) for build in plans_of_builds for plan_times in build), default=1) or 1
        # (B, K + 1, R).
        turns_ms = np.array(
            [[plan_times.step_ms or (np.nan,) * turns for plan_times in build] for build in plans_of_builds]
        )
        phases_ms = np.array(
            [[plan_times.phase_ms or (np.nan,) * len(PHASES) for plan_times in build] for build in plans_of_builds]
        )
        alones_ms = np.array(
            [
                [plan_times.alone_ms if plan_times.step_ms else np.nan for plan_times in build]
                for build in plans_of_builds
            ]
        )
        ratios = np.median(turns_ms / turns_ms[:, :1], axis=2).T
        errors = tuple(
            next((plan_times.error for plan_times in of_plan if plan_times.error), None)
            for of_plan in zip(*plans_of_builds, strict=True)
        )
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
        """Return the rows of `phases.parquet`: one for each plan, with ms of each phase, and of lookups one by one."""
        return [
            {"method": name, "task": self.task, **dict(zip(PHASES, ms.tolist(), strict=True)), LOOKUPS_ALONE: alone_ms}
            for name, ms, alone_ms in zip(self.names, self.phase_ms, self.alone_ms, strict=True)
        ]

    def table(self) -> Grid:
        """Return a table for people: one row for each plan."""
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
        """Return a table for people with every plan's ms of each phase."""
        rows, phases = self.phase_rows(), (*PHASES, LOOKUPS_ALONE)
        ms = {name: [f"{row[name]:.2f}" for row in rows] for name in phases}
        return grid_of(f"Phases of a step, ms, task {self.task}", {"plan by": self.names, **ms})

    def shown(self) -> list[Grid | str]:
        """Return tables and lines for people, including the difference of equal plans and the failures."""
        failed = failures(self.entries, self.errors[:-1])
        return [self.table(), self.phases(), _floor_line(self.floor), *failed]

    def drawn(self) -> bytes:
        """Draw a bar for each plan, made of its phases, as PNG."""
        return phase_bars(self.names, self.phase_ms, f"task {self.task}: ms of a step")


@dataclass(frozen=True)
class InSteps:
    """Measures training steps: TorchRec trains a stand-in of the user's model on the plans of a task, alternately.

    Each build of all of a task's plans is in fresh processes.

    Attributes:
        protocol: how steps are timed. Each pass over candidate plans is one build.
    """

    framework: ClassVar[str | None] = TORCHREC

    protocol: StepProtocol = field(default_factory=StepProtocol)

    def check(self, tasks: Sequence[Task], plans: Sequence[Sequence[Plan]], hardware: Hardware) -> None:
        """Raise UserError if TorchRec is not installed,
        or if steps of a task's plans cannot be compared on this machine.
        """
        import neuroshard.torchrec  # noqa: F401  # says what to install

        for task in tasks:
            hardware.check_hosts(task.topology)
        for plans_of_task in plans:
            check_steps(plans_of_task, hardware)
        warn_of(
            "neuroshard.evaluate", self.protocol.remarks((*tasks, *(plans_of_task[0].task for plans_of_task in plans)))
        )

    def follow(self, hardware: Hardware) -> None:
        """Take part in the steps."""
        hardware.follow(self.protocol)

    @contextmanager
    def opened(self, tasks: Sequence[Task], hardware: Hardware, count_input: bool, warn: Warn) -> Iterator[Measure]:
        """Yield the function that measures plans; under torchrun the processes stay alive.

        The input dist is part of every step, unless the pipeline hides it.
        """
        with step_builds(hardware, self.protocol, tasks[0].topology, warn) as builds:

            def measured(plans: Sequence[Plan], seed: int, advance: Advance, _run: Path) -> list[MeasuredOnce]:
                """Build every plan and time its steps; return the median over the build,
                or the error that stopped it.
                """
                check_steps(plans, hardware)
                built = builds(plans, [seed])
                advance(1)
                step_ms = [None if build.error else float(np.median(build.step_ms)) for build in built]
                return [MeasuredOnce(error=build.error, step_ms=ms) for build, ms in zip(built, step_ms, strict=True)]

            yield measured

    def amount(self, plans: Sequence[Plan], count_input: bool) -> int:
        """Return 1: the build of all plans counts as one."""
        return 1

    def evaluated(
        self, entries: Sequence[Evaluated], hardware: Hardware, seed: int, count_input: bool, directory: RunDirectory
    ) -> EvaluateResult[TaskSteps]:
        """Time the steps of every task's plans; builds that are on disk already are not measured again.

        The first plan is built twice; the difference of both is the floor. The input dist counts as far as no pipeline
        hides it.
        """
        by_task, tasks, facts = begun(entries, "steps", asdict(self.protocol), hardware, seed, directory)
        with (
            progress_bar() as progress,
            step_builds(hardware, self.protocol, tasks[0].topology, printer(progress)) as builds,
        ):
            measured = tuple(self._of_task(*item, builds, seed, directory.path, progress) for item in by_task.items())
        rows = [row for task in measured for row in task.rows()]
        phases = [row for task in measured for row in task.phase_rows()]
        tables = (item for task in measured for item in task.shown())
        shown = [*tables, *provenance_lines(entries, hardware.fingerprint), *failures(entries)]
        frames, picture = {"results": rows, "phases": phases}, ("steps.png", measured[0].drawn)
        result = EvaluateResult(directory.path, tuple(entries), frames, shown, measured, picture)
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
    """Return a line on the smallest reliable difference between plans; it is a warning if that difference is large."""
    text = f"the step times of the first plan, built twice, differ by {floor:.1%}"
    if np.isnan(floor) or floor > _TRUSTED:
        warning = Message(
            "steps-too-noisy",
            text,
            limit=f"differences between plans are reliable only if this difference is {_TRUSTED:.0%} or less",
            remedy="Stop other processes on this machine and measure again",
        )
        return f"warning: {warning}"
    return f"{text}; smaller differences between plans are noise"
