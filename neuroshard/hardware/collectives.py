"""The collectives that are measured, as one device takes part in them.

Each is what TorchRec calls on the same backend: all-to-all of pooled embeddings; reduce-scatter, and all-gather on the
way back; all-reduce of gradients; all-to-all of indices, after one of how many there are. What goes one way only, the
input and the all-reduce, is the same in both directions here: with the devices' delays, and without, which counts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist

from neuroshard.records.samples import CommSample
from neuroshard.words.collective import ELEMENT_BYTES, INDEX_BYTES, Collective

Group = dist.ProcessGroup | None  # None is everybody
# By the names that torch has given them since 2.13, or those before.
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class Exchange(Protocol):
    """Both directions of one sample, as one device takes part in them."""

    def forward(self) -> object:
        """Every device's part of the batch to whoever needs it."""

    def backward(self) -> object:
        """The gradients' way back."""


@dataclass(frozen=True)
class Circle:
    """The devices that one device exchanges with.

    Attributes:
        ranks: of all of them, this one's included, in order.
        rank: this device's.
        group: of torch.distributed, which they make up.
    """

    ranks: tuple[int, ...]
    rank: int
    group: Group

    def share(self, size_bytes: Sequence[int], element_bytes: int) -> list[int]:
        """(m,) elements that each of these devices has for each of them, of sizes (D,) over all of them."""
        return [size_bytes[rank] // (element_bytes * len(self.ranks)) for rank in self.ranks]

    def own(self, shares: Sequence[int]) -> int:
        """This device's of the shares (m,)."""
        return shares[self.ranks.index(self.rank)]


@dataclass(frozen=True)
class Circles:
    """Whom this device exchanges with, by collective.

    Attributes:
        everybody: all devices.
        host: those of this one's host.
        across: those with its place on every host.
    """

    everybody: Circle
    host: Circle
    across: Circle

    @classmethod
    def made(cls, rank: int, num_devices: int, host_size: int) -> "Circles":
        """Made together: all devices call this in step."""
        everybody = Circle(tuple(range(num_devices)), rank, None)
        if host_size == num_devices:
            return cls(everybody, everybody, everybody)
        hosts = [tuple(range(first, first + host_size)) for first in range(0, num_devices, host_size)]
        places = [tuple(range(place, num_devices, host_size)) for place in range(host_size)]
        host, place = rank // host_size, rank % host_size
        return cls(
            everybody,
            Circle(hosts[host], rank, _groups(hosts)[host]),
            Circle(places[place], rank, _groups(places)[place]),
        )

    def of(self, collective: Collective) -> Circle:
        """Those that take part in the collective with this device."""
        by_host = {Collective.HOST_REDUCE_SCATTER: self.host, Collective.HOST_ALL_TO_ALL: self.across}
        return by_host.get(collective, self.everybody)


def _groups(members: Sequence[tuple[int, ...]]) -> list[Group]:
    return [dist.new_group(list(ranks)) for ranks in members]


def make_exchange(sample: CommSample, circles: Circles, device: torch.device) -> Exchange:
    """The buffers of a sample on this device, and its two directions."""
    return _KINDS[sample.collective](sample, circles.of(sample.collective), device)


class _AllToAll:
    """Pooled embeddings to the devices of their samples, and their gradients back."""

    def __init__(self, sample: CommSample, circle: Circle, device: torch.device) -> None:
        self._others = circle.share(sample.size_bytes, ELEMENT_BYTES)
        self._own = [circle.own(self._others)] * len(circle.ranks)
        self._pooled = torch.zeros(sum(self._own), device=device)
        self._received = torch.zeros(sum(self._others), device=device)
        self._group = circle.group

    def forward(self) -> None:
        dist.all_to_all_single(self._received, self._pooled, self._others, self._own, group=self._group)

    def backward(self) -> None:
        dist.all_to_all_single(self._pooled, self._received, self._own, self._others, group=self._group)


class _ReduceScatter:
    """Partial sums to the devices of their samples, where they are added up; gradients back to all."""

    def __init__(self, sample: CommSample, circle: Circle, device: torch.device) -> None:
        own = circle.own(circle.share(sample.size_bytes, ELEMENT_BYTES))
        self._partial = torch.zeros(own * len(circle.ranks), device=device)
        self._summed = torch.zeros(own, device=device)
        self._group = circle.group

    def forward(self) -> None:
        _reduce_scatter(self._summed, self._partial, group=self._group)

    def backward(self) -> None:
        _all_gather(self._partial, self._summed, group=self._group)


class _AllReduce:
    """Gradients of whole tables, added up everywhere."""

    def __init__(self, sample: CommSample, circle: Circle, device: torch.device) -> None:
        self._gradient = torch.zeros(sample.size_bytes[circle.rank] // ELEMENT_BYTES, device=device)
        self._group = circle.group

    def forward(self) -> None:
        dist.all_reduce(self._gradient, group=self._group)

    backward = forward


class _Input:
    """Indices to the devices that hold their rows: first how many come, then the indices and lengths themselves."""

    def __init__(self, sample: CommSample, circle: Circle, device: torch.device) -> None:
        self._sent = circle.share(sample.size_bytes, INDEX_BYTES)
        self._received = [circle.own(self._sent)] * len(circle.ranks)
        self._counts = torch.tensor(self._sent, device=device)
        self._counted = torch.zeros_like(self._counts)
        self._given = torch.ones(sum(self._sent), dtype=torch.int64, device=device)
        self._got = torch.zeros(sum(self._received), dtype=torch.int64, device=device)
        self._group = circle.group

    def forward(self) -> None:
        dist.all_to_all_single(self._counted, self._counts, group=self._group)
        received = self._counted.tolist()
        dist.all_to_all_single(self._got, self._given, received, self._sent, group=self._group)

    backward = forward


_KINDS: dict[Collective, Callable[[CommSample, Circle, torch.device], Exchange]] = {
    Collective.ALL_TO_ALL: _AllToAll,
    Collective.REDUCE_SCATTER: _ReduceScatter,
    Collective.HOST_REDUCE_SCATTER: _ReduceScatter,
    Collective.HOST_ALL_TO_ALL: _AllToAll,
    Collective.ALL_REDUCE: _AllReduce,
    Collective.INPUT: _Input,
}
