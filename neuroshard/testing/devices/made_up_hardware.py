"""Made-up devices in the place of hardware: what runs measure is known exactly, and repeats."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from neuroshard.hardware import DeviceSpec, Hardware, Meter, Outcome
from neuroshard.hardware.hardware import Warn
from neuroshard.plumbing.timing import TimingProtocol
from neuroshard.records.samples import CommSample, ComputeSample, Measurement, Sample
from neuroshard.testing.devices.made_up import MADE_UP, MadeUpDevice, measured_comm, measured_compute
from neuroshard.words.fingerprint import Fingerprint

_LIVE = 16  # samples of a batch: each a part on disk


@dataclass(frozen=True)
class MadeUpHardware(Hardware):
    """A made-up device that is measured with some noise, as `measured_compute` says; the same seed, the same noise."""

    device: DeviceSpec = field(default_factory=lambda: DeviceSpec("cpu"))
    compute_timing: TimingProtocol = field(default_factory=lambda: TimingProtocol(live=_LIVE))
    comm_timing: TimingProtocol = field(default_factory=lambda: TimingProtocol(live=_LIVE))
    made_up: MadeUpDevice = MADE_UP["cpu"]
    noise: float = 0.05

    @property
    def fingerprint(self) -> Fingerprint:
        """Return a fingerprint that no real machine has."""
        return Fingerprint("cpu", "made up", 1, 1 << 40)

    def check(self) -> None:
        """It can always be measured on."""

    def compute_meter(self, warn: Warn) -> Meter[ComputeSample]:
        """Says what kernel calls cost on the device."""
        return _Meter(measured_compute, self.made_up, self.noise)

    def comm_meter(self, num_devices: int, warn: Warn) -> Meter[CommSample]:
        """Says what exchanges cost."""
        return _Meter(measured_comm, self.made_up, self.noise)


@dataclass(frozen=True)
class _Meter(Meter[Sample]):
    measured: Callable[..., list[Measurement[Sample]]]
    device: MadeUpDevice
    noise: float

    def close(self) -> None:
        """There is nothing to end."""

    def measure(self, samples: Sequence[Sample], seeds: Sequence[int]) -> list[Outcome]:
        """Each by itself, so that a sample's noise hangs on its seed alone."""
        return [
            _outcome(self.measured(self.device, [(sample, "train")], self.noise, np.random.default_rng(seed))[0])
            for sample, seed in zip(samples, seeds, strict=True)
        ]


def _outcome(measurement: Measurement[Any]) -> Outcome:
    sample = measurement.sample
    return Outcome(measurement.repeats, None, 0.0, sample.lookups if isinstance(sample, ComputeSample) else ())


@dataclass(frozen=True)
class SlowerBy(Meter[Any]):
    """A meter under which a machine is now faster, now slower: each batch takes the next factor times as long."""

    meter: Meter[Any]
    factors: Iterator[float]

    def close(self) -> None:
        """End the meter's processes."""
        self.meter.close()

    def measure(self, samples: Sequence[Any], seeds: Sequence[int]) -> list[Outcome]:
        """As the meter, times the factor."""
        factor = next(self.factors)
        found = self.meter.measure(samples, seeds)
        return [replace(one, repeats=None if one.repeats is None else one.repeats.times(factor)) for one in found]
