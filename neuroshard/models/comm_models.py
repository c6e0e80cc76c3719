"""Cost models of the exchanges between devices: the neural network of the NeuroShard paper for a fixed number of
devices, a neural network for any number of devices, and a model that combines one model for each collective.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta

from neuroshard.cost.loads import Traffic
from neuroshard.models.interface import NUM_WAITS, Chain, CommModel, Coverage, Outline, device_waits, waits
from neuroshard.models.stored import (
    Described,
    Mlp,
    Normaliser,
    Scale,
    Stored,
    TensorField,
    Tensors,
    check_bounded,
    described,
    tensors_of,
)
from neuroshard.plumbing.arrays import Float32Array, FloatArray, IntArray
from neuroshard.plumbing.schema import parse
from neuroshard.words.collective import IN_STEP, Collective, collective_named, name_of
from neuroshard.words.form import Form, Forms

_MAX_EXPONENT = 20.0
_ROUNDING = 1e-5
# Sign of each feature's effect on transfer times: 1 if times rise with the feature, 0 if they may rise or fall.
FEATURE_SIGNS = (1, 1, 1, 1, 1, 1, 1, 1, 0)
HOST_SIGNS = (1, 1, 1)  # the same for `host_features`, if exchanges were measured on one host and between several hosts
NUM_FEATURES = len(FEATURE_SIGNS)


@dataclass(frozen=True)
class FreeComm(CommModel):
    """Model in which exchanges take no time except the wait for the straggler.
    It is used if the costs of exchanges are counted elsewhere or left out on purpose.
    """

    collectives = IN_STEP
    num_devices = None  # it serves any number

    def transfer_ms(self, traffic: Traffic, wait_ms: FloatArray) -> FloatArray:
        """Return zeros, (B, D), because transfers take no time in this model."""
        return np.zeros_like(wait_ms)


@dataclass(frozen=True)
class NeuralComm(Stored, CommModel):
    """The exchange model of the NeuroShard paper: a neural network that predicts the exchange time of every device. The
    inputs are the numbers of columns that the devices send, and the start delays of the devices.

    Devices are alike. So the devices are sorted by start delay, then by columns, before the network predicts their
    transfers, and the predictions are put back into the original order: a permutation of the devices permutes their
    costs, except for devices with equal delays and columns. Only differences of start delays count. A device's cost is
    the wait for the last device to start, plus the transfer that the network predicts in multiples of `scale_ms`.
    """

    kind: ClassVar[str] = "sorted"

    normaliser: Annotated[Normaliser, TensorField("")]
    network: Annotated[Mlp, TensorField("network")]
    scale_ms: Scale

    def check(self) -> None:
        """Raise ValueError if the network does not have 2 D inputs and D outputs for some number of devices D, or if
        predicted costs could overflow.
        """
        if self.network.widths[0] != 2 * self.network.widths[-1]:
            raise ValueError(
                f"the network has widths {self.network.widths}, which do not lead from 2 D inputs to D costs"
            )
        check_bounded(self.normaliser, self.network)

    @property
    def num_devices(self) -> int:
        """The number of devices D in the exchanges that the model was fitted to."""
        return self.network.widths[-1]

    def transfer_ms(self, traffic: Traffic, wait_ms: FloatArray) -> FloatArray:
        """Predict the transfer time of each device in B exchanges, (B, D) ms, at least 0."""
        order, features = comm_inputs(traffic, wait_ms)
        transfer = np.maximum(self.network(self.normaliser(features)), 0).astype(np.float64) * self.scale_ms
        cost = np.empty_like(transfer)
        cost[np.arange(len(order))[:, None], order] = transfer
        return cost


def comm_inputs(traffic: Traffic, wait_ms: FloatArray) -> tuple[IntArray, FloatArray]:
    """Return the order in which `NeuralComm` sorts the devices of each exchange, and the network's input features in
    this order. For B exchanges between D devices, the order is (B, D), and the features are (B, 2 D). `wait_ms` (B, D)
    is the time for which each device waits for the straggler, which is the last device to start.

    Returns:
        the order (B, D) in which devices are sorted; and the features (B, 2 D) of the sorted devices: the columns of
        each, then the ms from the earliest start to the start of each.
    """
    columns = traffic.columns
    order, row = np.lexsort((columns, -wait_ms), axis=1), np.arange(len(wait_ms))[:, None]
    waits = wait_ms[row, order]
    return order, np.concatenate([columns[row, order], waits[:, :1] - waits], axis=1)


@dataclass(frozen=True)
class SetComm(Stored, CommModel):
    """Model that predicts the exchange time of each device with one network.
    The inputs of the network describe the device, and summarise the set of all devices by sums, means and maxima.

    So the model serves any number of devices, and a permutation of the devices permutes their costs. A device's cost is
    the wait for the last device to start, plus a transfer. The transfer consists of 1 + G segments; the network
    predicts the logarithm of each segment, in multiples of `scale_ms`. Segment 0 begins after the last start. Devices
    that start earlier do a part of every other segment while they wait, at most the whole segment:

        transfer = segment_0 + sum over g of share_g * relu(segment_g - lead_g . waits)

    Shares add up to at most 1, and so do the leads of a segment. Therefore a device that starts later never makes a
    device end earlier, and a delay of a start never delays an end by more. Pre-training makes sure that more bytes, on
    any device, never take less time. If exchanges were measured on one host and between several hosts, the inputs
    include the bytes that cross the links of the hosts (`host_features`).

    Attributes:
        normaliser: shift and scale of the features.
        network: network from the features to the logarithms of the segments.
        scale_ms: unit of the segments, in ms.
        share, lead: (G,) and (G, W) weights, not negative; the W waits are those of `device_waits`.
    """

    kind: ClassVar[str] = "set"

    normaliser: Annotated[Normaliser, TensorField("")]
    network: Annotated[Mlp, TensorField("network")]
    scale_ms: Scale
    share: Annotated[Float32Array, TensorField("share")]
    lead: Annotated[Float32Array, TensorField("lead", dimensions=2)]

    num_devices = None  # it serves any number

    def transfer_ms(self, traffic: Traffic, wait_ms: FloatArray) -> FloatArray:
        """Predict the time that each of D devices still needs after the straggler has started, in B exchanges, (B, D)
        ms. The straggler is the device that starts last. The times are above 0, or 0 if there is only one device.
        """
        if traffic.num_devices == 1:
            return np.zeros_like(wait_ms)
        segments = self._segments_ms(traffic)
        done = device_waits(wait_ms).reshape(-1, NUM_WAITS) @ self.lead.astype(np.float64).T
        transfer: FloatArray = segments[:, 0] + np.maximum(segments[:, 1:] - done, 0) @ self.share.astype(np.float64)
        return transfer.reshape(wait_ms.shape)

    def outline(self, traffic: Traffic) -> Outline:
        """Return a formula (`Outline`) for the transfer time of each device, as a function of waits. A wait is the time
        that a device waits for the straggler (the device that is ready last).

        The transfer time is a weighted sum of segments in ms. Waits can shorten all segments except the first, because
        devices do a part of the transfer during the wait.

        From the segments, the times at many start delays are computed quickly. The result is exact, because this model
        itself adds up segments.
        """
        segments = self._segments_ms(traffic).reshape(*traffic.size_bytes.shape[:2], -1)
        share = np.concatenate([np.ones(1), self.share])
        return Outline(segments, share, np.concatenate([np.zeros((1, NUM_WAITS)), self.lead]))

    def _segments_ms(self, traffic: Traffic) -> FloatArray:
        """Predict the segments of the transfer time of each of D devices in B exchanges, (B * D, 1 + G) ms. A row has
        the 1 + G segments of one device in one exchange. A segment is a piece of the transfer time.

        The first segment begins when the straggler, the device that is ready last, starts. A device that waits for the
        straggler may do a part of each of the G other segments during the wait.
        """
        features = set_features(traffic)
        if self.sees_hosts:
            features = np.concatenate([features, host_features(traffic)], axis=2)
        features = features.reshape(-1, features.shape[2])
        outputs = self.network(self.normaliser(features)).astype(np.float64)
        return np.exp(np.minimum(outputs, _MAX_EXPONENT)) * self.scale_ms

    @property
    def sees_hosts(self) -> bool:
        """True if the inputs of the network include `host_features`. The inputs include these features if the model was
        fitted to exchanges both on one host and between several hosts.
        """
        return len(self.normaliser.shift) > NUM_FEATURES

    def check(self) -> None:
        """Raise ValueError if the network or its weights are invalid.
        The network needs one input for each feature, and one output for each segment (piece of transfer time). The
        weights of the segments must not be negative, and must not add up to more than 1. Predicted costs must not
        overflow.
        """
        widths = self.network.widths
        seen = NUM_FEATURES + len(HOST_SIGNS) * (widths[0] > NUM_FEATURES)
        if (widths[0], widths[-1], self.lead.shape) != (seen, 1 + len(self.share), (len(self.share), NUM_WAITS)):
            raise ValueError(f"the network has widths {widths}, which do not fit {seen} features or the shares")
        for shares in (self.share, self.lead):
            if (shares < 0).any() or (shares.sum(axis=-1, dtype=np.float64) > 1 + _ROUNDING).any():
                raise ValueError("shares or leads are negative, or add up to more than 1")
        check_bounded(self.normaliser, self.network)


def set_features(traffic: Traffic) -> FloatArray:
    """Return the input features of `SetComm` for every device in B exchanges, (B, D, F), computed from the traffic.

    All features except the batch size and the number of devices are logarithms of amounts of data, which grow with the
    traffic of every device.
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
    """Return three further input features of `SetComm` for each device in B exchanges, (B, D, 3).
    The features are logarithms of bytes: the bytes that leave the device's host, the bytes that arrive at this host,
    and the bytes on the busiest link of any host.

    All are 0 if one host has all devices.
    """
    host_size = traffic.host_size or traffic.num_devices
    given = traffic.size_bytes[..., Collective.ALL_TO_ALL]
    of_host = given.reshape(len(given), -1, host_size).sum(axis=2)
    there = host_size / traffic.num_devices  # share of a device's bytes that go to the devices of one host
    out, into = of_host * (1 - there), (of_host.sum(axis=1, keepdims=True) - of_host) * there
    busiest = np.broadcast_to(np.maximum(out, into).max(axis=1, keepdims=True), out.shape)
    links = np.stack([out, into, busiest], axis=2)
    features: FloatArray = np.log2(1 + np.maximum(links, 0)).repeat(host_size, axis=1)
    return features


