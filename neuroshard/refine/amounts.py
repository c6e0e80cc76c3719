"""One number for every sample, predicted and measured: ms of a kernel call, or of an exchange without waiting."""

from collections.abc import Sequence

import numpy as np

from neuroshard.models import CostModels
from neuroshard.models.interface import waits
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.timing import typical_ms
from neuroshard.records.sample_loads import loads_of, traffic_of
from neuroshard.records.samples import BACKWARD, FORWARD, CommSample, ComputeSample, Repeats


def predicted_calls(models: CostModels, samples: Sequence[ComputeSample]) -> list[float]:
    """Predict (n,) ms of the kernel calls of n samples."""
    return [float(ms) for ms in models.compute.predict(loads_of(samples))] if samples else []


def predicted_exchanges(models: CostModels, samples: Sequence[CommSample]) -> list[float]:
    """(n,) ms of the device of each that takes longest for both ways."""
    return [_predicted(models, sample) for sample in samples]


def _predicted(models: CostModels, sample: CommSample) -> float:
    traffic, starts = traffic_of([sample]), np.array([sample.start_ms])
    there = models.forward.predict(traffic, starts) - waits(starts)
    return float((there + models.backward.predict(traffic, np.zeros_like(starts))).max())


def measured_call(_sample: ComputeSample, repeats: Repeats) -> float:
    """Return the typical ms of a kernel call's repeats."""
    return float(typical_ms(repeats.times_ms))


def measured_exchange(sample: CommSample, repeats: Repeats) -> float:
    """Ms of the device that takes longest for both ways, without waiting; noise can make that next to nothing."""
    times: FloatArray = typical_ms(repeats.times_ms)
    there = times[FORWARD] - waits(np.array([sample.start_ms]))[0]
    return max(float((there + times[BACKWARD]).max()), 0.0)
