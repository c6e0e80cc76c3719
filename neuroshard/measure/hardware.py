"""The hardware of this machine, and objects that measure kernel calls, exchanges and training steps on the hardware."""

import logging
import multiprocessing
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from multiprocessing.context import ForkServerContext, SpawnContext
from typing import TYPE_CHECKING, Any
from warnings import filterwarnings

from neuroshard.measure._workers.workers import Bench, Joining, Meter, Sample, WorkerGroup, forked_warm
from neuroshard.measure.specs import DeviceSpec, EmbeddingSettings, check_tiers, no_device
from neuroshard.measure.steps.step_samples import StepProtocol
from neuroshard.measure.store.samples import CommSample, ComputeSample, LocalSample
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.messages import Message, number_of
from neuroshard.plumbing.schema import Seconds, readable_bytes
from neuroshard.plumbing.timing import TimingProtocol
from neuroshard.words.fingerprint import Fingerprint, fingerprint
from neuroshard.words.placement import Tier
from neuroshard.words.topology import Topology

if TYPE_CHECKING:  # imports torch
    from neuroshard.measure.device import Device

_POD_SIZE = "TORCHREC_RESOLVED_POD_SIZE"
_CHATTY = ("torchrec", "torch.fx")  # loggers that warn about every table of every model
Warn = Callable[[Message], None]


