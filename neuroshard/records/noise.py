"""How far measurements can be trusted: the noise floor to compare every error with."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from neuroshard.plumbing.arrays import FloatArray, IntArray
from neuroshard.plumbing.timing import repeatability
from neuroshard.records.samples import LOCAL_PHASES, LocalSample, Measurement, Sample, as_drawn
from neuroshard.records.splits import REFERENCE

# Limit of pass_noise for fitting models; the installed CPU models were fitted to measurements with 17% to 28%.
FIT_NOISE = 0.3
_NINE_IN_TEN = 0.9
_UP_TO_PLANS = [number for number, phase in enumerate(LOCAL_PHASES) if phase != "dense"]


def fastest(chunks: Iterable[Iterable[Measurement[Sample]]]) -> list[Measurement[Sample]]:
    """Keep of each sample in each pass the fastest measurement, where there are several: disturbances only add time.

    One that failed counts if all did; references count for nothing but the machine's speed. The others keep the order
    in which samples were measured first.
    """
    kept: list[Measurement[Sample]] = []
    places: dict[tuple[int, bool], list[int]] = {}
    for one in (m for chunk in chunks for m in chunk if m.split != REFERENCE):
        of_id = places.setdefault((one.sample_id, one.second_pass), [])
        same = next((place for place in of_id if as_drawn(kept[place].sample) == as_drawn(one.sample)), None)
        if same is None:
            of_id.append(len(kept))
            kept.append(one)
        elif _scalar_ms(one) < _scalar_ms(kept[same]):
            kept[same] = one
    return kept


def pass_repeatability(measurements: Sequence[Measurement[Any]]) -> FloatArray:
    """Compute the relative difference between both passes of every sample that was measured twice, (n,).

    For exchanges, the largest over the devices of forward plus backward stands for the sample; for a rank's step, what
    its device does of it but for the dense network.
    """
    return repeatability(*_passes(measurements)[1:])


def pass_noise(measurements: Sequence[Measurement[Any]]) -> float:
    """Compute the relative difference between passes that nine in ten samples stay below; 0 without a second pass."""
    differences = pass_repeatability(measurements)
    return float(np.quantile(differences, _NINE_IN_TEN)) if len(differences) else 0.0


def pass_drift(measurements: Sequence[Measurement[Any]]) -> float:
    """Compute by how much the second pass was slower than the first, relative, in the median; NaN without a second."""
    _, first, second = _passes(measurements)
    return float(np.median(second / first)) - 1 if len(first) else float("nan")


def disturbed(measurements: Sequence[Measurement[Any]], most: float) -> dict[int, bool]:
    """Find the samples whose passes differ by more than `most`, relative, and whether the second was the slower one.

    Disturbances only add time, so the slower pass is the one that was disturbed.
    """
    ids, first, second = _passes(measurements)
    beyond = repeatability(first, second) > most
    return dict(zip(ids[beyond].tolist(), (second > first)[beyond].tolist(), strict=True))


def _passes(measurements: Sequence[Measurement[Any]]) -> tuple[IntArray, FloatArray, FloatArray]:
    """Find the numbers of the samples that were measured twice, (n,), and the ms of both passes over them."""
    first = {m.sample_id: m for m in measurements if not m.second_pass and m.repeats is not None}
    again = [m for m in measurements if m.second_pass and m.repeats is not None and m.sample_id in first]
    ids = np.array([m.sample_id for m in again], dtype=np.int64)
    one, two = (np.array([_scalar_ms(m) for m in its]) for its in ([first[m.sample_id] for m in again], again))
    return ids, one, two


def _scalar_ms(measurement: Measurement[Any]) -> float:
    """Reduce a measurement to one time, ms; infinite if it failed."""
    if measurement.repeats is None:
        return float("inf")
    typical = measurement.typical_ms
    if isinstance(measurement.sample, LocalSample):
        return float(typical[_UP_TO_PLANS].sum())
    return float(typical) if typical.ndim == 0 else float(typical.sum(axis=0).max())
