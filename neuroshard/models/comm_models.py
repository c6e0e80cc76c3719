"""Communication models that are fitted: the papers' network, and one for any number of devices and any batch size."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from neuroshard.cost.loads import Traffic
from neuroshard.models.interface import NUM_WAITS, CommModel, Outline, device_waits
from neuroshard.models.stored import Held, Mlp, Normaliser, Scale, Stored, check_bounded
from neuroshard.plumbing.arrays import Float32Array, FloatArray, IntArray
from neuroshard.words.collective import Collective

_MAX_EXPONENT = 20.0
_ROUNDING = 1e-5
# Which way a transfer goes with each feature: up, or (0) either way.
FEATURE_SIGNS = (1, 1, 1, 1, 1, 1, 1, 1, 0)
HOST_SIGNS = (1, 1, 1)  # of additional features, if exchanges were measured on one host and between several hosts
NUM_FEATURES = len(FEATURE_SIGNS)


@dataclass(frozen=True)
class NeuralComm(Stored, CommModel):
    """A network from every device's columns and start delay to every device's cost.

    Devices are alike, so they are sorted by start delay, then columns, before the network sees them, and put back
    after: permuting the devices permutes the costs, but for devices that are alike in both. Only differences of start
    delays count, and a device's cost is the wait for the last device to start plus what the network gives (in multiples
    of `scale_ms`).
    """

    kind: ClassVar[str] = "sorted"

    normaliser: Annotated[Normaliser, Held("")]
    network: Annotated[Mlp, Held("network")]
    scale_ms: Scale

    def check(self) -> None:
        """Raise ValueError if the network isn't one of so many devices, or costs could overflow."""
        if self.network.widths[0] != 2 * self.network.widths[-1]:
            raise ValueError(
                f"the network has widths {self.network.widths}, which do not lead from 2 D inputs to D costs"
            )
        check_bounded(self.normaliser, self.network)

    @property
    def num_devices(self) -> int:
        """D, the number of devices in the exchanges that it was fitted to."""
        return self.network.widths[-1]

    def transfer_ms(self, traffic: Traffic, wait_ms: FloatArray) -> FloatArray:
        """Predict the ms of transfers, (B, D), not below 0."""
        order, features = comm_inputs(traffic, wait_ms)
        transfer = np.maximum(self.network(self.normaliser(features)), 0).astype(np.float64) * self.scale_ms
        cost = np.empty_like(transfer)
        np.put_along_axis(cost, order, transfer, axis=1)
        return cost


def comm_inputs(traffic: Traffic, wait_ms: FloatArray) -> tuple[IntArray, FloatArray]:
    """Compute how a comm network sees exchanges of devices that wait (B, D) for the straggler.

    Returns the order (B, D) in which devices are sorted, and features (B, 2 D) of the sorted devices: columns, then
    starts after the earliest, ms.
    """
    order = np.lexsort((traffic.columns, -wait_ms), axis=1)
    waits = np.take_along_axis(wait_ms, order, axis=1)
    features = np.concatenate([np.take_along_axis(traffic.columns, order, axis=1), waits[:, :1] - waits], axis=1)
    return order, features


