"""The made-up devices whole, and measuring on them in the place of hardware: what is measured is known, and repeats."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from neuroshard.cost.loads import Traffic
from neuroshard.measure import DeviceSpec, Hardware, Meter, Outcome
from neuroshard.measure.hardware import Warn
from neuroshard.measure.store.sample_loads import loads_of, own_traffic
from neuroshard.measure.store.samples import BlockLookups, CommSample, ComputeSample, Measurement, Repeats, Sample
from neuroshard.models import CommModel, ComputeModel, CostModels
from neuroshard.models.comm_models import ExchangeModels
from neuroshard.models.interface import waits
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.timing import TimingProtocol
from neuroshard.words.collective import Collective
from neuroshard.words.fingerprint import Fingerprint
from neuroshard.words.form import FORMS
from tests.kit.devices.made_up_kernels import MadeUpCpu, MadeUpGpu, bounded_by

_HELD_UP = 0.7  # of the straggler's time, which all others take at least

# How many times an all-to-all's bytes go over a link: sums are sent on and sent back, or made on the way.
_ROUNDS = {
    Collective.ALL_TO_ALL: 1.0,
    Collective.REDUCE_SCATTER: 1.3,
    Collective.HOST_REDUCE_SCATTER: 1.3,
    Collective.HOST_ALL_TO_ALL: 1.0,
    Collective.ALL_REDUCE: 2.2,
}
_LEAST_SHARE = 0.2  # of the lookups that a block would have if they were spread evenly
Drawn = Sequence[tuple[Sample, str]]  # samples with the names of their splits
_LIVE = 16  # samples of a batch: each a chunk on disk


@dataclass(frozen=True)
class MadeUpExchange(CommModel):
    """A latency, and bytes over a link; all devices wait for the straggler, and for a switch that carries everything.

    Attributes:
        latency_ms: of an exchange.
        link_bytes_per_ms: of one device, in one direction.
        switch_links: so many links' bytes the switch carries at once.
    """

    latency_ms: float
    link_bytes_per_ms: float
    switch_links: float

    num_devices = None  # it serves any number

    def transfer_ms(self, traffic: Traffic, wait_ms: FloatArray) -> FloatArray:
        """Compute (B, D) ms of the all-to-all: own traffic, the busiest device's and the switch bound it."""
        to_each = traffic.size_bytes[..., Collective.ALL_TO_ALL] / traffic.num_devices
        sent, received = to_each * (traffic.num_devices - 1), to_each.sum(axis=1, keepdims=True) - to_each
        own = np.maximum(sent, received) / self.link_bytes_per_ms
        busiest = np.broadcast_to(own.max(axis=1, keepdims=True), own.shape)
        carried = sent.sum(axis=1, keepdims=True) / (self.link_bytes_per_ms * self.switch_links)
        transfer = bounded_by(own, _HELD_UP * busiest, np.broadcast_to(carried, own.shape))
        cost: FloatArray = (self.latency_ms + transfer) * (traffic.num_devices > 1)
        return np.broadcast_to(cost, wait_ms.shape)


def every_collective(exchange: MadeUpExchange) -> ExchangeModels:
    """Make models of a step's collectives between devices whose all-to-alls are these."""
    exchanges: dict[Collective, CommModel] = {
        collective: replace(exchange, link_bytes_per_ms=exchange.link_bytes_per_ms / rounds)
        for collective, rounds in _ROUNDS.items()
    }
    return ExchangeModels(exchanges, frozenset(FORMS))


@dataclass(frozen=True)
class MadeUpDevice:
    """A device's true costs by sharding type, and the global batch size and longest start delay of measurements.

    `forward` and `backward` are of all-to-alls; other collectives take as many more rounds on the same links.
    """

    compute: ComputeModel
    forward: MadeUpExchange
    backward: MadeUpExchange
    batch_size: int
    max_start_ms: float

    @property
    def truth(self) -> CostModels:
        """The true costs as cost models, for a simulator that knows the truth."""
        both = every_collective(self.forward), every_collective(self.backward)
        return CostModels(self.compute, *both, None, input=self.input)

    @property
    def input(self) -> MadeUpExchange:
        """Two all-to-alls, one after the other: of the numbers of indices, and of the indices."""
        return replace(self.forward, latency_ms=2 * self.forward.latency_ms)


MADE_UP = {
    "gpu": MadeUpDevice(
        MadeUpGpu(), MadeUpExchange(0.03, 2e8, 2.5), MadeUpExchange(0.04, 1.8e8, 2.5), 65536, max_start_ms=2.0
    ),
    "cpu": MadeUpDevice(
        MadeUpCpu(), MadeUpExchange(0.15, 4e6, 1.5), MadeUpExchange(0.2, 3e6, 1.5), 4096, max_start_ms=20.0
    ),
}


