"""What training steps of several plans took: every build on disk, plans beside the first one."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from neuroshard.hardware.step_samples import PHASES, BuildTimes
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import read_json, write_json
from neuroshard.plumbing.schema import of_format, parse

_FORMAT = "neuroshard-build-2"
LOOKUPS_ALONE = "lookups, one device after another"
Build = tuple[BuildTimes, ...]  # (K + 1,) of a task's K plans, and of the first one once more


@dataclass(frozen=True)
class _Build:
    plans: Build


@dataclass(frozen=True)
class BuildFiles:
    """In a run's directory, `builds/task-0000/build-00.json`: what each build of a task's plans took."""

    run: Path
    task: int

    def keep(self, number: int, build: Sequence[BuildTimes]) -> None:
        """Write what one build of all plans took to its file."""
        write_json(self._build(number), {"format": _FORMAT, "plans": [asdict(one) for one in build]})

    def read(self, plans: int) -> tuple[Build, ...]:
        """The builds there are, each of so many plans.

        Raises:
            UserError: a file is damaged, or of other plans.
        """
        found: list[Build] = []
        while (path := self._build(len(found))).exists():
            its = parse(of_format(read_json(path, "build"), _FORMAT, f"build {path}"), _Build, f"build {path}").plans
            if len(its) != plans or any(len(one.phase_ms) != len(PHASES) for one in its if one.error is None):
                raise UserError(f"build {path} is not of {plans} plans; delete it, and it is measured again")
            found.append(its)
        return tuple(found)

    def _build(self, number: int) -> Path:
        return self.run / "builds" / f"task-{self.task:04d}" / f"build-{number:02d}.json"


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
        turns = max((len(one.step_ms) for its in builds for one in its), default=1) or 1
        stopped = ([one.error for one in its if one.error is not None] for its in zip(*builds, strict=True))
        return cls(
            np.array([[one.step_ms or (np.nan,) * turns for one in its] for its in builds]),
            np.array([[one.phase_ms or (np.nan,) * len(PHASES) for one in its] for its in builds]),
            np.array([[one.alone_ms if one.step_ms else np.nan for one in its] for its in builds]),
            tuple(next(iter(its), None) for its in stopped),
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
