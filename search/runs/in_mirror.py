"""Measure plans by mirrored training steps: `evaluate measure=mirrored` and `search verify=mirrored`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from rich.progress import Progress
from rich.table import Table as Grid

from neuroshard.cost.loads import Traffic
from neuroshard.hardware import Hardware
from neuroshard.hardware.hardware import Warn
from neuroshard.hardware.step_meters import MirroredStep, RankJob, check_mirrored, measure_rank, rank_jobs
from neuroshard.hardware.step_samples import LocalStep, StepProtocol
from neuroshard.lab.plan_costs import Advance
from neuroshard.models import CostModels
from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.errors import warn_of
from neuroshard.plumbing.journal import Journal
from neuroshard.plumbing.messages import number_of
from neuroshard.plumbing.progress import printer, progress_bar
from neuroshard.plumbing.schema import PathName
from neuroshard.records.run_directory import RunDirectory
from neuroshard.records.samples import LOCAL_PHASES
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
from neuroshard.stages.search.runs.in_steps import floor_of
from neuroshard.tasks.task import Task
from neuroshard.words.collective import Collective
from neuroshard.words.model_choice import TORCHREC


@dataclass(frozen=True)
class RankSteps:
    """One rank's local work in steps of all plans that are measured on this rank, in one build."""

    steps: tuple[LocalStep, ...]

    def wrong(self, job: RankJob) -> str | None:
        """Return the reason why these cannot be the steps of a rank's job, as a predicate; None if they can."""
        fits = len(self.steps) == len(job.plans) and all(step.rank == job.rank for step in self.steps)
        return None if fits else f"does not have the steps of {number_of(len(job.plans), 'plan')} on rank {job.rank}"


def ranks_in(run: Path, task: int, jobs: Sequence[RankJob]) -> Journal[RankSteps]:
    """Return the journal of a task's ranks in a run's directory, build by build: `ranks/task-0000/rank-0000.json`."""
    folder = run / "ranks" / f"task-{task:04d}"
    return Journal(folder, "rank", RankSteps, lambda number, done: done.wrong(jobs[number % len(jobs)]))


def by_plan(jobs: Sequence[RankJob], done: Sequence[RankSteps]) -> list[list[LocalStep]]:
    """Group the ranks of one build by plan, (K,)."""
    by_number: dict[int, list[LocalStep]] = {}
    for job, of_rank in zip(jobs, done, strict=True):
        for plan, step in zip(job.plans, of_rank.steps, strict=True):
            by_number.setdefault(plan, []).append(step)
    return [by_number[plan] for plan in sorted(by_number)]


def timeline(steps: Sequence[LocalStep], pipeline: str) -> MirroredStep | str:
    """Return a plan's step, computed from its ranks, or the error in its place."""
    try:
        return MirroredStep.of(steps, pipeline)
    except ValueError as error:
        return str(error)


class ExchangesOfStep(NamedTuple):
    """Predicted ms of a plan's exchanges, each of which all devices begin together; NaN without models.

    Attributes:
        waited_ms: exchanges of embeddings, of their gradients, and of data-parallel tables' gradients.
        input_ms: input dist; 0 if the models cannot predict it.
    """

    waited_ms: float = float("nan")
    input_ms: float = float("nan")

    @classmethod
    def of(cls, models: CostModels, traffic: Traffic) -> "ExchangesOfStep":
        """Predict the exchanges of one plan with this traffic."""
        idle = np.zeros((1, traffic.num_devices))
        waited_ms = np.sum(Simulator(models).communication(traffic, idle), axis=0)
        input_ms = np.zeros(1) if models.input is None else models.input.predict(traffic.alone(Collective.INPUT), idle)
        return cls(float(waited_ms.max()), float(input_ms.max()))

    def in_step(self, step: MirroredStep) -> float:
        """Return the ms that the exchanges add to a step's local work."""
        return self.waited_ms + step.exposed_ms(self.input_ms)


