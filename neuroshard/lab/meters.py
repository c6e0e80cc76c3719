"""Meters that stay open for a whole run, and measuring batches of samples with them."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from neuroshard.hardware import Hardware, Meter
from neuroshard.hardware.hardware import Warn
from neuroshard.hardware.mirror_meters import LocalMeter
from neuroshard.hardware.step_samples import StepProtocol
from neuroshard.records.samples import CommSample, ComputeSample, LocalSample, Sample
from neuroshard.tasks.task import Topology

_LOCAL = StepProtocol(builds=1, turns=6, steps=2)  # of local work: of one build alone, mirrored


@dataclass(frozen=True, eq=False)
class Meters:
    """The meters of some hardware, each opened when it is first needed."""

    hardware: Hardware
    warn: Warn
    _open_for: ExitStack
    _compute: list[Meter[ComputeSample]] = field(default_factory=list)
    _comm: dict[int, Meter[CommSample]] = field(default_factory=dict)
    _local: list[Meter[LocalSample]] = field(default_factory=list)

    def of(self, sample: Sample) -> Meter[Sample]:
        """Return what measures the sample, and others like it in one batch."""
        if isinstance(sample, CommSample):
            return self.comm(sample.num_devices)
        if isinstance(sample, LocalSample):
            return self._of_local_work()
        if not self._compute:
            self._compute.append(self._open_for.enter_context(self.hardware.compute_meter(self.warn)))
        return self._compute[0]

    def _of_local_work(self) -> Meter[LocalSample]:
        if not self._local:
            meter = LocalMeter(self.hardware.mirror_meter(_LOCAL.timing, self.warn), _LOCAL)
            self._local.append(self._open_for.enter_context(meter))
        return self._local[0]

    def comm(self, num_devices: int) -> Meter[CommSample]:
        """Of exchanges between so many devices."""
        if num_devices not in self._comm:
            meter = self.hardware.comm_meter(num_devices, self.warn)
            self._comm[num_devices] = self._open_for.enter_context(meter)
        return self._comm[num_devices]

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
