"""The papers' cost models at inference: fitted elsewhere, loaded from a bundle."""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from neuroshard.cost.loads import Loads
from neuroshard.cost.traffic import Traffic
from neuroshard.models.features import FeatureSet
from neuroshard.models.interface import CommModel, ReluHead, SumModel
from neuroshard.models.mlp import Mlp, Normaliser, Scale, Tensors, check_bounded
from neuroshard.plumbing.arrays import Float32Array, FloatArray, IntArray
from neuroshard.plumbing.schema import parse


@dataclass(frozen=True)
class NetworkSettings:
    """What of such a model isn't a tensor."""

    scale_ms: Scale


@dataclass(frozen=True)
class NetworkComm(CommModel):
    """A network on normalised features, in multiples of `scale_ms`; and how a bundle holds it."""

    normaliser: Normaliser
    network: Mlp
    scale_ms: float

    def settings(self) -> dict[str, Any]:
        """The scale, which is no tensor."""
        return asdict(NetworkSettings(self.scale_ms))

    def tensors(self) -> Tensors:
        """Normaliser and weights of the network."""
        return self.normaliser.tensors() | self.network.tensors("network")


@dataclass(frozen=True)
class NeuralSettings:
    """What of a `NeuralCompute` isn't a tensor."""

    features: str
    columns: tuple[str, ...]
    scale_ms: Scale


@dataclass(frozen=True)
class NeuralCompute(SumModel):
    """A table network, a sum, a head network of one hidden layer (NeuroShard, section 3.2).

    The head network gives multiples of `scale_ms`.

    A table's vector is its embedding already multiplied with the head's first layer: multiplying distributes over
    the sum, so the search pays for it once per table instead of once per candidate.
    """

    features: FeatureSet
    normaliser: Normaliser
    table_network: Mlp
    head_network: Mlp
    scale_ms: float

    kind: ClassVar[str] = "paper"

    def settings(self) -> dict[str, Any]:
        """Return the fields that aren't tensors, for JSON."""
        return asdict(NeuralSettings(self.features.name, self.features.columns, self.scale_ms))

    def tensors(self) -> Tensors:
        """Return normaliser and both networks as named tensors."""
        networks = self.table_network.tensors("table") | self.head_network.tensors("head")
        return self.normaliser.tensors() | networks

    @classmethod
    def restored(cls, settings: object, tensors: Tensors) -> "NeuralCompute":
        """The model that gave the settings and tensors."""
        plain = parse(settings, NeuralSettings, "settings")
        features = FeatureSet.checked(plain.features, plain.columns)
        table, head = Mlp.restored("table", tensors), Mlp.restored("head", tensors)
        fits = table.widths[0] == len(features.columns) and table.widths[-1] == head.widths[0]
        if not fits or len(head.widths) != 3 or head.widths[-1] != 1:
            raise ValueError(f"networks of widths {table.widths} and {head.widths} don't fit the features")
        normaliser = Normaliser.restored(tensors, table.widths[0])
        check_bounded(normaliser, table, head)
        return cls(features, normaliser, table, head, plain.scale_ms)

    def embed(self, loads: Loads) -> Float32Array:
        """(n, H) with H the width of the head's first layer."""
        embedded = self.table_network(self.normaliser(self.features(loads)))
        return embedded @ self.head_network.weights[0]

    @property
    def head(self) -> ReluHead:
        """The head network after its first multiplication."""
        weight = np.ascontiguousarray(self.head_network.weights[1][:, 0])
        return ReluHead(self.head_network.biases[0], weight, float(self.head_network.biases[1][0]), self.scale_ms)


@dataclass(frozen=True)
class NeuralComm(NetworkComm):
    """A network from every device's columns and start delay to every device's cost.

    Devices are alike, so they are sorted by start delay, then columns, before the network sees them, and put back
    after: permuting the devices permutes the costs, but for devices that are alike in both. Only differences of start
    delays count, and a device's cost is the wait for the last device to start plus what the network gives (in multiples
    of `scale_ms`).
    """

    kind: ClassVar[str] = "sorted"

    @classmethod
    def restored(cls, settings: object, tensors: Tensors) -> "NeuralComm":
        """The model that gave the settings and tensors."""
        scale_ms = parse(settings, NetworkSettings, "settings").scale_ms
        network = Mlp.restored("network", tensors)
        if network.widths[0] != 2 * network.widths[-1]:
            raise ValueError(f"a network of widths {network.widths} isn't from 2 D inputs to D costs")
        normaliser = Normaliser.restored(tensors, network.widths[0])
        check_bounded(normaliser, network)
        return cls(normaliser, network, scale_ms)

    @property
    def num_devices(self) -> int:
        """D of the exchanges that it was fitted to."""
        return self.network.widths[-1]

    def transfer_ms(self, traffic: Traffic, wait_ms: FloatArray) -> FloatArray:
        """(B, D) ms, not below 0."""
        order, features = comm_inputs(traffic, wait_ms)
        transfer = np.maximum(self.network(self.normaliser(features)), 0).astype(np.float64) * self.scale_ms
        cost = np.empty_like(transfer)
        np.put_along_axis(cost, order, transfer, axis=1)
        return cost


def comm_inputs(traffic: Traffic, wait_ms: FloatArray) -> tuple[IntArray, FloatArray]:
    """How a comm network sees exchanges of devices that wait (B, D) for the last one.

    Returns the order (B, D) in which devices are sorted, and features (B, 2 D) of the sorted devices: columns, then
    starts after the earliest, ms.
    """
    order = np.lexsort((traffic.columns, -wait_ms), axis=1)
    waits = np.take_along_axis(wait_ms, order, axis=1)
    features = np.concatenate([np.take_along_axis(traffic.columns, order, axis=1), waits[:, :1] - waits], axis=1)
    return order, features