def measured_compute(
    device: MadeUpDevice, drawn: Drawn[ComputeSample], noise: float, rng: np.random.Generator
) -> list[Measurement[ComputeSample]]:
    """Measure each sample once: its time, times a lognormal factor whose logarithm has the standard deviation `noise`.

    The factor stands for what a measurement's repeats have in common; so there is one repeat.
    """
    seen = [(_looked_up(sample, rng), split) for sample, split in drawn]
    true_ms = device.compute.predict(loads_of([sample for sample, _ in seen])).tolist() if seen else []
    return _measurements(seen, [np.array([time * _factor(noise, rng)]) for time in true_ms])


def _looked_up(sample: ComputeSample, rng: np.random.Generator) -> ComputeSample:
    """Draw what a batch looks up in a sample's blocks of rows: about as much as in other rows, with the same reuse."""
    lookups = []
    for table, block in zip(sample.tables, sample.blocks, strict=False):
        even = sample.batch_size * table.pooling_factor * block.rows / table.rows
        lookups.append(BlockLookups(round(even * rng.uniform(_LEAST_SHARE, 2 - _LEAST_SHARE)), table.reuse))
    return replace(sample, lookups=tuple(lookups))


def measured_comm(
    device: MadeUpDevice, drawn: Drawn[CommSample], noise: float, rng: np.random.Generator
) -> list[Measurement[CommSample]]:
    """Measure each exchange once in both directions; the factors are on transfers, not on waits."""
    return _measurements(drawn, [_exchange_ms(device, sample, noise, rng)[None] for sample, _ in drawn])


def _exchange_ms(device: MadeUpDevice, sample: CommSample, noise: float, rng: np.random.Generator) -> FloatArray:
    """Measure ms, (2, D): forward after the start delays, backward with none; input and all-reduces alike both ways."""
    traffic, (there, back) = own_traffic(sample), _models(device, sample.collective)
    groups, alone = traffic.groups(sample.collective), traffic.alone(sample.collective)
    wait_ms = waits(np.array(sample.start_ms)[groups])
    forward = wait_ms + there.transfer_ms(alone, wait_ms) * _factor(noise, rng)
    backward = back.transfer_ms(alone, np.zeros_like(wait_ms)) * _factor(noise, rng)
    times_ms = np.empty((2, sample.num_devices))
    times_ms[:, groups] = np.stack([forward, backward])
    return times_ms


def _models(device: MadeUpDevice, collective: Collective) -> tuple[CommModel, CommModel]:
    """Return the models of what the collective takes with the delays, and without."""
    if collective is Collective.INPUT:
        return device.input, device.input
    forward, backward = every_collective(device.forward), every_collective(device.backward)
    models = forward.exchanges[collective], backward.exchanges[collective]
    return (models[1], models[1]) if collective is Collective.ALL_REDUCE else models


def _factor(noise: float, rng: np.random.Generator) -> float:
    return float(np.exp(noise * rng.standard_normal()))


def _measurements(drawn: Drawn[Sample], times_ms: Sequence[FloatArray]) -> list[Measurement[Sample]]:
    return [
        Measurement(sample, number, split, 0, Repeats(times, np.zeros(1)))
        for number, ((sample, split), times) in enumerate(zip(drawn, times_ms, strict=True))
    ]


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
        """A fingerprint that no real machine has."""
        return Fingerprint("cpu", "made up", 1, 1 << 40)

    def check(self) -> None:
        """Accept this machine: made-up hardware can always be measured on."""

    def compute_meter(self, warn: Warn) -> Meter[ComputeSample]:
        """Make the meter that says what kernel calls cost on the device."""
        return _Meter(measured_compute, self.made_up, self.noise)

    def comm_meter(self, num_devices: int, warn: Warn) -> Meter[CommSample]:
        """Make the meter that says what exchanges cost."""
        return _Meter(measured_comm, self.made_up, self.noise)


@dataclass(frozen=True)
class _Meter(Meter[Sample]):
    measured: Callable[..., list[Measurement[Sample]]]
    device: MadeUpDevice
    noise: float

    def close(self) -> None:
        """Do nothing: there is nothing to end."""

    def measure(self, samples: Sequence[Sample], seeds: Sequence[int]) -> list[Outcome]:
        """Measure each sample by itself, so that its noise depends on its seed alone."""
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
        """Measure as the meter does, times the next factor."""
        factor = next(self.factors)
        outcomes = self.meter.measure(samples, seeds)
        return [replace(one, repeats=None if one.repeats is None else one.repeats.times(factor)) for one in outcomes]