@dataclass(frozen=True)
@checked
class Hardware:
    """A type of device that can be measured, with the settings of the measurements.

    Attributes:
        device: the device that runs the kernels.
        embedding: settings of the fused kernel.
        compute_timing, comm_timing: how kernel calls and exchanges are timed.
        timeout_s: maximum time without a result from a worker process, in seconds; after this time the process is
            stopped, and the current sample (a kernel call or an exchange) is recorded as failed.
    """

    device: DeviceSpec
    embedding: EmbeddingSettings = field(default_factory=EmbeddingSettings)
    compute_timing: TimingProtocol = field(default_factory=TimingProtocol)
    comm_timing: TimingProtocol = field(default_factory=TimingProtocol)
    timeout_s: Seconds = 120.0

    @property
    def fingerprint(self) -> Fingerprint:
        """The description of this machine: the host memory, and the type of processor or GPU that is measured."""
        return fingerprint(self.device.kind)

    def check(self) -> None:
        """Raise UserError if this machine has no device of this type, if FBGEMM is not installed, or if a buffer of
        `flush_bytes` on a CPU is larger than the memory of this machine.
        """
        if find_spec("fbgemm_gpu") is None:
            extra = self.device.kind
            raise UserError(
                "hardware-fbgemm-missing",
                "FBGEMM is not installed",
                limit="measurements need FBGEMM",
                remedy=f"Run `pip install -e '.[{extra}]'` in a checkout of neuroshard",
            )
        here = self.fingerprint
        if here.count == 0:
            raise no_device()
        for name, timing in (("compute_timing", self.compute_timing), ("comm_timing", self.comm_timing)):
            if here.kind == "cpu" and timing.flush_bytes > here.memory_bytes:
                raise UserError(
                    "hardware-flush-bytes-too-large",
                    f"hardware.{name}.flush_bytes is {timing.flush_bytes}",
                    limit=f"this machine has {readable_bytes(here.memory_bytes)} of memory",
                    remedy="Set flush_bytes to a smaller number, such as a few times the size of the processor's cache",
                )

    def check_tiers(self, tiers: Iterable[Tier]) -> None:
        """Raise UserError if tables in these memory tiers cannot be measured on this type of device."""
        check_tiers(self.device.kind, tiers)

    def compute_meter(self, warn: Warn) -> Meter[ComputeSample]:
        """Return a meter that measures kernel calls on the first device, in a separate process."""
        make = partial(_make_compute_bench, self.device, self.embedding, self.compute_timing)
        return WorkerGroup(make, 1, self.timeout_s, warn, self._context())

    def devices_per_host(self, num_devices: int) -> int | None:
        """Return the number of devices on each host, given the number `num_devices` on all hosts together.
        Return None if one host has all devices.

        The hosts of a pod count as one host, as in TorchRec, because fast links join them.
        """
        if not under_torchrun():
            return None
        local = int(os.environ["LOCAL_WORLD_SIZE"]) * _hosts_per_pod()
        return local if local < num_devices else None

    def check_hosts(self, topology: Topology) -> None:
        """Raise UserError unless each host of the task has as many devices as each host of the measurements.
        `topology` describes the devices and hosts of the task. Exchanges are measured on this host or, under torchrun,
        on all hosts of torchrun.

        Hosts that are joined by fast links count as a single host.
        """
        devices, wanted = topology.num_devices, topology.domain_size
        measured = self.devices_per_host(devices) or devices
        if wanted != measured:
            setting = "devices_per_host" if topology.devices_per_domain is None else "devices_per_domain"
            raise UserError(
                "hardware-hosts-differ",
                f"the task has {wanted} of its {devices} devices on each host",
                limit=f"here exchanges are measured with {number_of(measured, 'device')} on each host, and both "
                "numbers must be the same",
                remedy=f"Set topology.{setting}={measured}, or measure on hosts with {number_of(wanted, 'device')}",
            )

    def comm_meter(self, num_devices: int, warn: Warn) -> Meter[CommSample]:
        """Return a meter that measures exchanges between `num_devices` processes.
        The processes run on this host or, under torchrun, on all hosts.

        Raises:
            UserError: torchrun started another number of processes.
        """
        return self._group_meter(num_devices, self._exchanges, None, warn)

    def step_meter(self, topology: Topology, protocol: StepProtocol, warn: Warn) -> Meter[Plan]:
        """Return a meter (an object that measures samples) for training steps of plans on this topology.
        Each device has a process. The processes run on this host or, under torchrun, on all hosts.

        Raises:
            UserError: torchrun started another number of processes.
        """
        return self._group_meter(topology.num_devices, self._steps(protocol), topology.domain_size, warn)

    def mirror_meter(self, protocol: StepProtocol, warn: Warn) -> Meter[LocalSample]:
        """Return a meter (an object that measures samples) for the local work of single ranks in training steps.
        Local work is all work of a rank apart from exchanges with other ranks. The work runs on the first device, in a
        separate process.
        """
        make = partial(_make_mirror_bench, self.device, self.embedding, protocol)
        return WorkerGroup(make, 1, self.timeout_s, warn, self._context())

    def follow(self, steps: StepProtocol | None = None) -> None:
        """Take part in all measurements that rank 0 starts; the other processes of torchrun call this method.
        Training steps are measured by the protocol `steps`. If `steps` is None, exchanges are measured.
        """
        from neuroshard.measure._workers.group import Torchrun

        how: Joining[Any] = self._exchanges if steps is None else self._steps(steps)
        Torchrun(how).follow()

    @property
    def _exchanges(self) -> Joining[CommSample]:
        return Joining(self.device, self.comm_timing, self.timeout_s, _exchange_bench)

    def _steps(self, protocol: StepProtocol) -> Joining[Plan]:
        return Joining(self.device, protocol.timing, self.timeout_s, partial(_step_bench, self.embedding, protocol))

    def _group_meter(self, num_devices: int, how: Joining[Sample], local_size: int | None, warn: Warn) -> Meter[Sample]:
        """Return a meter (an object that measures samples) with `num_devices` processes that measure together.
        Under torchrun, these are the processes of torchrun. Otherwise the meter starts all processes on this host, and
        TorchRec treats `local_size` processes as one host.
        """
        if under_torchrun():
            return self._leader(num_devices, how)
        make = partial(_make_joined, how, local_size or num_devices)
        return WorkerGroup(make, num_devices, self.timeout_s, warn, self._context())

    def _leader(self, num_devices: int, how: Joining[Sample]) -> Meter[Sample]:
        """Return a meter (an object that measures samples) for rank 0. The meter uses all processes of torchrun.
        Raise UserError if torchrun did not start `num_devices` processes.
        """
        started = int(os.environ["WORLD_SIZE"])
        if started != num_devices:
            raise UserError(
                "torchrun-processes-differ",
                f"torchrun started {number_of(started, 'process', 'processes')}",
                limit=f"num_devices is {num_devices}, and each device needs exactly one process",
                remedy=f"Start {num_devices} processes with torchrun, or set num_devices to {started}",
            )
        from neuroshard.measure._workers.group import Torchrun  # imports torch, so only if needed

        return Torchrun(how)

    def _context(self) -> ForkServerContext | SpawnContext:
        # With CUDA, every worker must be a new interpreter.
        return forked_warm() if self.device.kind == "cpu" else multiprocessing.get_context("spawn")


