"""The devices that can be measured: the same code runs on each through this small interface."""

import ctypes
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from neuroshard.hardware.arena import available_bytes
from neuroshard.hardware.specs import DeviceSpec, no_device
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import readable_bytes

_LEAD_CYCLES = 2_000_000  # of a GPU's clock, near 2 GHz


class Device(ABC):
    """Place where kernels run and are timed, prepared once, in the process that measures.

    Attributes:
        backend: of torch.distributed.
        torch_device: where torch puts tensors that are measured, once it is prepared.
        beside_host: whether it works while the host that launches its work goes on.
    """

    backend: str
    beside_host: bool
    torch_device = torch.device("cpu")

    def __init__(self) -> None:
        self._flush = torch.empty(0)  # bytes that fill the device's cache

    @abstractmethod
    def prepare(self, rank: int, flush_bytes: int) -> None:
        """Claim the device for this process; `rank` chooses among several."""

    @abstractmethod
    def synchronize(self) -> None:
        """Return when the device has done all its work."""

    @abstractmethod
    def moment(self) -> Any:
        """Mark a point in the device's work: what it had to do before has ended there, what follows hasn't begun."""

    @abstractmethod
    def ms_between(self, first: Any, second: Any) -> float:
        """Return the ms from one moment to another, once the device is synchronized."""

    @abstractmethod
    def occupy(self) -> None:
        """Keep the device busy for as long as the host takes to launch what is timed."""

    def set_aside(self, flush_bytes: int, free_bytes: int) -> None:
        """Take memory to flush the cache with, or raise UserError if less is free."""
        if flush_bytes > free_bytes:
            raise UserError(
                "flush-bytes-too-large",
                f"flush_bytes={flush_bytes} does not fit in memory",
                limit=f"the free memory is {readable_bytes(free_bytes)}",
                remedy="Set flush_bytes to a smaller number, such as a few times the size of the device's cache",
            )
        self._flush = torch.zeros(flush_bytes // 4, device=self.torch_device)

    def time_ms(self, run: Callable[[], object]) -> float:
        """Time one `run`, in ms, starting from a flushed cache; launches take no time, as in steps that keep up."""
        self._flush.add_(1)
        self.occupy()
        start = self.moment()
        run()
        end = self.moment()
        self.synchronize()
        return self.ms_between(start, end)


class CpuDevice(Device):
    """One CPU core, as one thread."""

    backend, beside_host = "gloo", False

    def __init__(self, pin: bool = True) -> None:
        super().__init__()
        self.pin = pin

    def prepare(self, rank: int, flush_bytes: int) -> None:
        """Keep this process to one thread, on a core of its own if pinned; raise UserError if memory is too small."""
        torch.set_num_threads(1)
        _keep_freed_memory()
        if self.pin:
            cores = sorted(os.sched_getaffinity(0), reverse=True)  # core 0 is where everything else runs
            os.sched_setaffinity(0, {cores[rank % len(cores)]})
        self.set_aside(flush_bytes, available_bytes())

    def occupy(self) -> None:
        """Return at once: CPU kernels are launched when they are called."""

    def synchronize(self) -> None:
        """Return at once: CPU kernels have ended when their call returns."""

    def moment(self) -> float:
        """Read the wall clock, in s."""
        return time.perf_counter()

    def ms_between(self, first: float, second: float) -> float:
        """Return the ms from one moment to another by the wall clock."""
        return (second - first) * 1e3


class CudaDevice(Device):
    """One GPU, timed with CUDA events."""

    backend, beside_host = "nccl", True

    def prepare(self, rank: int, flush_bytes: int) -> None:
        """Claim GPU `rank` of this host, or raise UserError if it has none; at least twice its L2 cache is flushed."""
        if not torch.cuda.is_available():
            raise no_device()
        self.torch_device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(self.torch_device)
        l2_bytes = torch.cuda.get_device_properties(self.torch_device).L2_cache_size
        self.set_aside(max(flush_bytes, 2 * l2_bytes), torch.cuda.mem_get_info(self.torch_device)[0])

    def occupy(self) -> None:
        """Let the GPU wait for a ms or so: the host launches a fused call and its backward pass in 0.5 to 1 ms."""
        torch.cuda._sleep(_LEAD_CYCLES)  # type: ignore[no-untyped-call]

    def synchronize(self) -> None:
        """Wait until the GPU has done everything it had to do."""
        torch.cuda.synchronize(self.torch_device)

    def moment(self) -> torch.cuda.Event:
        """Record a CUDA event on the main stream: work of other streams takes time where that waits for it."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.default_stream(self.torch_device))
        return event

    def ms_between(self, first: torch.cuda.Event, second: torch.cuda.Event) -> float:
        """Return the ms from one CUDA event to another by the GPU's clock."""
        return float(first.elapsed_time(second))


def make_device(spec: DeviceSpec) -> Device:
    """Make the device that `spec` describes, not yet prepared."""
    return CpuDevice(spec.pin) if spec.kind == "cpu" else CudaDevice()


def _keep_freed_memory() -> None:
    """Ask glibc to reuse freed memory: outputs of every run would otherwise be mapped and faulted in again."""
    mmap_threshold, trim_threshold, top_pad = -3, -1, -2
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # not every libc has it
    if mallopt is not None:
        mallopt(mmap_threshold, 1 << 30)
        mallopt(trim_threshold, ctypes.c_int(2**31 - 1))
        mallopt(top_pad, 256 << 20)
