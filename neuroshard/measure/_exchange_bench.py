"""Time exchanges between devices: this module runs in every process of a group, with one process per device.

Each collective is the one that TorchRec calls with the same backend: all-to-all of pooled embeddings; reduce-scatter,
and all-gather in the backward pass; all-reduce of gradients; all-to-all of indices, after an all-to-all of their
numbers. The input dist and the all-reduce have one direction only; they are measured twice, with the devices' delays
and without, and the time without delays counts.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, cast

import numpy as np
import torch
import torch.distributed as dist

from neuroshard.measure._workers.group import Group
from neuroshard.measure._workers.runs import Outcome, Report, Run, Timed, run_batch
from neuroshard.measure.device import Device
from neuroshard.measure.store.samples import CommSample
from neuroshard.plumbing.timing import TimingProtocol
from neuroshard.words.collective import ELEMENT_BYTES, INDEX_BYTES, Collective

Among = dist.ProcessGroup | None  # None is the group of all processes
# The names since torch 2.13, or the earlier names.
_scatter_sums = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_SETTLE_S = 0.002  # time from agreeing on a start to the start, so that no process is late
_PINGS = 20


class Exchange(NamedTuple):
    """Two functions that run an exchange on this device: one for the forward pass, and one for the backward pass.
    `ExchangeBench` measures the time of each function. All devices of the exchange must call the functions together.

    Attributes:
        forward: runs the exchange of the forward pass.
        backward: runs the exchange of the backward pass.
        buffers: the exchanged tensors, this device's own first.
    """

    forward: Callable[[], object]
    backward: Callable[[], object]
    buffers: tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Circle:
    """The devices that exchange data with each other in a collective, from the view of one of these devices.

    Attributes:
        ranks: ranks of all these devices, including this device, in order.
        rank: this device's rank.
        group: process group of these devices; None if it is the group of all processes.
    """

    ranks: tuple[int, ...]
    rank: int
    group: Among

    def share(self, size_bytes: Sequence[int], element_bytes: int) -> list[int]:
        """Return the number of elements in each message of a device, for each of the m devices of this group, (m,).
        A device sends m messages of the same size: one to each device of the group, including the device itself.
        `size_bytes` (D,) has the bytes that each of all D devices sends in total. An element has `element_bytes` bytes.

        For an input dist, `size_bytes` has the bytes that each device receives, and the result has the size of the
        messages that each device of this group receives, one from each device.
        """
        return [size_bytes[rank] // (element_bytes * len(self.ranks)) for rank in self.ranks]

    def own(self, shares: Sequence[int]) -> int:
        """Return the number of elements in each message that this device sends.
        `shares` (m,) is the list that `share` returns, with the number for each of the m devices of this group.

        For an input dist, the result is the number of elements in each message that this device receives, one message
        from each device.
        """
        return shares[self.ranks.index(self.rank)]


def circles(rank: int, num_devices: int, host_size: int) -> dict[Collective, Circle]:
    """Return a dict: for each collective, the group of devices (`Circle`) with which the device `rank` exchanges data.

    They are all devices, the devices of the same host, or the devices with the same place on every host.

    All devices must call this function together.
    """
    by_collective = dict.fromkeys(Collective, Circle(tuple(range(num_devices)), rank, None))
    if host_size == num_devices:
        return by_collective
    hosts = [tuple(range(first, first + host_size)) for first in range(0, num_devices, host_size)]
    places = [tuple(range(place, num_devices, host_size)) for place in range(host_size)]
    host, place = rank // host_size, rank % host_size
    by_collective[Collective.HOST_REDUCE_SCATTER] = Circle(hosts[host], rank, _groups(hosts)[host])
    by_collective[Collective.HOST_ALL_TO_ALL] = Circle(places[place], rank, _groups(places)[place])
    return by_collective


def _groups(members: Sequence[tuple[int, ...]]) -> list[Among]:
    return [cast(Among, dist.new_group(list(ranks))) for ranks in members]


def make_exchange(sample: CommSample, circles: Mapping[Collective, Circle], device: torch.device) -> Exchange:
    """Allocate the buffers of one exchange to measure (`sample`) on `device`.
    Return the functions that run the exchange of the forward pass and the exchange of the backward pass.
    """
    return _MAKERS[sample.collective](sample, circles[sample.collective], device)


def _all_to_all(sample: CommSample, circle: Circle, device: torch.device) -> Exchange:
    """Return an exchange that uses all-to-all in both directions.
    Pooled embeddings go to the devices that have the samples, and gradients go back.
    """
    others = circle.share(sample.size_bytes, ELEMENT_BYTES)
    own = [circle.own(others)] * len(circle.ranks)
    pooled, received = torch.zeros(sum(own), device=device), torch.zeros(sum(others), device=device)
    exchange = partial(dist.all_to_all_single, group=circle.group)
    return Exchange(
        partial(exchange, received, pooled, others, own),
        partial(exchange, pooled, received, own, others),
        (pooled, received),
    )


def _reduce_scatter(sample: CommSample, circle: Circle, device: torch.device) -> Exchange:
    """Return an exchange with a reduce-scatter forward and an all-gather backward.
    The reduce-scatter adds up partial sums, and the all-gather distributes gradients.
    """
    own = circle.own(circle.share(sample.size_bytes, ELEMENT_BYTES))
    sums, summed = torch.zeros(own * len(circle.ranks), device=device), torch.zeros(own, device=device)
    return Exchange(
        partial(_scatter_sums, summed, sums, group=circle.group),
        partial(_gather, sums, summed, group=circle.group),
        (sums, summed),
    )


def _all_reduce(sample: CommSample, circle: Circle, device: torch.device) -> Exchange:
    """Return the functions of an all-reduce, which sums the gradients of whole tables over all devices.
    The forward function and the backward function are the same.
    """
    gradient = torch.zeros(sample.size_bytes[circle.rank] // ELEMENT_BYTES, device=device)
    both = partial(dist.all_reduce, gradient, group=circle.group)
    return Exchange(both, both, (gradient,))


def _input(sample: CommSample, circle: Circle, device: torch.device) -> Exchange:
    """Return an exchange that runs an input dist: indices and lengths go to the devices that have the rows.
    The forward function and the backward function are the same. The function first exchanges the numbers of elements,
    and then the elements.
    """
    sent = circle.share(sample.size_bytes, INDEX_BYTES)
    counts = torch.tensor(sent, device=device)
    counted = torch.zeros_like(counts)
    given = torch.ones(sum(sent), dtype=torch.int64, device=device)
    got = torch.zeros(circle.own(sent) * len(circle.ranks), dtype=torch.int64, device=device)

    def both() -> None:
        """Exchange the sizes of the messages, and then the messages themselves: the indices and lengths."""
        dist.all_to_all_single(counted, counts, group=circle.group)
        dist.all_to_all_single(got, given, counted.tolist(), sent, group=circle.group)

    return Exchange(both, both, (given, got, counts, counted))


_MAKERS: dict[Collective, Callable[[CommSample, Circle, torch.device], Exchange]] = {
    Collective.ALL_TO_ALL: _all_to_all,
    Collective.REDUCE_SCATTER: _reduce_scatter,
    Collective.HOST_REDUCE_SCATTER: _reduce_scatter,
    Collective.HOST_ALL_TO_ALL: _all_to_all,
    Collective.ALL_REDUCE: _all_reduce,
    Collective.INPUT: _input,
}


@dataclass(frozen=True)
class Clock:
    """A pair of functions: `now` returns the time, and `sleep` waits, both in seconds."""

    now: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], object] = time.sleep


class ExchangeBench:
    """Measures batches of exchanges between the processes of a group.
    All processes must call the same methods together.

    All processes start an exchange at a moment that they agreed on, plus each process's own delay, so that no barrier
    runs inside the timed region. A device's time counts from its own start, and thus includes waiting for the other
    devices.
    """

    def __init__(self, device: Device, protocol: TimingProtocol, timeout_s: float, clock: Clock | None = None) -> None:
        self._device = device
        self._protocol = protocol
        self._clock = clock or Clock()
        self._group = Group(timeout_s)
        self._control, self._rank, self._size = self._group.control, self._group.rank, self._group.size
        self._clock_ahead_s = self._find_clock_offset()
        self._circles: dict[int, dict[Collective, Circle]] = {}  # by the number of devices on a host

    def measure(self, samples: Sequence[CommSample], seeds: Sequence[int], report: Report) -> list[Outcome]:
        """Measure the exchanges in `samples`, and return an outcome (times or an error) for each exchange.
        The times are an array (R, 2, D) in ms. For each of R repeats, this array has the forward times and the backward
        times of all D devices.
        """
        builds = [partial(self._build, sample) for sample in samples]
        return self._group.combined(run_batch(builds, self._protocol, np.random.default_rng(seeds), report))

    def _build(self, sample: CommSample) -> Run:
        host_size = sample.host_size
        if host_size not in self._circles:
            self._circles[host_size] = circles(self._rank, self._size, host_size)
        exchange = make_exchange(sample, self._circles[host_size], self._device.torch_device)
        return partial(self.run, exchange, sample.start_ms[self._rank])

    def run(self, exchange: Exchange, start_ms: float) -> Timed:
        """Time the forward exchange and then the backward exchange, and return both times.
        This device starts the forward exchange with a delay of `start_ms`. All devices start the backward exchange
        together.
        """
        agreed = self._agree_on_start()
        forward = self._timed(exchange.forward, agreed + start_ms / 1e3)
        backward = self._timed(exchange.backward, self._agree_on_start())
        return Timed(np.array([forward, backward]), (start_ms + forward + backward) / 1e3)

    def _timed(self, communicate: Callable[[], object], start: float) -> float:
        """Wait until the time `start`, then run an exchange and return the time of the exchange in ms.
        The time is counted from `start` until the exchange has ended on this device.
        """
        wait = start - self._clock.now()
        if wait > 0:
            self._clock.sleep(wait)
        communicate()
        self._device.synchronize()
        return (self._clock.now() - start) * 1e3

    def _agree_on_start(self) -> float:
        """Agree with all other processes on a moment in the near future.
        Return the moment in seconds on this process's clock.
        """
        self._group.barrier()
        moment = torch.tensor([self._clock.now() + _SETTLE_S], dtype=torch.float64)
        dist.broadcast(moment, 0, group=self._control)
        return float(moment) + self._clock_ahead_s

    def _find_clock_offset(self) -> float:
        """Return the seconds by which this process's clock is ahead of the clock of rank 0.
        The offset is measured by the fastest of several round trips of messages.
        """
        ahead = 0.0
        for other in range(1, self._size):
            if self._rank in (0, other):
                trips = [self._ping(other) for _ in range(_PINGS)]
                ahead = min(trips)[1] if self._rank == other else ahead
        # Processes of one host share the clock: a small difference is the error of the round trip.
        return ahead if abs(ahead) > 1e-3 else 0.0

    def _ping(self, other: int) -> tuple[float, float]:
        """Send a message from rank `other` to rank 0 and back. Return two values in seconds: the time of the round
        trip, and the time by which the clock of rank `other` is ahead of the clock of rank 0.
        Both ranks call this method together. On rank 0, both values are 0.
        """
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
