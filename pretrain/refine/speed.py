"""How fast the machine was in each round: others that share it, heat and where memory came to lie change that."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import least_squares

from neuroshard.plumbing.arrays import FloatArray
from neuroshard.records.samples import Measurement, Sample
from neuroshard.stages.pretrain.refine.rounds import Again, Part, Round, repeated

_REPEATED = 0.05  # what logarithms of two measurements at one speed are expected to differ by
_SPEEDS = 0.1  # what logarithms of rounds' speeds are


def slowness(rounds: Sequence[Round], part: Part) -> FloatArray:
    """(R,) how many times as long as the typical round's each round's measurements of the part took.

    Fitted to the ratios of samples that two rounds measured, with Huber's loss, and drawn to 1 the more, the fewer
    there are: all are 1 where there are none. A round's batches count as one.
    """
    pairs = [(its.number, one) for its in rounds for one in repeated([its], part) if one.before != its.number]
    if not pairs:
        return np.ones(len(rounds))
    later, earlier = np.array([number for number, _ in pairs]), np.array([one.before for _, one in pairs])
    ratio = np.array([_log_ratio(one) for _, one in pairs])

    def off(logs: FloatArray) -> FloatArray:
        return np.concatenate([(ratio - logs[later] + logs[earlier]) / _REPEATED, logs / _SPEEDS])

    found: FloatArray = np.exp(least_squares(off, np.zeros(len(rounds)), loss="huber").x)
    return found


def _log_ratio(one: Again) -> float:
    assert one.first_ms and one.again_ms
    return float(np.log(one.again_ms / one.first_ms))


def levelled(measured: Sequence[Measurement[Sample]], times: Sequence[float]) -> list[Measurement[Sample]]:
    """The measurements, which took so many `times` (n,) as long as at the typical speed, as if measured at that."""
    pairs = ((m, m.repeats, factor) for m, factor in zip(measured, times, strict=True))
    return [replace(m, repeats=None if repeats is None else repeats.times(1 / factor)) for m, repeats, factor in pairs]
