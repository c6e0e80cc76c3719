"""The made-up devices whole, and measuring on them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from neuroshard.arrays import FloatArray
from neuroshard.loads import LoadSets
from neuroshard.models import CommModel, ComputeModel, CostModels
from neuroshard.models.interface import waits
from neuroshard.records.samples import CommSample, ComputeSample, Measurement, Repeats, Sample
from neuroshard.testing.devices.cpu import MadeUpCpu
from neuroshard.testing.devices.exchange import MadeUpExchange
from neuroshard.testing.devices.gpu import MadeUpGpu
from neuroshard.traffic import Traffic


@dataclass(frozen=True)
class MadeUpDevice:
    """What it truly costs, and the global batch size and longest start delay that it is measured with."""

    compute: ComputeModel
    forward: CommModel
    backward: CommModel
    batch_size: int
    max_start_ms: float

    @property
    def truth(self) -> CostModels:
        """As cost models, for a simulator that knows the truth."""
        return CostModels(self.compute, self.forward, self.backward, None)


MADE_UP = {
    "gpu": MadeUpDevice(
        MadeUpGpu(), MadeUpExchange(0.03, 2e8, 2.5), MadeUpExchange(0.04, 1.8e8, 2.5), 65536, max_start_ms=2.0
    ),
    "cpu": MadeUpDevice(
        MadeUpCpu(), MadeUpExchange(0.15, 4e6, 1.5), MadeUpExchange(0.2, 3e6, 1.5), 4096, max_start_ms=20.0
    ),
}

Drawn = Sequence[tuple[Sample, str]]  # samples with the names of their splits


def measured_compute(
    device: MadeUpDevice, drawn: Drawn[ComputeSample], noise: float, rng: np.random.Generator
) -> list[Measurement[ComputeSample]]:
    """Each sample measured once, its time times a lognormal factor whose logarithm has the standard deviation `noise`.

    The factor stands for what a measurement's repeats have in common; so there is one repeat.
    """
    true_ms = [float(device.compute.predict(LoadSets.of([sample.tables], sample.batch_size))[0]) for sample, _ in drawn]
    return _measurements(drawn, [np.array([time * _factor(noise, rng)]) for time in true_ms])


def measured_comm(
    device: MadeUpDevice, drawn: Drawn[CommSample], noise: float, rng: np.random.Generator
) -> list[Measurement[CommSample]]:
    """Each exchange measured once in both directions; the factors are on transfers, not on waits."""
    return _measurements(drawn, [_exchange_ms(device, sample, noise, rng)[None] for sample, _ in drawn])


def _exchange_ms(device: MadeUpDevice, sample: CommSample, noise: float, rng: np.random.Generator) -> FloatArray:
    """(2, D) ms: forward after the start delays, backward without any."""
    traffic = Traffic.of_columns(np.array([sample.dims], dtype=np.float64), sample.batch_size)
    wait_ms = waits(np.array([sample.start_ms]))
    forward = wait_ms + device.forward.transfer_ms(traffic, wait_ms) * _factor(noise, rng)
    backward = device.backward.transfer_ms(traffic, np.zeros_like(wait_ms)) * _factor(noise, rng)
    return np.concatenate([forward, backward])


def _factor(noise: float, rng: np.random.Generator) -> float:
    return float(np.exp(noise * rng.standard_normal()))


def _measurements(drawn: Drawn[Sample], times_ms: Sequence[FloatArray]) -> list[Measurement[Sample]]:
    return [
        Measurement(sample, number, split, 0, Repeats(times, np.zeros(1)))
        for number, ((sample, split), times) in enumerate(zip(drawn, times_ms, strict=True))
    ]
