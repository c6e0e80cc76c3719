"""How fast the machine was in each round: others that share it, heat and where memory came to lie change that."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import least_squares

from neuroshard.arrays import FloatArray
from neuroshard.records.samples import Measurement, Sample
from neuroshard.records.splits import TRAIN
from neuroshard.refine.rounds import Part, Round

_REPEATED = 0.05  # what logarithms of two measurements at one speed are expected to differ by
_SPEEDS = 0.1  # what logarithms of rounds' speeds are
_LEAST_MS = 1e-9


def slowness(rounds: Sequence[Round], part: Part) -> FloatArray:
    """(R,) how many times the typical round's time each takes, by what samples that two rounds measured took in both.

    The most probable ones, as if logarithms of speeds and of measurements were normal, but for a few: rounds that share
    few samples are taken to be alike. All are 1 where none are shared.
    """
    pairs = [
        (one.before, its.number, one.first_ms, one.again_ms)
        for its in rounds
        for one in its.again
        if one.part == part and one.before != its.number and one.first_ms and one.again_ms
    ]
    if not pairs:
        return np.ones(len(rounds))
    earlier, later = np.array([pair[:2] for pair in pairs]).T
    first, again = np.log(np.maximum([pair[2:] for pair in pairs], _LEAST_MS)).T

    def off(logs: FloatArray) -> FloatArray:
        return np.concatenate([(again - first - logs[later] + logs[earlier]) / _REPEATED, logs / _SPEEDS])

    found: FloatArray = np.exp(least_squares(off, np.zeros(len(rounds)), loss="huber").x)
    return found


def at_typical_speed(
    measured: Sequence[Measurement[Sample]], rounds: Sequence[Round], part: Part
) -> list[Measurement[Sample]]:
    """The measurements of the rounds; those that are trained on as if all rounds had been as fast as the typical one.

    Those for validation stay as they are: margins set on them hold changes of speed too.
    """
    factors = slowness(rounds, part)
    of_round = np.repeat(np.arange(len(rounds)), [one.count(part) for one in rounds])
    return [_slower(m, 1 / factors[of_round[m.sample_id]]) if m.split == TRAIN else m for m in measured]


def _slower(measurement: Measurement[Sample], factor: float) -> Measurement[Sample]:
    assert measurement.repeats is not None
    repeats = measurement.repeats
    return replace(measurement, repeats=replace(repeats, times_ms=repeats.times_ms * factor))
