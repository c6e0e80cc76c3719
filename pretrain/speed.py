"""How fast a machine was when: others that share it, heat and where memory came to lie change that."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import least_squares

from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.timing import typical_ms
from neuroshard.records.samples import Measurement, Sample

_REPEATED = 0.05  # what logarithms of two measurements at one speed are expected to differ by
_SPEEDS = 0.1  # what logarithms of speeds are


@dataclass(frozen=True)
class Pair:
    """One sample that was measured in two spells of the machine, by their numbers."""

    earlier: int
    later: int
    first_ms: float
    again_ms: float


def slowness_of(spells: int, pairs: Sequence[Pair]) -> FloatArray:
    """(S,) how many times as long as in the typical spell measurements took in each.

    Fitted to the ratios of samples that two spells measured, with Huber's loss, and drawn to 1 the more, the fewer
    there are: all are 1 where there are none.
    """
    pairs = [one for one in pairs if one.earlier != one.later]
    if not pairs:
        return np.ones(spells)
    later, earlier = np.array([one.later for one in pairs]), np.array([one.earlier for one in pairs])
    ratio = np.array([float(np.log(one.again_ms / one.first_ms)) for one in pairs])

    def off(logs: FloatArray) -> FloatArray:
        return np.concatenate([(ratio - logs[later] + logs[earlier]) / _REPEATED, logs / _SPEEDS])

    found: FloatArray = np.exp(least_squares(off, np.zeros(spells), loss="huber").x)
    return found


def levelled(measured: Sequence[Measurement[Sample]], times: Sequence[float]) -> list[Measurement[Sample]]:
    """The measurements, which took so many `times` (n,) as long as at the typical speed, as if measured at that."""
    pairs = ((m, m.repeats, factor) for m, factor in zip(measured, times, strict=True))
    return [replace(m, repeats=None if repeats is None else repeats.times(1 / factor)) for m, repeats, factor in pairs]


def at_one_speed(parts: Sequence[Sequence[Measurement[Sample]]]) -> list[Measurement[Sample]]:
    """The kernel calls of all parts as if measured at the typical one's speed, which calls measured in several tell."""
    first: dict[int, tuple[int, float]] = {}
    pairs: list[Pair] = []
    for number, part in enumerate(parts):
        for m in part:
            if m.repeats is not None and (ms := float(typical_ms(m.repeats.times_ms))) > 0:
                earlier, first_ms = first.setdefault(m.sample_id, (number, ms))
                pairs.append(Pair(earlier, number, first_ms, ms))
    slowness = slowness_of(len(parts), pairs).tolist()
    return [m for part, factor in zip(parts, slowness, strict=True) for m in levelled(part, [factor] * len(part))]