@dataclass(frozen=True)
class SetComm(Stored, CommModel):
    """One network for every device, which sees the others as a set: their sum, mean and maximum.

    So permuting the devices permutes the costs, and any number of devices will do. A device's cost is the wait for the
    last device to start plus a transfer. The network gives the logarithms of its 1 + G segments, as multiples
    of `scale_ms`. The first remains after the last start, whatever the others did; of every other segment, what the
    devices that started earlier could do before the last start is done (but not less than nothing is left):

        transfer = segment_0 + sum over g of share_g * relu(segment_g - lead_g . waits)

    Shares add up to at most 1, and so do the leads of a segment: nobody who starts later makes anybody end earlier, and
    a start that moves by some time moves no end by more. The network's weights are such that more bytes, on any device,
    never take less time (pre-training sees to it). Where it was measured on one host and
    between several, it sees what crosses their links.

    Attributes:
        share, lead: (G,) and (G, W), none negative; waits are those of `device_waits`.
    """

    kind: ClassVar[str] = "set"

    normaliser: Annotated[Normaliser, Held("")]
    network: Annotated[Mlp, Held("network")]
    scale_ms: Scale
    share: Annotated[Float32Array, Held("share")]
    lead: Annotated[Float32Array, Held("lead", dimensions=2)]

    num_devices = None  # it serves any number

    def transfer_ms(self, traffic: Traffic, wait_ms: FloatArray) -> FloatArray:
        """Predict the ms of transfers, (B, D), above 0; 0 where there is one device."""
        if traffic.num_devices == 1:
            return np.zeros_like(wait_ms)
        segments = self._segments_ms(traffic)
        done = device_waits(wait_ms).reshape(-1, NUM_WAITS) @ self.lead.astype(np.float64).T
        transfer: FloatArray = segments[:, 0] + np.maximum(segments[:, 1:] - done, 0) @ self.share.astype(np.float64)
        return transfer.reshape(wait_ms.shape)

    def outline(self, traffic: Traffic) -> Outline:
        """Outline transfers, exactly: the first segment has no lead."""
        segments = self._segments_ms(traffic).reshape(*traffic.size_bytes.shape[:2], -1)
        share = np.concatenate([np.ones(1), self.share])
        return Outline(segments, share, np.concatenate([np.zeros((1, NUM_WAITS)), self.lead]))

    def _segments_ms(self, traffic: Traffic) -> FloatArray:
        """Compute the segments of every device's transfer, (B D, 1 + G) ms."""
        features = set_features(traffic)
        if self.sees_hosts:
            features = np.concatenate([features, host_features(traffic)], axis=2)
        features = features.reshape(-1, features.shape[2])
        outputs = self.network(self.normaliser(features)).astype(np.float64)
        return np.exp(np.minimum(outputs, _MAX_EXPONENT)) * self.scale_ms

    @property
    def sees_hosts(self) -> bool:
        """Whether it was measured on one host and between several, and sees what crosses their links."""
        return len(self.normaliser.shift) > NUM_FEATURES

    def check(self) -> None:
        """Raise ValueError if the network doesn't fit the shares, these are no shares, or costs could overflow."""
        widths = self.network.widths
        seen = NUM_FEATURES + len(HOST_SIGNS) * (widths[0] > NUM_FEATURES)
        if (widths[0], widths[-1], self.lead.shape) != (seen, 1 + len(self.share), (len(self.share), NUM_WAITS)):
            raise ValueError(f"the network has widths {widths}, which do not fit {seen} features or the shares")
        for shares in (self.share, self.lead):
            if (shares < 0).any() or (shares.sum(axis=-1, dtype=np.float64) > 1 + _ROUNDING).any():
                raise ValueError("shares or leads are negative, or add up to more than 1")
        check_bounded(self.normaliser, self.network)


def set_features(traffic: Traffic) -> FloatArray:
    """Compute what the network sees of every device, (B, D, F).

    All but the number of devices are logarithms of amounts that grow with every device's traffic.
    """
    devices = traffic.num_devices
    to_each = traffic.size_bytes[..., Collective.ALL_TO_ALL] / devices
    everything = to_each.sum(axis=1, keepdims=True)
    sent, received = to_each * (devices - 1), everything - to_each
    amounts: tuple[FloatArray, ...] = (
        sent, received, to_each, everything / devices,
        sent.max(axis=1, keepdims=True), received.max(axis=1, keepdims=True), sent.sum(axis=1, keepdims=True),
    )  # fmt: skip
    return in_logarithms(amounts, traffic.batch_size[:, None], devices)


def host_features(traffic: Traffic) -> FloatArray:
    """Compute logarithms of what hosts' links carry, (B, D, 3): out of a device's own host, into it, of the busiest.

    Nothing where one host has all devices.
    """
    host_size = traffic.host_size or traffic.num_devices
    given = traffic.size_bytes[..., Collective.ALL_TO_ALL]
    of_host = given.reshape(len(given), -1, host_size).sum(axis=2)
    there = host_size / traffic.num_devices  # the share of what anybody gives that goes to one host
    out, into = of_host * (1 - there), (of_host.sum(axis=1, keepdims=True) - of_host) * there
    busiest = np.broadcast_to(np.maximum(out, into).max(axis=1, keepdims=True), out.shape)
    links = np.stack([out, into, busiest], axis=2)
    features: FloatArray = np.log2(1 + np.maximum(links, 0)).repeat(host_size, axis=1)
    return features


def in_logarithms(amounts: tuple[FloatArray, ...], batch_size: IntArray, devices: int) -> FloatArray:
    """Compute the features (..., F) of amounts, the first of them (...,), as logarithms."""
    features = np.empty((*amounts[0].shape, NUM_FEATURES))
    for f, amount in enumerate(amounts):
        features[..., f] = amount
    logarithms = features[..., : len(amounts)]
    np.log2(1 + logarithms, out=logarithms)
    features[..., -2] = np.log2(batch_size)
    features[..., -1] = np.log2(devices)
    return features
