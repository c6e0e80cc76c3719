"""Made-up devices, and made-up hardware that measures on them: measurements repeat, and their true values are known."""

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

_HELD_UP = 0.7  # all other devices take at least this share of the straggler's time

# Multiples of the bytes of an all-to-all that go over a link; collectives that sum may send bytes more than once.
_ROUNDS = {
    Collective.ALL_TO_ALL: 1.0,
    Collective.REDUCE_SCATTER: 1.3,
    Collective.HOST_REDUCE_SCATTER: 1.3,
    Collective.HOST_ALL_TO_ALL: 1.0,
    Collective.ALL_REDUCE: 2.2,
}
_LEAST_SHARE = 0.2  # least lookups of a block, as a share of evenly spread lookups
Drawn = Sequence[tuple[Sample, str]]  # samples with the names of their splits
_LIVE = 16  # samples per batch; each batch is a chunk on disk


@dataclass(frozen=True)
class MadeUpExchange(CommModel):
    """An exchange that takes a latency and the time of its bytes on a link; the straggler and the switch bound it too.

    Attributes:
        latency_ms: latency of an exchange.
        link_bytes_per_ms: bandwidth of the link of a device in one direction.
        switch_links: bandwidth of the switch, as a multiple of the bandwidth of a link.
    """

    latency_ms: float
    link_bytes_per_ms: float
    switch_links: float

    num_devices = None  # it serves any number

    def transfer_ms(self, traffic: Traffic, wait_ms: FloatArray) -> FloatArray:
        """Return the ms (B, D) of an all-to-all, bounded by own traffic, that of the straggler, and the switch."""
        to_each = traffic.size_bytes[..., Collective.ALL_TO_ALL] / traffic.num_devices
        sent, received = to_each * (traffic.num_devices - 1), to_each.sum(axis=1, keepdims=True) - to_each
        own = np.maximum(sent, received) / self.link_bytes_per_ms
        busiest = np.broadcast_to(own.max(axis=1, keepdims=True), own.shape)
        carried = sent.sum(axis=1, keepdims=True) / (self.link_bytes_per_ms * self.switch_links)
        transfer = bounded_by(own, _HELD_UP * busiest, np.broadcast_to(carried, own.shape))
        cost: FloatArray = (self.latency_ms + transfer) * (traffic.num_devices > 1)
        return np.broadcast_to(cost, wait_ms.shape)


def every_collective(exchange: MadeUpExchange) -> ExchangeModels:
    """Make exchange models of all collectives of a step from the model of all-to-alls."""
    exchanges: dict[Collective, CommModel] = {
        collective: replace(exchange, link_bytes_per_ms=exchange.link_bytes_per_ms / rounds)
        for collective, rounds in _ROUNDS.items()
    }
    return ExchangeModels(exchanges, frozenset(FORMS))


@dataclass(frozen=True)
class MadeUpDevice:
    """The true costs of a made-up device, and the global batch size and the longest start delay of its measurements.

    `forward` and `backward` are models of all-to-alls; other collectives send multiples of the bytes (`_ROUNDS`).
    """

    compute: ComputeModel
    forward: MadeUpExchange
    backward: MadeUpExchange
    batch_size: int
    max_start_ms: float

    @property
    def truth(self) -> CostModels:
        """Cost models that predict the true costs."""
        both = every_collective(self.forward), every_collective(self.backward)
        return CostModels(self.compute, *both, None, input=self.input)

    @property
    def input(self) -> MadeUpExchange:
        """The input dist: two all-to-alls, first of the numbers of indices, then of the indices."""
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
    """Measure each sample once: its true time, multiplied by a random factor whose logarithm has deviation `noise`.

    The factor is common to all repeats of a measurement, so that one repeat suffices.
    """
    seen = [(_looked_up(sample, rng), split) for sample, split in drawn]
    true_ms = device.compute.predict(loads_of([sample for sample, _ in seen])).tolist() if seen else []
    return _measurements(seen, [np.array([time * _factor(noise, rng)]) for time in true_ms])


