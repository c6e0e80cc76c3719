"""A communication model for any number of devices and any batch size."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from neuroshard.arrays import FloatArray
from neuroshard.models.mlp import Mlp, Normaliser, Tensors
from neuroshard.models.network_comm import NetworkComm

_ELEMENT_BYTES = 4
_MAX_EXPONENT = 20.0
NUM_FEATURES = 14


@dataclass(frozen=True)
class SetComm(NetworkComm):
    """One network for every device, which sees the others as a set: their sum, mean and maximum.

    So permuting the devices permutes the costs, and any number of devices will do. A device's cost is the wait for the
    last device to start plus what the network gives, as the logarithm of a multiple of `scale_ms`.
    """

    kind: ClassVar[str] = "set"

    @property
    def num_devices(self) -> None:
        """Any number."""
        return

    def predict(self, dims: FloatArray, start_ms: FloatArray, batch_size: int) -> FloatArray:
        """(B, D) ms, above the wait; nothing where there is one device."""
        wait_ms = start_ms.max(axis=1, keepdims=True) - start_ms
        if dims.shape[1] == 1:
            return np.zeros_like(wait_ms)
        features = set_features(dims, wait_ms, np.full(len(dims), batch_size))
        flat = self.normaliser(features.reshape(-1, NUM_FEATURES))
        given = self.network(flat)[:, 0].astype(np.float64).reshape(dims.shape)
        cost: FloatArray = wait_ms + np.exp(np.minimum(given, _MAX_EXPONENT)) * self.scale_ms
        return cost

    @classmethod
    def restored(cls, settings: dict[str, Any], tensors: Tensors) -> "SetComm":
        """The model that gave the settings and tensors."""
        network = Mlp.restored("network", tensors)
        if network.widths[0] != NUM_FEATURES or network.widths[-1] != 1:
            raise ValueError(f"a network of widths {network.widths} isn't from {NUM_FEATURES} features to a cost")
        return cls(Normaliser.restored(tensors, NUM_FEATURES), network, settings["scale_ms"])


def set_features(dims: FloatArray, wait_ms: FloatArray, batch_size: FloatArray) -> FloatArray:
    """(B, D, F) what the network sees of every device, from columns and waits (B, D) and batch sizes (B,)."""
    devices = dims.shape[1]
    local = batch_size[:, None] / devices * _ELEMENT_BYTES
    everything = dims.sum(axis=1, keepdims=True)
    sent, received = local * dims * (devices - 1), local * (everything - dims)
    features = np.empty((*dims.shape, NUM_FEATURES))
    amounts: tuple[FloatArray, ...] = (
        sent, received, local * dims, local * everything / devices,
        sent.max(axis=1, keepdims=True), received.max(axis=1, keepdims=True), sent.sum(axis=1, keepdims=True),
    )  # fmt: skip
    for f, amount in enumerate(amounts):
        features[..., f] = np.log2(1 + amount)
    next_to_last = np.partition(wait_ms, 1, axis=1)[:, 1:2]  # of the last device to start but one
    waits = (wait_ms, wait_ms.mean(axis=1, keepdims=True), wait_ms.max(axis=1, keepdims=True), next_to_last)
    for f, wait in enumerate(waits, start=len(amounts)):
        features[..., f] = np.log1p(wait)
    features[..., -3] = wait_ms == 0
    features[..., -2] = np.log2(devices)
    features[..., -1] = np.log2(batch_size)[:, None]
    return features
