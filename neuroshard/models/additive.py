"""A compute model for accuracy: every table has a cost of its own, and sets are corrected for what isn't additive."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from neuroshard.arrays import Float32Array
from neuroshard.features import FeatureSet
from neuroshard.models.interface import ReluHead, SumModel
from neuroshard.models.mlp import Mlp, Normaliser, Tensors
from neuroshard.tables.columns import TableColumns

_MAX_EXPONENT = 20.0  # tables far outside the training range must not overflow


@dataclass(frozen=True)
class AdditiveCompute(SumModel):
    """A sum of costs, plus a head with one hidden layer on a sum of vectors; still a sum over tables.

    The network gives 1 + K numbers for a table. The first is the logarithm of its own cost: kernels that take tables
    one after the other cost what their tables cost, over orders of magnitude. The sum of the other K, through the
    head, adds or takes away what tables do to each other.

    Attributes:
        bias, weight: (K,) of the head; `offset` is what a call costs besides, all in multiples of `scale_ms`.
    """

    kind: ClassVar[str] = "additive"

    features: FeatureSet
    normaliser: Normaliser
    network: Mlp
    bias: Float32Array
    weight: Float32Array
    offset: float
    scale_ms: float

    def embed(self, tables: TableColumns, batch_size: int) -> Float32Array:
        """(n, 1 + K): own cost, vector."""
        given = self.network(self.normaliser(self.features(tables, batch_size)))
        own = np.exp(np.minimum(given[:, :1], _MAX_EXPONENT))
        return np.concatenate([own, given[:, 1:]], axis=1)

    @property
    def head(self) -> ReluHead:
        """The sum of the costs as it is; the rest through the hidden layer."""
        bias = np.concatenate([np.zeros(1, np.float32), self.bias])
        weight = np.concatenate([np.ones(1, np.float32), self.weight])
        return ReluHead(bias, weight, self.offset, self.scale_ms)

    def settings(self) -> dict[str, Any]:
        """What isn't a tensor."""
        return {
            "features": self.features.name,
            "columns": list(self.features.columns),
            "offset": self.offset,
            "scale_ms": self.scale_ms,
        }

    def tensors(self) -> Tensors:
        """Everything else."""
        return (
            self.normaliser.tensors()
            | self.network.tensors("network")
            | {"head.bias": self.bias, "head.weight": self.weight}
        )

    @classmethod
    def restored(cls, settings: dict[str, Any], tensors: Tensors) -> "AdditiveCompute":
        """The model that gave the settings and tensors."""
        features = FeatureSet.checked(settings["features"], settings["columns"])
        network = Mlp.restored("network", tensors)
        if network.widths[0] != len(features.columns) or network.widths[-1] != 1 + len(tensors["head.bias"]):
            raise ValueError(f"a network of widths {network.widths} doesn't fit the features or the head")
        normaliser = Normaliser.restored(tensors, network.widths[0])
        bias, weight = tensors["head.bias"], tensors["head.weight"]
        return cls(features, normaliser, network, bias, weight, settings["offset"], settings["scale_ms"])
