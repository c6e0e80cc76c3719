"""The loop that measures samples in batches.
Each batch is stored as a chunk on disk before the next batch begins.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np

from neuroshard.measure._workers.runs import Outcome
from neuroshard.measure._workers.workers import Meter
from neuroshard.measure.hardware import Hardware, Warn
from neuroshard.measure.steps.step_meters import LocalMeter
from neuroshard.measure.steps.step_samples import StepProtocol
from neuroshard.measure.store import Chunks
from neuroshard.measure.store.samples import CommSample, ComputeSample, LocalSample, Measurement, Sample
from neuroshard.measure.store.splits import TRAIN
from neuroshard.words.topology import Topology

_LOCAL = {  # protocols of mirrored local work, by kind of device, each for a single build
    "cpu": StepProtocol(builds=1, turns=6, steps=2),
    # A GPU works in parallel to its host: with enough work, the GPU does not wait for the host.
    "cuda": StepProtocol(1, turns=6, steps=3, dense=(1024, 1024, 512, 256), pipeline="sparse_dist", ballast=8192),
}
Item = TypeVar("Item")


@dataclass(frozen=True, eq=False)
class Meters:
    """The objects (meters) that measure samples on a machine.
    There is a meter for kernel calls, a meter for exchanges for each number of devices, and a meter for local work: the
    work of a single rank in a training step, without exchanges. Each meter is opened when it is first needed.
    """

    hardware: Hardware
    warn: Warn
    _open_for: ExitStack
    _open: dict[str | int, Meter[Any]] = field(default_factory=dict)

    def of(self, sample: Sample) -> Meter[Sample]:
        """Return the meter that measures samples of the same type as `sample`.
        If `sample` is an exchange, this is the meter for exchanges between the same number of devices.
        """
        if isinstance(sample, CommSample):
            return self.comm(sample.num_devices)
        if isinstance(sample, LocalSample):
            steps = _LOCAL[self.hardware.device.kind]
            return self._opened("local", lambda: LocalMeter(self.hardware.mirror_meter(steps, self.warn)))
        return self._opened("compute", lambda: self.hardware.compute_meter(self.warn))

    def comm(self, num_devices: int) -> Meter[CommSample]:
        """Return the meter that measures exchanges between `num_devices` devices."""
        return self._opened(num_devices, lambda: self.hardware.comm_meter(num_devices, self.warn))

    def _opened(self, key: str | int, make: Callable[[], Meter[Any]]) -> Meter[Any]:
        """Return the meter that is already open under the key; otherwise open a meter with `make`."""
        if key not in self._open:
            self._open[key] = self._open_for.enter_context(make())
        return self._open[key]

    def join(self, topologies: Iterable[Topology]) -> None:
        """Open a meter of exchanges for each number of devices in `topologies`, before any exchange is measured.
        A topology with a single device needs no meter. Under torchrun, the other processes wait until this process
        opens the meters.

        Raises:
            UserError: torchrun started another number of processes.
        """
        for count in sorted({topology.num_devices for topology in topologies} - {1}):
            self.comm(count)


@contextmanager
def meters_of(hardware: Hardware, warn: Warn) -> Iterator[Meters]:
    """Return a context manager that yields a `Meters` object, which has the meters for all types of samples.
    A meter is an object that measures samples of one type on the hardware. The worker processes of the meters end when
    the context ends.
    """
    with ExitStack() as open_for:
        yield Meters(hardware, warn, open_for)


@dataclass(frozen=True)
class Due(Generic[Sample]):
    """A sample that is to be measured, with a number and a seed.

    Attributes:
        sample: the sample.
        number: number of the sample in its run.
        lookups: seed of the lookups.
        split, second_pass: as in the sample's measurement.
    """

    sample: Sample
    number: int
    lookups: int
    split: str = TRAIN
    second_pass: bool = False


@dataclass(frozen=True)
class Recorder(Generic[Sample]):
    """Measures samples of one type, and stores the measurements.

    Attributes:
        meter: returns the meter for a batch, given the first sample of the batch.
        live: maximum number of samples in a batch.
        seed: seed of the run.
        chunks: where measurements are stored; None stores nothing.
    """

    meter: Callable[[Sample], Meter[Sample]]
    live: int
    seed: int
    chunks: Chunks[Sample] | None = None

    def complete(
        self, batches: Iterable[tuple[int, Callable[[], Sequence[Due[Sample]]]]]
    ) -> Iterator[Sequence[Outcome]]:
        """Measure the numbered batches that have no stored chunk yet, and yield the outcomes of each batch.
        In this way, a killed run can be resumed.
        """
        for number, draw in batches:
            if self.chunks is None or not self.chunks.has(number):
                yield self.record(draw(), number)

    def measure(self, due: Sequence[Due[Sample]]) -> Iterator[Outcome]:
        """Measure all given samples in order, and yield the outcome of each sample.
        The measurements are stored in new chunks after the existing chunks.
        """
        for batch in in_batches(due, self.live):
            yield from self.record(batch)

    def record(self, batch: Sequence[Due[Sample]], number: int | None = None) -> Sequence[Outcome]:
        """Measure a batch, store the measurements as one chunk, and return the outcomes.
        The number of the chunk is `number`; by default, the chunk comes after all other chunks.
        """
        outcomes = self.meter(batch[0].sample).measure([due.sample for due in batch], [due.lookups for due in batch])
        if self.chunks is not None:
            made = [self._measurement(*pair) for pair in zip(batch, outcomes, strict=True)]
            self.chunks.write(self.chunks.end if number is None else number, made)
        return outcomes

    def _measurement(self, due: Due[Sample], outcome: Outcome) -> Measurement[Sample]:
        sample = due.sample
        if isinstance(sample, ComputeSample):
            sample = replace(sample, lookups=outcome.seen)
        return Measurement(sample, due.number, due.split, self.seed, outcome.repeats, outcome.error, due.second_pass)


def in_batches(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """Split the items into batches of `size` items; the last batch may have fewer items."""
    return (items[start : start + size] for start in range(0, len(items), size))


def mixed(items: Sequence[Item], others: Sequence[Item]) -> list[Item]:
    """Return one list with all `items` and all `others`.
    The `others` are spread evenly among the `items`.
    """
    places = np.concatenate([np.arange(len(group)) / max(len(group), 1) for group in (items, others)])
    return [[*items, *others][i] for i in np.argsort(places, kind="stable").tolist()]
