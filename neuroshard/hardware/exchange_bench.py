"""Timing exchanges: runs in every process of a group, one per device."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.distributed as dist

from neuroshard.hardware.collectives import Circles, Exchange, make_exchange
from neuroshard.hardware.device import Device
from neuroshard.hardware.group import Group
from neuroshard.hardware.runs import Outcome, Report, Run, Timed, run_batch
from neuroshard.plumbing.timing import TimingProtocol
from neuroshard.records.samples import CommSample

_SETTLE_S = 0.002  # from agreeing on a start until it, so that nobody is late
_PINGS = 20


@dataclass(frozen=True)
class Clock:
    """How a process tells the time and waits, both in seconds."""

    now: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], object] = time.sleep


class ExchangeBench:
    """Measures batches of exchanges in this process's group; every process calls the same methods in step.

    All processes start an exchange at a moment agreed beforehand, plus each one's own delay: no barrier runs inside
    the timed region. A device's time counts from its own start and so includes waiting for the others.
    """

    def __init__(self, device: Device, protocol: TimingProtocol, timeout_s: float, clock: Clock | None = None) -> None:
        self._device = device
        self._protocol = protocol
        self._clock = clock or Clock()
        self._group = Group(timeout_s)
        self._control, self._rank, self._size = self._group.control, self._group.rank, self._group.size
        self._clock_ahead_s = self._find_clock_offset()
        self._circles: dict[int, Circles] = {}  # by devices of a host

    def measure(self, samples: Sequence[CommSample], seeds: Sequence[int], report: Report) -> list[Outcome]:
        """An outcome for each sample; its repeats are (R, 2, D) ms: forward, backward; every device."""
        builds = [partial(self._build, sample) for sample in samples]
        return self._group.combined(run_batch(builds, self._protocol, np.random.default_rng(seeds), report))

    def _build(self, sample: CommSample) -> Run:
        host_size = sample.host_size
        if host_size not in self._circles:
            self._circles[host_size] = Circles.made(self._rank, self._size, host_size)
        exchange = make_exchange(sample, self._circles[host_size], self._device.torch_device)
        return partial(self.run, exchange, sample.start_ms[self._rank])

    def run(self, exchange: Exchange, start_ms: float) -> Timed:
        """Forward after this device's delay, then backward with all devices starting together."""
        agreed = self._agree_on_start()
        forward = self._timed(exchange.forward, agreed + start_ms / 1e3)
        backward = self._timed(exchange.backward, self._agree_on_start())
        return Timed(np.array([forward, backward]), (start_ms + forward + backward) / 1e3)

    def _timed(self, communicate: Callable[[], object], start: float) -> float:
        wait = start - self._clock.now()
        if wait > 0:
            self._clock.sleep(wait)
        communicate()
        self._device.synchronize()
        return (self._clock.now() - start) * 1e3

    def _agree_on_start(self) -> float:
        """A moment shortly ahead, on this process's clock, the same for all."""
        self._group.barrier()
        moment = torch.tensor([self._clock.now() + _SETTLE_S], dtype=torch.float64)
        dist.broadcast(moment, 0, group=self._control)
        return float(moment) + self._clock_ahead_s

    def _find_clock_offset(self) -> float:
        """Seconds by which this process's clock is ahead of rank 0's, from the fastest of some round trips."""
        ahead = 0.0
        for other in range(1, self._size):
            if self._rank in (0, other):
                trips = [self._ping(other) for _ in range(_PINGS)]
                ahead = min(trips)[1] if self._rank == other else ahead
        # Processes of one host share the clock: what is left there is the error of the round trip.
        return ahead if abs(ahead) > 1e-3 else 0.0

    def _ping(self, other: int) -> tuple[float, float]:
        """(round trip, this clock minus rank 0's), both in seconds; the second is meant for `other`."""
        clock = torch.zeros(1, dtype=torch.float64)
        if self._rank == 0:
            dist.recv(clock, other, group=self._control)
            dist.send(torch.tensor([self._clock.now()], dtype=torch.float64), other, group=self._control)
            return 0.0, 0.0
        sent = self._clock.now()
        dist.send(clock, 0, group=self._control)
        dist.recv(clock, 0, group=self._control)
        received = self._clock.now()
        return received - sent, (sent + received) / 2 - float(clock)