@dataclass(frozen=True)
class TaskInMirror:
    """Mirrored steps of one task's plans; the first of the K entries is the baseline of the comparison.

    Attributes:
        task: number of the task.
        entries: (K,) the plans.
        builds: (B, K + 1) the measured ranks of each plan; the last plan is the first plan once more.
        exchanges: (K,) predicted exchanges of each plan.
        pipeline: the training pipeline of the steps.
    """

    task: int
    entries: tuple[Evaluated, ...]
    builds: tuple[list[list[LocalStep]], ...]
    exchanges: tuple[ExchangesOfStep, ...]
    pipeline: str

    def _local_ms(self, plan: int) -> FloatArray:
        """Return the plan's step without exchanges in each build, (B,) ms; NaN for failed builds."""
        return np.array([np.nan if isinstance(step, str) else step.step_ms for step in self._steps(plan)])

    def _steps(self, plan: int) -> list[MirroredStep | str]:
        """Return the plan's step in each build, (B,), or the error in its place."""
        return [timeline(build[plan], self.pipeline) for build in self.builds]

    @property
    def floor(self) -> float:
        """The relative difference of equal plans over all builds."""
        return floor_of(self._local_ms(len(self.entries)) / self._local_ms(0))

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of `results.parquet`: one for each plan."""
        return [entry.row() | self._figures(k) for k, entry in enumerate(self.entries)]

    def _figures(self, k: int) -> dict[str, Any]:
        """Return the figures of one plan, relative to the first one;
        phases and exchanges are from builds without errors.
        """
        local_ms, every = self._local_ms(k), self._steps(k)
        steps = [step for step in every if not isinstance(step, str)]
        none = np.full((1, len(LOCAL_PHASES)), np.nan)
        phases = np.mean([step.slowest_ms for step in steps] or none, axis=0)
        return {
            "local_ms": float(np.median(local_ms)),
            "exchange_ms": float(np.median([self.exchanges[k].in_step(step) for step in steps] or np.nan)),
            "beside_first": float(np.median(local_ms / self._local_ms(0))),
            "predicted_beside_first": self.entries[k].predicted_ms / self.entries[0].predicted_ms,
            **dict(zip(LOCAL_PHASES, phases.tolist(), strict=True)),
            "ranks": [step.rank for step in self.builds[0][k]],
            "floor": self.floor,
            "error": next((step for step in every if isinstance(step, str)), None),
        }

    def stretch_rows(self) -> list[dict[str, Any]]:
        """Return the rows of `stretches.parquet`: the stretches of every measured rank in a step, in order."""
        return [
            {
                **{"method": entry.method, "task": self.task, "build": number, "rank": step.rank, "place": place},
                **{"phase": stretch.phase, "until": stretch.until, "ms": step.ms[place]},
                **{"sent_bytes": step.sent_bytes[place], "received_bytes": step.received_bytes[place]},
            }
            for number, build in enumerate(self.builds)
            for entry, steps in zip(self.entries, build, strict=False)
            for step in steps
            for place, stretch in enumerate(step.stretches)
        ]

    def table(self) -> Grid:
        """Return a table for people: one row for each plan."""
        devices, rows = plans_of(self.entries)[0].task.topology.num_devices, self.rows()
        columns = {
            **names_and_forms(self.entries),
            "ranks measured": [_ranges(row["ranks"]) for row in rows],
            "local work": [f"{row['local_ms']:.2f}" for row in rows],
            "beside the first": [f"{row['beside_first']:.3f}" for row in rows],
            "exchanges": [_known(row["exchange_ms"]) for row in rows],
            "predicted cost": [_known(row["predicted_ms"]) for row in rows],
        }
        return grid_of(f"Mirrored steps on {devices} ranks, ms, task {self.task}", columns)

    def phases(self) -> Grid:
        """Return a table for people with every plan's local work in each phase."""
        rows, names = self.rows(), [entry.method for entry in self.entries]
        ms = {phase: [f"{row[phase]:.2f}" for row in rows] for phase in LOCAL_PHASES}
        return grid_of(f"Local work by phase, ms, task {self.task}", {"plan by": names, **ms})

    def shown(self) -> list[Grid | str]:
        """Return tables and lines for people, including the difference of equal plans and the failures."""
        floor = f"the first plan, measured twice, differs from itself by {self.floor:.1%}"
        return [self.table(), self.phases(), floor, *failures(self.entries, [row["error"] for row in self.rows()])]


def _known(ms: float) -> str:
    return "-" if np.isnan(ms) else f"{ms:.2f}"


def _ranges(ranks: Sequence[int]) -> str:
    """Return ranks as text for people: "0-7", or one by one."""
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks))