def in_logarithms(amounts: tuple[FloatArray, ...], batch_size: IntArray, devices: int) -> FloatArray:
    """Return the F input features of `SetComm` as binary logarithms, (..., F). The features are log2(1 + amount) for
    each array in `amounts`, then log2 of the batch size, then log2 of the number of devices. The first array in
    `amounts` has the shape (...), such as (B, D) for D devices in B exchanges. The other arrays are broadcast to this
    shape.
    """
    features = np.empty((*amounts[0].shape, NUM_FEATURES))
    for f, amount in enumerate(amounts):
        features[..., f] = amount
    logarithms = features[..., : len(amounts)]
    np.log2(1 + logarithms, out=logarithms)
    features[..., -2] = np.log2(batch_size)
    features[..., -1] = np.log2(devices)
    return features


COMM_KINDS: dict[str, Any] = {model.kind: model for model in (NeuralComm, SetComm)}


@dataclass(frozen=True)
class ExchangeSettings:
    """Settings of `ExchangeModels` as stored in a bundle: the model of each collective, and the families of sharding
    types (`Form`) whose exchanges the models can all predict.
    """

    exchanges: Annotated[dict[str, Described], Meta(min_length=1, max_length=len(Collective))]
    serves: tuple[Form, ...]


@dataclass(frozen=True)
class ExchangeModels(Stored, CommModel):
    """Model of all exchanges in one direction, with a model for each collective.
    The exchanges run one after the other, in the order of `Collective`.

    A device begins an exchange when it has ended the previous exchange, so devices do not wait twice for the same
    delay. Starts and ends are related as in every single model: if a device starts later, no device ends
    earlier, and no device ends later by more than the delay. Each model predicts the traffic of one collective alone
    (`Traffic.alone`).

    Attributes:
        exchanges: the model of each known collective, with all-to-alls among them.
        serves: families of sharding types whose exchanges in this direction are all known.
    """

    kind: ClassVar[str] = "by_collective"

    exchanges: dict[Collective, CommModel]
    serves: Forms

    @property
    def forms(self) -> Forms:
        """The families of sharding types (`Form`) whose exchanges the models can predict."""
        return self.serves

    @property
    def collectives(self) -> frozenset[Collective]:
        """The set of collectives that have a model in `exchanges`."""
        return frozenset(self.exchanges)

    @property
    def num_devices(self) -> int | None:
        """The number of devices D that the model of all-to-alls was fitted for;
        None if this model serves any number of devices.
        """
        return self.exchanges[Collective.ALL_TO_ALL].num_devices

    def coverage(self, traffic: Traffic) -> Coverage | None:
        """Return the `Coverage` of the exchanges in `traffic`: how well published measurements cover these exchanges.
        If the collectives differ in coverage, return the worst. Return None if no model is computed from a datasheet.
        """
        each = (model.coverage(traffic.alone(collective)) for collective, model in self.exchanges.items())
        return max((known for known in each if known is not None), default=None)

    @property
    def _all_to_all(self) -> CommModel:
        return self.exchanges[Collective.ALL_TO_ALL]

    def transfer_ms(self, traffic: Traffic, wait_ms: FloatArray) -> FloatArray:
        """Predict the transfer time of each of D devices in each of B plans, (B, D) ms.
        The transfer time begins when the straggler, the device that is ready last, starts its first exchange. The
        transfer time ends when the device has ended all exchanges.
        """
        if _only_all_to_alls(traffic):
            return self._all_to_all.transfer_ms(traffic, wait_ms)
        return self.predict(traffic, -wait_ms) - wait_ms

    def chain(self, traffic: Traffic, start_ms: FloatArray) -> Chain:
        """Predict the times of collectives that run one after the other, for each of B plans.
        Return a `Chain` with the total time on each device, (B, D) ms, and the time of each collective on each device,
        (B, D) ms. Collectives that carry no bytes are left out.

        The time of the first collective includes the wait for the straggler. If no collective carries bytes, the total
        is only this wait.
        """
        if _only_all_to_alls(traffic):
            return self._all_to_all.chain(traffic, start_ms)
        each_ms: dict[Collective, FloatArray] = {}
        taken = np.zeros_like(start_ms)
        for collective, model in self.exchanges.items():
            if traffic.sent_bytes(collective).any():
                each_ms[collective] = _collective_ms(model, traffic, collective, start_ms + taken)
                taken = taken + each_ms[collective]
        return Chain(np.maximum(taken, waits(start_ms)), each_ms)

    def outline(self, traffic: Traffic) -> Outline:
        """Return a formula (`Outline`) for the transfer time of each device, as a function of waits. A wait is the time
        that a device waits for the straggler (the device that is ready last).

        The transfer time is a weighted sum of segments in ms. Waits can shorten the segments of the all-to-all. If the
        traffic has other collectives, there is one more segment: the time that the other collectives add to the
        transfer if no device waits. Waits do not change this segment.
        """
        first = self._all_to_all.outline(traffic)
        if _only_all_to_alls(traffic):
            return first
        together = np.zeros(traffic.size_bytes.shape[:2])
        rest = self.transfer_ms(traffic, together) - self._all_to_all.transfer_ms(traffic, together)
        segments = np.concatenate([first.segments_ms, np.maximum(rest, 0)[..., None]], axis=-1)
        lead = np.concatenate([first.lead, np.zeros((1, NUM_WAITS))])
        return Outline(segments, np.concatenate([first.share, np.ones(1)]), lead)

    @property
    def _named(self) -> dict[str, Any]:
        return {name_of(collective): model for collective, model in self.exchanges.items()}

    def settings(self) -> dict[str, Any]:
        """Return the settings of the model, which are all fields that are not tensors, as values that
        JSON can store.
        """
        return {"exchanges": described(self._named), "serves": sorted(self.serves)}

    def tensors(self) -> Tensors:
        """Return the tensors of all models; each name begins with the name of the model's collective."""
        return tensors_of(self._named)

    @classmethod
    def restored(cls, settings: object, tensors: Tensors) -> "ExchangeModels":
        """Rebuild and return the model whose methods `settings()` and `tensors()` returned these `settings` and
        `tensors`.
        """
        plain = parse(settings, ExchangeSettings, "settings")
        models = {
            collective_named(name): one.restored(COMM_KINDS, name, tensors) for name, one in plain.exchanges.items()
        }
        if Collective.ALL_TO_ALL not in models:
            raise ValueError("the settings have no model of all-to-alls")
        return cls({collective: models[collective] for collective in sorted(models)}, frozenset(plain.serves))


def _only_all_to_alls(traffic: Traffic) -> bool:
    """Return True if the only collectives in the traffic are all-to-alls, as in the traffic of column-wise tables."""
    return traffic.collectives == (Collective.ALL_TO_ALL,)


def _collective_ms(model: CommModel, traffic: Traffic, collective: Collective, start_ms: FloatArray) -> FloatArray:
    """Predict the time of one collective on each device in B exchanges, (B, D) ms.
    The collective exchanges data within groups of devices. If a group exchanges no data, its devices take 0 ms, and do
    not wait.
    """
    groups = traffic.groups(collective)
    taken = model.alone_ms(traffic.alone(collective), start_ms[:, groups].reshape(-1, groups.shape[1]))
    cost = np.empty_like(start_ms)
    cost[:, groups] = taken.reshape(len(traffic), *groups.shape)
    return cost
