"""The noise of measurements: the differences between repeated measurements of the same samples.
The error of every cost model must be compared with the noise.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from neuroshard.measure.store.samples import LOCAL_PHASES, LocalSample, Measurement, Sample, as_drawn
from neuroshard.measure.store.splits import REFERENCE
from neuroshard.plumbing.arrays import FloatArray, IntArray
from neuroshard.plumbing.timing import repeatability

# Limit of pass_noise for fitting models; the installed CPU models were fitted to measurements with 17% to 28%.
FIT_NOISE = 0.3
_NINE_IN_TEN = 0.9
_UP_TO_PLANS = [number for number, phase in enumerate(LOCAL_PHASES) if phase != "dense"]


def fastest(chunks: Iterable[Iterable[Measurement[Sample]]]) -> list[Measurement[Sample]]:
    """Return the fastest measurement of each sample, separately for the first and the second pass over the samples.
    The fastest measurement is the most accurate, because disturbances only add time.

    A failed measurement counts only if all measurements of the sample failed. References are left out, because they
    only show the machine's speed. The result has the order in which the samples were first measured.
    """
    kept: list[Measurement[Sample]] = []
    places: dict[tuple[int, bool], list[int]] = {}
    for measurement in (m for chunk in chunks for m in chunk if m.split != REFERENCE):
        of_id = places.setdefault((measurement.sample_id, measurement.second_pass), [])
        same = next((place for place in of_id if as_drawn(kept[place].sample) == as_drawn(measurement.sample)), None)
        if same is None:
            of_id.append(len(kept))
            kept.append(measurement)
        elif _scalar_ms(measurement) < _scalar_ms(kept[same]):
            kept[same] = measurement
    return kept


def pass_repeatability(measurements: Sequence[Measurement[Any]]) -> FloatArray:
    """Return the relative difference between the first and the second time of every sample that was measured twice,
    (n,).

    An exchange counts with its maximum over devices of forward plus backward time. A rank's step counts with the
    device's local work without the dense network.
    """
    return repeatability(*_passes(measurements)[1:])


def pass_noise(measurements: Sequence[Measurement[Any]]) -> float:
    """Return the noise of the measurements: the 90% quantile of the relative differences between the first and the
    second time of a sample. In 9 of 10 samples that were measured twice, the difference is below the noise. If no
    sample was measured twice, return 0.
    """
    differences = pass_repeatability(measurements)
    return float(np.quantile(differences, _NINE_IN_TEN)) if len(differences) else 0.0


def pass_drift(measurements: Sequence[Measurement[Any]]) -> float:
    """Return the median relative difference by which the second pass was slower than the first pass.
    Return NaN without a second pass.
    """
    _, first, second = _passes(measurements)
    return float(np.median(second / first)) - 1 if len(first) else float("nan")


def disturbed(measurements: Sequence[Measurement[Any]], most: float) -> dict[int, bool]:
    """Return a dict of the samples that were measured twice with very different times: the relative difference is
    above `most`. The keys are the numbers of the samples. A value is True if the second measurement was slower.

    Disturbances only add time, so the slower pass is the disturbed one.
    """
    ids, first, second = _passes(measurements)
    beyond = repeatability(first, second) > most
    return dict(zip(ids[beyond].tolist(), (second > first)[beyond].tolist(), strict=True))


def _passes(measurements: Sequence[Measurement[Any]]) -> tuple[IntArray, FloatArray, FloatArray]:
    """Return the samples that were measured twice, as three arrays (n,).
    The arrays are the numbers of the samples, and the times in the first pass and in the second pass in ms.
    """
    first = {m.sample_id: m for m in measurements if not m.second_pass and m.repeats is not None}
    again = [m for m in measurements if m.second_pass and m.repeats is not None and m.sample_id in first]
    ids = np.array([m.sample_id for m in again], dtype=np.int64)
    first_ms, again_ms = (
        np.array([_scalar_ms(m) for m in pair]) for pair in ([first[m.sample_id] for m in again], again)
    )
    return ids, first_ms, again_ms


def _scalar_ms(measurement: Measurement[Any]) -> float:
    """Return the measurement as a single time in ms; infinity if the measurement failed.
    The time of an exchange is the maximum over devices of forward plus backward time. The time of a rank's step is the
    sum of all phases except the dense network.
    """
    if measurement.repeats is None:
        return float("inf")
    typical = measurement.typical_ms
    if isinstance(measurement.sample, LocalSample):
        return float(typical[_UP_TO_PLANS].sum())
    return float(typical) if typical.ndim == 0 else float(typical.sum(axis=0).max())
