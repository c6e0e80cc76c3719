"""The papers' cost models at inference: fitted elsewhere, loaded from a bundle."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from neuroshard.cost.loads import Loads
from neuroshard.cost.traffic import Traffic
from neuroshard.models.features import FeatureSet
from neuroshard.models.interface import CommModel, ReluHead, SumModel
from neuroshard.models.mlp import Mlp, Normaliser, Scale, check_bounded
from neuroshard.models.stored import Held, Stored
from neuroshard.plumbing.arrays import Float32Array, FloatArray, IntArray


@dataclass(frozen=True)
class NeuralCompute(Stored, SumModel):
    """A table network, a sum, a head network of one hidden layer (NeuroShard, section 3.2).

    The head network gives multiples of `scale_ms`.

    A table's vector is its embedding already multiplied with the head's first layer: multiplying distributes over
    the sum, so the search pays for it once per table instead of once per candidate.
    """

    features: FeatureSet
    normaliser: Annotated[Normaliser, Held("")]
    table_network: Annotated[Mlp, Held("table")]
    head_network: Annotated[Mlp, Held("head")]
    scale_ms: Scale

    kind: ClassVar[str] = "paper"

    def check(self) -> None:
        """Raise ValueError if the networks don't fit the features or each other, or costs could overflow."""
        table, head = self.table_network.widths, self.head_network.widths
        fits = table[0] == len(self.features.columns) and table[-1] == head[0]
        if not fits or len(head) != 3 or head[-1] != 1:
            raise ValueError(f"networks of widths {table} and {head} don't fit the features")
        check_bounded(self.normaliser, self.table_network, self.head_network)

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
            raise ValueError(f"a network of widths {self.network.widths} isn't from 2 D inputs to D costs")
        check_bounded(self.normaliser, self.network)

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
