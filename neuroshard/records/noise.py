"""How far measurements can be trusted: the noise floor beside which every error is read."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from neuroshard.arrays import FloatArray
from neuroshard.records.samples import Measurement
from neuroshard.timing import repeatability, typical_ms


def pass_repeatability(measurements: Sequence[Measurement[Any]]) -> FloatArray:
    """(n,) relative difference between the first and second pass of every sample that was measured twice.

    For exchanges, the largest over the devices of forward plus backward stands for the sample.
    """
    return repeatability(*_passes(measurements))


def pass_drift(measurements: Sequence[Measurement[Any]]) -> float:
    """By how much the second pass was slower than the first, relative, in the median; NaN without a second pass."""
    first, second = _passes(measurements)
    return float(np.median(second / first)) - 1 if len(first) else float("nan")


def _passes(measurements: Sequence[Measurement[Any]]) -> tuple[FloatArray, FloatArray]:
    """(n,) ms of both passes over every sample that was measured twice."""
    first = {m.sample_id: m for m in measurements if not m.second_pass and m.repeats is not None}
    pairs = [
        (_scalar_ms(first[m.sample_id]), _scalar_ms(m))
        for m in measurements
        if m.second_pass and m.repeats is not None and m.sample_id in first
    ]
    one, two = np.array(pairs).reshape(-1, 2).T
    return one, two


def _scalar_ms(measurement: Measurement[Any]) -> float:
    assert measurement.repeats is not None
    typical = typical_ms(measurement.repeats.times_ms)
    return float(typical) if typical.ndim == 0 else float(typical.sum(axis=0).max())
