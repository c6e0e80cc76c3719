"""What mirrored steps of several plans took: every rank on disk, and the timelines that ranks make."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table as Grid
from rich.text import Text

from neuroshard.hardware.mirror_meters import MirroredStep, RankJob
from neuroshard.hardware.mirrored_samples import LocalStep
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.journal import Journal
from neuroshard.records.samples import LOCAL_PHASES
from neuroshard.stages.search.results.comparison import FORMS_TITLE, Evaluated, forms_cell, plans_of


@dataclass(frozen=True)
class RankSteps:
    """One rank's local work in steps of the plans that are measured on it, in one build."""

    steps: tuple[LocalStep, ...]


def ranks_in(run: Path, task: int, jobs: Sequence[RankJob]) -> Journal[RankSteps]:
    """The ranks of a task's plans in a run's directory, build after build: `ranks/task-0000/rank-0000.json`."""

    def wrong(number: int, found: RankSteps) -> str | None:
        """Say why a file's ranks can't be those of its job, if so."""
        job = jobs[number % len(jobs)]
        fits = len(found.steps) == len(job.plans) and all(step.rank == job.rank for step in found.steps)
        return None if fits else f"is not of {len(job.plans)} plans on rank {job.rank}"

    return Journal(run / "ranks" / f"task-{task:04d}", "rank", RankSteps, wrong)


def by_plan(jobs: Sequence[RankJob], done: Sequence[RankSteps]) -> list[list[LocalStep]]:
    """(K,) the ranks of every plan, from those of one build."""
    found: dict[int, list[LocalStep]] = {}
    for job, of_rank in zip(jobs, done, strict=True):
        for plan, step in zip(job.plans, of_rank.steps, strict=True):
            found.setdefault(plan, []).append(step)
    return [found[plan] for plan in sorted(found)]


def timeline(steps: Sequence[LocalStep]) -> MirroredStep | str:
    """A plan's step, or the error in its place."""
    try:
        return MirroredStep.of(steps)
    except ValueError as error:
        return str(error)


@dataclass(frozen=True)
class TaskInMirror:
    """Mirrored steps of one task's plans; the first of its K entries is what the others are compared with.

    Attributes:
        builds: (B, K + 1) the measured ranks of each plan; the last is the first one once more.
        exchange_ms: (K,) predicted.
    """

    task: int
    entries: tuple[Evaluated, ...]
    builds: tuple[list[list[LocalStep]], ...]
    exchange_ms: tuple[float, ...]

    def timelines(self, plan: int) -> list[MirroredStep]:
        """The plan's steps, a build each; those that failed left out."""
        return [step for build in self.builds if isinstance(step := timeline(build[plan]), MirroredStep)]

    def error(self, plan: int) -> str | None:
        """Say what stopped the first build that failed."""
        return next((step for build in self.builds if isinstance(step := timeline(build[plan]), str)), None)

    def local_ms(self, plan: int) -> FloatArray:
        """(B,) ms of the plan's step without its exchanges; NaN where a build failed."""
        steps = [timeline(build[plan]) for build in self.builds]
        return np.array([step.step_ms if isinstance(step, MirroredStep) else np.nan for step in steps])

    @property
    def floor(self) -> float:
        """What equal plans differ by over all builds: the standard error of the first plan's ratio to itself."""
        ratios = self.local_ms(len(self.entries)) / self.local_ms(0)
        return float(np.sqrt(np.square(ratios - 1).mean() / len(ratios)))

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of `results.parquet`: one for each plan."""
        first_ms, found = self.local_ms(0), []
        for k, entry in enumerate(self.entries):
            local_ms, steps = self.local_ms(k), self.timelines(k)
            none = np.full((1, len(LOCAL_PHASES)), np.nan)
            phases = np.mean([step.slowest_ms for step in steps] or none, axis=0)
            found.append(
                entry.row()
                | {
                    "local_ms": float(np.median(local_ms)),
                    "exchange_ms": self.exchange_ms[k],
                    "beside_first": float(np.median(local_ms / first_ms)),
                    "predicted_beside_first": entry.predicted_ms / self.entries[0].predicted_ms,
                    **dict(zip(LOCAL_PHASES, phases.tolist(), strict=True)),
                    "ranks": [step.rank for step in self.builds[0][k]],
                    "floor": self.floor,
                    "error": self.error(k),
                }
            )
        return found

    def stretch_rows(self) -> list[dict[str, Any]]:
        """Return the rows of `stretches.parquet`: what every measured rank did in a step, in its order."""
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
        """Make the table that people read: a row for each plan, with local work by phase."""
        devices = plans_of(self.entries)[0].task.topology.num_devices
        grid = Grid(title=f"Mirrored steps on {devices} ranks, local ms, task {self.task}")
        grid.add_column("plan by")
        grid.add_column(FORMS_TITLE, justify="right")
        grid.add_column("ranks measured", justify="right")
        for column in (*LOCAL_PHASES, "local", "beside the first", "exchanges", "predicted cost"):
            grid.add_column(column, justify="right")
        for entry, row in zip(self.entries, self.rows(), strict=True):
            grid.add_row(
                Text(entry.method),
                forms_cell(entry.plan),
                _ranges(row["ranks"]),
                *(f"{row[phase]:.2f}" for phase in LOCAL_PHASES),
                f"{row['local_ms']:.2f}",
                f"{row['beside_first']:.3f}",
                *("-" if np.isnan(row[name]) else f"{row[name]:.2f}" for name in ("exchange_ms", "predicted_ms")),
            )
        return grid


def _ranges(ranks: Sequence[int]) -> str:
    """Ranks for people: "0-7", or one by one."""
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks))
