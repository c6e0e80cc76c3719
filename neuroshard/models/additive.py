"""A compute model for accuracy: every table has a cost of its own, and sets are corrected for what isn't additive."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from neuroshard.cost.loads import Loads
from neuroshard.models.features import FeatureSet
from neuroshard.models.interface import ReluHead, SumModel
from neuroshard.models.mlp import Mlp, Normaliser, Offset, Scale, check_bounded
from neuroshard.models.stored import Held, Stored
from neuroshard.plumbing.arrays import Float32Array

_MAX_EXPONENT = 20.0  # tables far outside the training range must not overflow
_LARGEST_WEIGHT = 1e9


@dataclass(frozen=True)
class AdditiveCompute(Stored, SumModel):
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
    normaliser: Annotated[Normaliser, Held("")]
    network: Annotated[Mlp, Held("network")]
    bias: Annotated[Float32Array, Held("head.bias")]
    weight: Annotated[Float32Array, Held("head.weight")]
    offset: Offset
    scale_ms: Scale

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

    def check(self) -> None:
        """Raise ValueError if the network doesn't fit the features or the head, or costs could overflow."""
        widths = self.network.widths
        fits = widths[0] == len(self.features.columns) and widths[-1] == 1 + len(self.bias) == 1 + len(self.weight)
        if not fits:
            raise ValueError(f"a network of widths {widths} doesn't fit the features or the head")
        if max(np.abs(self.bias).max(), np.abs(self.weight).max()) > _LARGEST_WEIGHT:
            raise ValueError(f"the head's weights must not be beyond {_LARGEST_WEIGHT:g}")
        check_bounded(self.normaliser, self.network)
