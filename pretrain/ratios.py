"""How many times what models predict a machine takes: its speed beside theirs."""

from collections.abc import Sequence

import numpy as np

from neuroshard.arrays import FloatArray
from neuroshard.models import CommModel
from neuroshard.models.interface import waits
from neuroshard.records import samples as records
from neuroshard.records.asked import traffic_of
from neuroshard.records.samples import CommSample, Measurement
from neuroshard.stages.pretrain.result import Predicted
from neuroshard.timing import typical_ms

LEAST_MS = 1e-3  # what takes less counts as this


def typical_ratio(predicted: Predicted) -> float:
    """The median of measured over predicted."""
    return _median_ratio(predicted.measured_ms, predicted.predicted_ms)


def transfer_ratio(model: CommModel, measured: Sequence[Measurement[CommSample]], direction: int) -> float:
    """The same of transfers alone, of every device of exchanges in one direction: waiting is no matter of speed."""
    pairs = [_transfers(model, m, direction) for m in measured]
    found, foreseen = (np.concatenate(part) for part in zip(*pairs, strict=True))
    return _median_ratio(found, foreseen)


def _transfers(model: CommModel, measurement: Measurement[CommSample], direction: int) -> tuple[FloatArray, FloatArray]:
    """(D,) ms measured and predicted, without waiting."""
    assert measurement.repeats is not None
    starts = np.array([measurement.sample.start_ms]) * (direction == records.FORWARD)
    wait = waits(starts)
    taken = typical_ms(measurement.repeats.times_ms)[direction]
    return taken - wait[0], model.transfer_ms(traffic_of([measurement.sample]), wait)[0]


def _median_ratio(measured: FloatArray, predicted: FloatArray) -> float:
    return float(np.median(np.maximum(measured, LEAST_MS) / np.maximum(predicted, LEAST_MS)))
