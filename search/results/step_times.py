"""What training steps of several plans took: every build on disk, plans beside the first one."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from neuroshard.hardware.step_samples import PHASES, BuildTimes
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.journal import Journal

LOOKUPS_ALONE = "lookups, one device after another"


@dataclass(frozen=True)
class Build:
    """What one build of a task's K plans took, and of the first one once more: (K + 1,)."""

    plans: tuple[BuildTimes, ...]


def builds_in(run: Path, task: int, plans: int) -> Journal[Build]:
    """The builds of a task's plans in a run's directory, so many each: `builds/task-0000/build-0000.json`."""

    def wrong(_: int, build: Build) -> str | None:
        its = build.plans
        fits = len(its) == plans and all(one.error is not None or len(one.phase_ms) == len(PHASES) for one in its)
        return None if fits else f"is not of {plans} plans"

    return Journal(run / "builds" / f"task-{task:04d}", "build", Build, wrong)


@dataclass(frozen=True, eq=False)
class StepTimes:
    """Steps of the K plans of one task over B builds.

    Attributes:
        turns_ms: (B, K + 1, R) of a step in each turn; the last plan is the first one once more. Not a number where a
            build failed.
        phases_ms: (B, K + 1, P) of a step's phases.
        alones_ms: (B, K + 1) of its lookups, one rank after another.
        errors: (K + 1,) the first that stopped a build of each.
    """

    turns_ms: FloatArray
    phases_ms: FloatArray
    alones_ms: FloatArray
    errors: tuple[str | None, ...]

    @classmethod
    def of(cls, builds: Sequence[Build]) -> "StepTimes":
        """Gather the times of all builds; NaN where one stopped with an error."""
        its = [build.plans for build in builds]
        turns = max((len(one.step_ms) for build in its for one in build), default=1) or 1
        return cls(
            np.array([[one.step_ms or (np.nan,) * turns for one in build] for build in its]),
            np.array([[one.phase_ms or (np.nan,) * len(PHASES) for one in build] for build in its]),
            np.array([[one.alone_ms if one.step_ms else np.nan for one in build] for build in its]),
            tuple(next((one.error for one in of_plan if one.error), None) for of_plan in zip(*its, strict=True)),
        )

    @property
    def step_ms(self) -> FloatArray:
        """(K,) median over all turns."""
        medians: FloatArray = np.median(self.turns_ms, axis=(0, 2))[:-1]
        return medians

    @property
    def phase_ms(self) -> FloatArray:
        """(K, P) mean over builds."""
        means: FloatArray = self.phases_ms.mean(axis=0)[:-1]
        return means

    @property
    def alone_ms(self) -> FloatArray:
        """(K,) mean over builds."""
        means: FloatArray = self.alones_ms.mean(axis=0)[:-1]
        return means

    @property
    def ratios(self) -> FloatArray:
        """(K, B) of each plan's step beside the first one's: the median of a build's turns, taken turn by turn."""
        return self._ratios[:-1]

    @property
    def floor(self) -> float:
        """What equal plans differ by over all builds: the standard error of the first plan's ratio to itself."""
        builds = self._ratios.shape[1]
        return float(np.sqrt(np.square(self._ratios[-1] - 1).mean() / builds))

    @property
    def _ratios(self) -> FloatArray:
        ratios: FloatArray = np.median(self.turns_ms / self.turns_ms[:, :1], axis=2).T
        return ratios


def phase_rows(times: StepTimes, names: Sequence[str], task: int) -> list[dict[str, Any]]:
    """Return the rows of `phases.parquet`: one for each plan, with ms of each phase, and of lookups alone."""
    return [
        {"method": name, "task": task, **dict(zip(PHASES, its.tolist(), strict=True)), LOOKUPS_ALONE: float(alone_ms)}
        for name, its, alone_ms in zip(names, times.phase_ms, times.alone_ms, strict=True)
    ]
