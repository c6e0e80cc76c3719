"""Exchanges between made-up devices."""

from dataclasses import dataclass, replace

import numpy as np

from neuroshard.cost.loads import Traffic
from neuroshard.models import CommModel
from neuroshard.models.by_form import CommByCollective
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.testing.devices.made_up_kernels import bounded_by
from neuroshard.words.collective import Collective
from neuroshard.words.form import FORMS

_HELD_UP = 0.7  # of the straggler's time, which all others take at least

# How many times an all-to-all's bytes go over a link: sums are sent on and sent back, or made on the way.
_ROUNDS = {
    Collective.ALL_TO_ALL: 1.0,
    Collective.REDUCE_SCATTER: 1.3,
    Collective.HOST_REDUCE_SCATTER: 1.3,
    Collective.HOST_ALL_TO_ALL: 1.0,
    Collective.ALL_REDUCE: 2.2,
}


@dataclass(frozen=True)
class MadeUpExchange(CommModel):
    """A latency, and bytes over a link; all devices wait for the straggler, and for a switch that carries everything.

    Attributes:
        latency_ms: of an exchange.
        link_bytes_per_ms: of one device, in one direction.
        switch_links: so many links' bytes the switch carries at once.
    """

    latency_ms: float
    link_bytes_per_ms: float
    switch_links: float

    @property
    def num_devices(self) -> None:
        """None: it serves any number of devices."""
        return

    def transfer_ms(self, traffic: Traffic, wait_ms: FloatArray) -> FloatArray:
        """Compute (B, D) ms of the all-to-all: own traffic, the busiest device's and the switch bound it."""
        to_each = traffic.size_bytes[..., Collective.ALL_TO_ALL] / traffic.num_devices
        sent, received = to_each * (traffic.num_devices - 1), to_each.sum(axis=1, keepdims=True) - to_each
        own = np.maximum(sent, received) / self.link_bytes_per_ms
        busiest = np.broadcast_to(own.max(axis=1, keepdims=True), own.shape)
        carried = sent.sum(axis=1, keepdims=True) / (self.link_bytes_per_ms * self.switch_links)
        transfer = bounded_by(own, _HELD_UP * busiest, np.broadcast_to(carried, own.shape))
        cost: FloatArray = (self.latency_ms + transfer) * (traffic.num_devices > 1)
        return np.broadcast_to(cost, wait_ms.shape)


def every_collective(exchange: MadeUpExchange) -> CommByCollective:
    """Make models of a step's collectives between devices whose all-to-alls are these."""
    exchanges: dict[Collective, CommModel] = {
        collective: replace(exchange, link_bytes_per_ms=exchange.link_bytes_per_ms / rounds)
        for collective, rounds in _ROUNDS.items()
    }
    return CommByCollective(exchanges, frozenset(FORMS))
