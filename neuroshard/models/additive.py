"""A compute model for accuracy: every table has a cost of its own, and sets are corrected for what isn't additive."""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from neuroshard.cost.loads import Loads
from neuroshard.models.features import FeatureSet
from neuroshard.models.interface import ReluHead, SumModel
from neuroshard.models.mlp import Mlp, Normaliser, Offset, Scale, Tensors, check_bounded, checked_tensor
from neuroshard.plumbing.arrays import Float32Array
from neuroshard.plumbing.schema import parse

_MAX_EXPONENT = 20.0  # tables far outside the training range must not overflow
_LARGEST_WEIGHT = 1e9


@dataclass(frozen=True)
class AdditiveSettings:
    """What of such a model isn't a tensor."""

    features: str
    columns: tuple[str, ...]
    offset: Offset
    scale_ms: Scale


@dataclass(frozen=True)
class AdditiveCompute(SumModel):
    """A sum of costs, plus a head with one hidden layer on a sum of vectors; still a sum over tables.

    The network gives the logarithms of 1 + K amounts of a table. The first is its own cost: kernels that take tables
    one after the other cost what their tables cost, over orders of magnitude. The other K are summed over a set, and
    from (where the weight is positive) or up to (negative) a limit of its own each sum adds to the cost: what tables
    do to each other. So a set never costs less than a part of it; and the network's weights are such that a table that
    makes a kernel move more never costs less (pre-training sees to it).

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

    def embed(self, loads: Loads) -> Float32Array:
        """(n, 1 + K): own cost, amounts; those that add up to a limit only are negative."""
        given = self.network(self.normaliser(self.features(loads)))
        amounts: Float32Array = np.exp(np.minimum(given, _MAX_EXPONENT))
        amounts[:, 1:] *= np.where(self.weight < 0, np.float32(-1), np.float32(1))
        return amounts

    @property
    def head(self) -> ReluHead:
        """The sum of the costs as it is; the rest through the hidden layer."""
        bias = np.concatenate([np.zeros(1, np.float32), self.bias])
        weight = np.concatenate([np.ones(1, np.float32), self.weight])
        return ReluHead(bias, weight, self.offset, self.scale_ms)

    def settings(self) -> dict[str, Any]:
        """Return the fields that aren't tensors, for JSON."""
        return asdict(AdditiveSettings(self.features.name, self.features.columns, self.offset, self.scale_ms))

    def tensors(self) -> Tensors:
        """Return normaliser, network and head as named tensors."""
        return (
            self.normaliser.tensors()
            | self.network.tensors("network")
            | {"head.bias": self.bias, "head.weight": self.weight}
        )

    @classmethod
    def restored(cls, settings: object, tensors: Tensors) -> "AdditiveCompute":
        """The model that gave the settings and tensors."""
        plain = parse(settings, AdditiveSettings, "settings")
        features = FeatureSet.checked(plain.features, plain.columns)
        network, normaliser = Mlp.restored("network", tensors), Normaliser.restored(tensors, len(features.columns))
        bias, weight = (checked_tensor(tensors, f"head.{name}", np.float32, 1) for name in ("bias", "weight"))
        fits = network.widths[0] == len(features.columns) and network.widths[-1] == 1 + len(bias) == 1 + len(weight)
        if not fits:
            raise ValueError(f"a network of widths {network.widths} doesn't fit the features or the head")
        if max(np.abs(bias).max(), np.abs(weight).max()) > _LARGEST_WEIGHT:
            raise ValueError(f"the head's weights must not be beyond {_LARGEST_WEIGHT:g}")
        check_bounded(normaliser, network)
        return cls(features, normaliser, network, bias, weight, plain.offset, plain.scale_ms)