@dataclass(frozen=True)
class InMirror:
    """Measures mirrored steps: TorchRec trains a stand-in model rank by rank, and all other ranks mirror that rank.

    Local work is measured, and exchanges are predicted. So one device can measure plans for any number of devices.

    Local work is measured, exchanges are predicted. So one device measures plans for any number of devices.

    Attributes:
        protocol: how steps are timed; each build of a rank is in a fresh process.
        exchanges: cost models whose exchanges are added to the local work, such as h100; None leaves exchanges out. The
            input dist is added as far as the protocol's pipeline does not hide it.
        exchange_dtype: data type of embeddings and gradients in these exchanges, such as fp16, or fp16/bf16 for forward
            and backward; None for fp32.
    """

    framework: ClassVar[str | None] = TORCHREC

    protocol: StepProtocol = field(default_factory=StepProtocol)
    exchanges: PathName | None = None
    exchange_dtype: str | None = None

    def check(self, tasks: Sequence[Task], plans: Sequence[Sequence[Plan]], hardware: Hardware) -> None:
        """Raise UserError if TorchRec is not installed,
        or if a task's plans cannot be measured mirrored on this machine.
        """
        import neuroshard.torchrec  # noqa: F401  # says what to install

        for plans_of_task in plans:
            check_mirrored(plans_of_task, hardware)
        warn_of(
            "neuroshard.evaluate", self.protocol.remarks((*tasks, *(plans_of_task[0].task for plans_of_task in plans)))
        )

    def follow(self, hardware: Hardware) -> None:
        """Do nothing: `check` refuses processes of torchrun."""

    @contextmanager
    def opened(self, tasks: Sequence[Task], hardware: Hardware, count_input: bool, warn: Warn) -> Iterator[Measure]:
        """Yield the function that measures plans; it starts a new process for every rank.

        The pipeline decides how much of the input dist counts.
        """
        yield partial(self._measured, hardware, warn)

    def amount(self, plans: Sequence[Plan], count_input: bool) -> int:
        """Return the number of ranks that are measured."""
        return len(rank_jobs(plans))

    def evaluated(
        self, entries: Sequence[Evaluated], hardware: Hardware, seed: int, count_input: bool, directory: RunDirectory
    ) -> EvaluateResult[TaskInMirror]:
        """Measure every task's plans; ranks that are on disk already are not measured again.

        The first plan is measured twice; the difference of both measurements is the floor. The pipeline decides how
        much of the input dist counts.
        """
        by_task, _, facts = begun(entries, "mirrored", asdict(self.protocol), hardware, seed, directory)
        with progress_bar() as progress:
            measured = tuple(self._of_task(*item, hardware, seed, directory.path, progress) for item in by_task.items())
        rows = [row for task in measured for row in task.rows()]
        stretches = [row for task in measured for row in task.stretch_rows()]
        tables = (item for task in measured for item in task.shown())
        shown = [*tables, *provenance_lines(entries, hardware.fingerprint), *failures(entries)]
        frames = {"results": rows, "stretches": stretches}
        result = EvaluateResult(directory.path, tuple(entries), frames, shown, measured)
        result.save(facts)
        return result

    def _of_task(
        self, task: int, entries: Sequence[Evaluated], hardware: Hardware, seed: int, run: Path, progress: Progress
    ) -> TaskInMirror:
        plans = plans_of(entries)
        again = [*plans, plans[0]]
        jobs = rank_jobs(again)
        journal = ranks_in(run, task, jobs)
        total = len(jobs) * self.protocol.builds
        bar = progress.add_task(f"ranks, task {task}", total=total, completed=len(journal.read()))

        def measured(before: Sequence[RankSteps]) -> RankSteps:
            """Measure the next rank; after the last rank, another build begins."""
            build, number = divmod(len(before), len(jobs))
            seeds, warn = [seed, task, build], printer(progress)
            steps = RankSteps(measure_rank(jobs[number], again, self.protocol, seeds, hardware, warn))
            progress.advance(bar)
            return steps

        done = journal.filled(total, measured)
        builds = [by_plan(jobs, done[first : first + len(jobs)]) for first in range(0, total, len(jobs))]
        return TaskInMirror(task, tuple(entries), tuple(builds), self._exchanges(plans), self.protocol.pipeline)

    def _exchanges(self, plans: Sequence[Plan]) -> tuple[ExchangesOfStep, ...]:
        """Predict the exchanges of each plan, (K,); NaN without models."""
        if self.exchanges is None:
            return (ExchangesOfStep(),) * len(plans)
        models = CostModels.load(self.exchanges, exchange_dtype=self.exchange_dtype)
        return tuple(ExchangesOfStep.of(models, plan.traffic) for plan in plans)

    def _measured(
        self, hardware: Hardware, warn: Warn, plans: Sequence[Plan], seed: int, advance: Advance, _run: Path
    ) -> list[MeasuredOnce]:
        """Measure every plan once: ms of local work and predicted exchanges,
        or the error that stopped the measurement.
        """
        check_mirrored(plans, hardware)
        jobs, done = rank_jobs(plans), []
        for job in jobs:
            done.append(RankSteps(measure_rank(job, plans, self.protocol, [seed], hardware, warn)))
            advance(1)
        steps = [timeline(ranks, self.protocol.pipeline) for ranks in by_plan(jobs, done)]
        return [
            MeasuredOnce(error=step)
            if isinstance(step, str)
            else MeasuredOnce(step_ms=step.step_ms + float(np.nan_to_num(exchanges.in_step(step))))
            for step, exchanges in zip(steps, self._exchanges(plans), strict=True)
        ]
