"""Meters that stay open for a whole run, and measuring batches of samples with them."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from neuroshard.hardware import Hardware, Meter
from neuroshard.hardware.hardware import Warn
from neuroshard.hardware.mirror_meters import LocalMeter
from neuroshard.hardware.step_samples import StepProtocol
from neuroshard.records.samples import CommSample, LocalSample, Sample
from neuroshard.tasks.task import Topology

_LOCAL = StepProtocol(builds=1, turns=6, steps=2)  # of local work: of one build alone, mirrored


@dataclass(frozen=True, eq=False)
class Meters:
    """The meters of some hardware, each opened when it is first needed."""

    hardware: Hardware
    warn: Warn
    _open_for: ExitStack
    _open: dict[str | int, Meter[Any]] = field(default_factory=dict)

    def of(self, sample: Sample) -> Meter[Sample]:
        """Return what measures the sample, and others like it in one batch."""
        if isinstance(sample, CommSample):
            return self.comm(sample.num_devices)
        if isinstance(sample, LocalSample):
            return self._opened("local", self._local)
        return self._opened("compute", lambda: self.hardware.compute_meter(self.warn))

    def _local(self) -> LocalMeter:
        return LocalMeter(self.hardware.mirror_meter(_LOCAL, self.warn))

    def comm(self, num_devices: int) -> Meter[CommSample]:
        """Of exchanges between so many devices."""
        return self._opened(num_devices, lambda: self.hardware.comm_meter(num_devices, self.warn))

    def _opened(self, key: str | int, make: Callable[[], AbstractContextManager[Meter[Any]]]) -> Meter[Any]:
        """What was opened under the key before, or is now."""
        if key not in self._open:
            self._open[key] = self._open_for.enter_context(make())
        return self._open[key]

    def join(self, topologies: Iterable[Topology]) -> None:
        """Open the meters of exchanges between so many devices: torchrun's other processes wait for this one.

        Raises:
            UserError: torchrun started another number of processes.
        """
        for count in sorted({topology.num_devices for topology in topologies} - {1}):
            self.comm(count)


@contextmanager
def meters_of(hardware: Hardware, warn: Callable[[str], None]) -> Iterator[Meters]:
    """The hardware's meters; their processes end with the context."""
    with ExitStack() as open_for:
        yield Meters(hardware, warn, open_for)
