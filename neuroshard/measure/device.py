"""The devices that can be measured, CPUs and GPUs, behind one interface that all measuring code uses."""

import ctypes
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from neuroshard.measure._arena import available_bytes
from neuroshard.measure.specs import DeviceSpec, no_device
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import readable_bytes

_LEAD_CYCLES = 2_000_000  # about 1 ms at a GPU's clock of 2 GHz


class Device(ABC):
    """Base class: a device that runs and times kernels; the device is prepared once, in the measuring process.

    Attributes:
        backend: backend of torch.distributed.
        torch_device: torch's device for measured tensors, once the device is prepared.
        beside_host: True if the device works while the host that launches its work continues.
    """

    backend: str
    beside_host: bool
    torch_device = torch.device("cpu")

    def __init__(self) -> None:
        self._flush = torch.empty(0)  # writing this tensor fills the device's cache

    @abstractmethod
    def prepare(self, rank: int, flush_bytes: int) -> None:
        """Claim the device for this process; `rank` selects one of several devices."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until the device has finished all work that was launched."""

    @abstractmethod
    def moment(self) -> Any:
        """Mark the current point in the device's work, and return the mark.
        All earlier work has ended at this point, and later work has not begun.
        """

    @abstractmethod
    def ms_between(self, first: Any, second: Any) -> float:
        """Return the ms between two points in the device's work. The points are marks that `moment` has set before.
        The device must be synchronized.
        """

    @abstractmethod
    def occupy(self) -> None:
        """Keep the device busy while the host launches the work that is timed."""

    def set_aside(self, flush_bytes: int, free_bytes: int) -> None:
        """Reserve a buffer of `flush_bytes` in device memory. `time_ms` writes this buffer to flush the cache.
        Raise UserError if `free_bytes` is less than `flush_bytes`.
        """
        if flush_bytes > free_bytes:
            raise UserError(
                "flush-bytes-too-large",
                f"flush_bytes={flush_bytes} does not fit in memory",
                limit=f"the free memory is {readable_bytes(free_bytes)}",
                remedy="Set flush_bytes to a smaller number, such as a few times the size of the device's cache",
            )
        self._flush = torch.zeros(flush_bytes // 4, device=self.torch_device)

    def time_ms(self, run: Callable[[], object]) -> float:
        """Flush the cache, call `run` once, and return the time that the device needs, in ms.

        The time does not include launches, as in steps in which the host is faster than the device.
        """
        self._flush.add_(1)
        self.occupy()
        start = self.moment()
        run()
        end = self.moment()
        self.synchronize()
        return self.ms_between(start, end)


class CpuDevice(Device):
    """The CPU as a device: one thread, which is bound to one core if `pin` is true."""

    backend, beside_host = "gloo", False

    def __init__(self, pin: bool = True) -> None:
        super().__init__()
        self.pin = pin

    def prepare(self, rank: int, flush_bytes: int) -> None:
        """Limit this process to one thread, and to one core if `pin` is true.
        Raise UserError if `flush_bytes` exceeds the free memory.
        """
        torch.set_num_threads(1)
        _keep_freed_memory()
        if self.pin:
            # Start with the last core: other processes often run on core 0.
            cores = sorted(os.sched_getaffinity(0), reverse=True)
            os.sched_setaffinity(0, {cores[rank % len(cores)]})
        self.set_aside(flush_bytes, available_bytes())

    def occupy(self) -> None:
        """Return at once, because calls on a CPU are not launched in advance."""

    def synchronize(self) -> None:
        """Return at once, because on CPUs all work has ended when a call returns."""

    def moment(self) -> float:
        """Return the wall clock time in seconds."""
        return time.perf_counter()

    def ms_between(self, first: float, second: float) -> float:
        """Return the ms between two moments of the wall clock."""
        return (second - first) * 1e3


class CudaDevice(Device):
    """One GPU, timed with CUDA events."""

    backend, beside_host = "nccl", True

    def prepare(self, rank: int, flush_bytes: int) -> None:
        """Claim GPU `rank` of this host; raise UserError if the host has no GPU.

        The flush writes at least twice the size of the L2 cache.
        """
        if not torch.cuda.is_available():
            raise no_device()
        self.torch_device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(self.torch_device)
        l2_bytes = torch.cuda.get_device_properties(self.torch_device).L2_cache_size
        self.set_aside(max(flush_bytes, 2 * l2_bytes), torch.cuda.mem_get_info(self.torch_device)[0])

    def occupy(self) -> None:
        """Keep the GPU busy for about 1 ms, so that the measured time does not include the time of launches.
        The host needs 0.5 to 1 ms to launch a fused call and the backward pass.
        """
        torch.cuda._sleep(_LEAD_CYCLES)  # type: ignore[no-untyped-call]

    def synchronize(self) -> None:
        """Wait until the GPU has finished all work that was launched."""
        torch.cuda.synchronize(self.torch_device)

    def moment(self) -> torch.cuda.Event:
        """Record a CUDA event on the main stream, and return the event.

        Work of other streams counts from the point where the main stream waits for it.
        """
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.default_stream(self.torch_device))
        return event

    def ms_between(self, first: torch.cuda.Event, second: torch.cuda.Event) -> float:
        """Return the ms between two CUDA events, by the GPU's clock."""
        return float(first.elapsed_time(second))


def make_device(spec: DeviceSpec) -> Device:
    """Return the device that `spec` describes; the device is not yet prepared."""
    return CpuDevice(spec.pin) if spec.kind == "cpu" else CudaDevice()


def _keep_freed_memory() -> None:
    """Make glibc reuse freed memory; otherwise the outputs of every run would be mapped and page-faulted again."""
    mmap_threshold, trim_threshold, top_pad = -3, -1, -2
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # some C libraries lack this function
    if mallopt is not None:
        mallopt(mmap_threshold, 1 << 30)
        mallopt(trim_threshold, ctypes.c_int(2**31 - 1))
        mallopt(top_pad, 256 << 20)
