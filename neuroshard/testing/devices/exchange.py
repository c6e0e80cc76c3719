"""Exchanges between made-up devices."""

from dataclasses import dataclass

import numpy as np

from neuroshard.arrays import FloatArray
from neuroshard.models import CommModel
from neuroshard.testing.devices.lookups import bounded_by
from neuroshard.traffic import Collective, Traffic

_HELD_UP = 0.7  # of the busiest device's time, by which all others are held up


@dataclass(frozen=True)
class MadeUpExchange(CommModel):
    """A latency, and bytes over a link; the busiest device and a switch that carries everything hold all devices up.

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
        """Any number."""
        return

    def transfer_ms(self, traffic: Traffic, wait_ms: FloatArray) -> FloatArray:
        """(B, D) ms."""
        to_each = traffic.size_bytes[..., Collective.ALL_TO_ALL] / traffic.num_devices
        sent, received = to_each * (traffic.num_devices - 1), to_each.sum(axis=1, keepdims=True) - to_each
        own = np.maximum(sent, received) / self.link_bytes_per_ms
        busiest = np.broadcast_to(own.max(axis=1, keepdims=True), own.shape)
        carried = sent.sum(axis=1, keepdims=True) / (self.link_bytes_per_ms * self.switch_links)
        transfer = bounded_by(own, _HELD_UP * busiest, np.broadcast_to(carried, own.shape))
        cost: FloatArray = (self.latency_ms + transfer) * (traffic.num_devices > 1)
        return np.broadcast_to(cost, wait_ms.shape)