def _hosts_per_pod() -> int:
    """Return the number of hosts in a pod (a group of hosts that fast links join); 1 if the number is not set.
    The number is read from the environment variable that TorchRec also reads. Raise UserError if the value of the
    variable is not a whole number of at least 1.
    """
    hosts = os.environ.get(_POD_SIZE, "1")
    if not hosts.isdecimal() or int(hosts) < 1:
        raise UserError(
            "pod-size-not-number",
            f"the environment variable {_POD_SIZE} is {hosts!r}",
            limit="the value must be a number of hosts, 1 or more",
            remedy="Set the variable to the number of hosts, or unset the variable",
        )
    return int(hosts)


def under_torchrun() -> bool:
    """Return True if torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def is_follower() -> bool:
    """Return True if another process, with rank 0, controls the measurements.
    This process must then call `Hardware.follow`.
    """
    return under_torchrun() and os.environ["RANK"] != "0"


def _make_compute_bench(
    spec: DeviceSpec, settings: EmbeddingSettings, protocol: TimingProtocol, rank: int, _count: int, _port: int
) -> Bench[ComputeSample]:
    # Imports torch and FBGEMM, so only in the worker.
    from neuroshard.measure.device import make_device
    from neuroshard.measure.kernels._compute_bench import DENSE_WARNING, ComputeBench

    filterwarnings("ignore", DENSE_WARNING)
    device = make_device(spec)
    device.prepare(rank, protocol.flush_bytes)
    return ComputeBench(device, settings, protocol)


def _exchange_bench(device: "Device", timing: TimingProtocol, timeout_s: float) -> Bench[CommSample]:
    from neuroshard.measure._exchange_bench import ExchangeBench

    return ExchangeBench(device, timing, timeout_s)


def _make_mirror_bench(
    spec: DeviceSpec, settings: EmbeddingSettings, protocol: StepProtocol, rank: int, _count: int, _port: int
) -> Bench[LocalSample]:
    _hush()
    from neuroshard.measure.device import make_device
    from neuroshard.measure.steps._mirror_bench import MirrorBench

    device = make_device(spec)
    device.prepare(rank, protocol.timing.flush_bytes)
    return MirrorBench(device, settings, protocol)


def _hush() -> None:
    """Silence TorchRec's messages about every table, and torch's warnings about renamed functions."""
    filterwarnings("ignore", category=FutureWarning)
    filterwarnings("ignore", category=UserWarning, module="torch")
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.ERROR)


def _step_bench(
    settings: EmbeddingSettings, protocol: StepProtocol, device: "Device", _timing: TimingProtocol, timeout_s: float
) -> Bench[Plan]:
    _hush()
    from neuroshard.measure.steps._step_bench import StepBench

    return StepBench(device, settings, protocol, timeout_s)


def _make_joined(how: Joining[Sample], local_size: int, rank: int, count: int, port: int) -> Bench[Sample]:
    from neuroshard.measure._workers.group import join

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all processes are on this host
    os.environ["LOCAL_WORLD_SIZE"] = str(local_size)  # the size of a host for TorchRec
    os.environ[_POD_SIZE] = "1"  # the number of hosts over which TorchRec shards rows
    if count > (os.cpu_count() or 1):  # without pinning, processes that share cores run faster
        how = replace(how, device=replace(how.device, pin=False))
    return join(how, rank, count, f"tcp://127.0.0.1:{port}")