def _looked_up(sample: ComputeSample, rng: np.random.Generator) -> ComputeSample:
    """Draw the lookups of a batch in the row blocks of a sample: 0.2 to 1.8 times an even share, with equal reuse."""
    lookups = []
    for table, block in zip(sample.tables, sample.blocks, strict=False):
        even = sample.batch_size * table.pooling_factor * block.rows / table.rows
        lookups.append(BlockLookups(round(even * rng.uniform(_LEAST_SHARE, 2 - _LEAST_SHARE)), table.reuse))
    return replace(sample, lookups=tuple(lookups))


def measured_comm(
    device: MadeUpDevice, drawn: Drawn[CommSample], noise: float, rng: np.random.Generator
) -> list[Measurement[CommSample]]:
    """Measure each exchange once in both directions; the noise factors apply to transfers, not to waits."""
    return _measurements(drawn, [_exchange_ms(device, sample, noise, rng)[None] for sample, _ in drawn])


def _exchange_ms(device: MadeUpDevice, sample: CommSample, noise: float, rng: np.random.Generator) -> FloatArray:
    """Measure ms (2, D) of an exchange: forward after the start delays, then backward without delays."""
    traffic, (there, back) = own_traffic(sample), _models(device, sample.collective)
    groups, alone = traffic.groups(sample.collective), traffic.alone(sample.collective)
    wait_ms = waits(np.array(sample.start_ms)[groups])
    forward = wait_ms + there.transfer_ms(alone, wait_ms) * _factor(noise, rng)
    backward = back.transfer_ms(alone, np.zeros_like(wait_ms)) * _factor(noise, rng)
    times_ms = np.empty((2, sample.num_devices))
    times_ms[:, groups] = np.stack([forward, backward])
    return times_ms


def _models(device: MadeUpDevice, collective: Collective) -> tuple[CommModel, CommModel]:
    """Return the exchange models of a collective after the start delays, and without delays."""
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
    """Hardware that measures a made-up device with noise, as `measured_compute` does; equal seeds give equal noise."""

    device: DeviceSpec = field(default_factory=lambda: DeviceSpec("cpu"))
    compute_timing: TimingProtocol = field(default_factory=lambda: TimingProtocol(live=_LIVE))
    comm_timing: TimingProtocol = field(default_factory=lambda: TimingProtocol(live=_LIVE))
    made_up: MadeUpDevice = MADE_UP["cpu"]
    noise: float = 0.05

    @property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of the made-up machine, which no real machine has."""
        return Fingerprint("cpu", "made up", 1, 1 << 40)

    def check(self) -> None:
        """Do nothing: made-up hardware can always be measured."""

    def compute_meter(self, warn: Warn) -> Meter[ComputeSample]:
        """Make the meter of kernel calls."""
        return _Meter(measured_compute, self.made_up, self.noise)

    def comm_meter(self, num_devices: int, warn: Warn) -> Meter[CommSample]:
        """Make the meter of exchanges."""
        return _Meter(measured_comm, self.made_up, self.noise)


@dataclass(frozen=True)
class _Meter(Meter[Sample]):
    measured: Callable[..., list[Measurement[Sample]]]
    device: MadeUpDevice
    noise: float

    def close(self) -> None:
        """Do nothing: the meter has no processes."""

    def measure(self, samples: Sequence[Sample], seeds: Sequence[int]) -> list[Outcome]:
        """Measure each sample separately, so that its noise depends only on its seed."""
        return [
            _outcome(self.measured(self.device, [(sample, "train")], self.noise, np.random.default_rng(seed))[0])
            for sample, seed in zip(samples, seeds, strict=True)
        ]


def _outcome(measurement: Measurement[Any]) -> Outcome:
    sample = measurement.sample
    return Outcome(measurement.repeats, None, 0.0, sample.lookups if isinstance(sample, ComputeSample) else ())


@dataclass(frozen=True)
class SlowerBy(Meter[Any]):
    """A meter of a machine of changing speed: the times of each batch are multiplied by the next factor."""

    meter: Meter[Any]
    factors: Iterator[float]

    def close(self) -> None:
        """End the processes of the wrapped meter."""
        self.meter.close()

    def measure(self, samples: Sequence[Any], seeds: Sequence[int]) -> list[Outcome]:
        """Measure by the wrapped meter; multiply the times by the next factor."""
        factor = next(self.factors)
        outcomes = self.meter.measure(samples, seeds)
        return [replace(one, repeats=None if one.repeats is None else one.repeats.times(factor)) for one in outcomes]
