"""A compute model without a network: what a kernel moves, each amount times a weight. For comparison."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from neuroshard.cost.loads import Loads
from neuroshard.models.features import FeatureSet
from neuroshard.models.interface import ReluHead, SumModel
from neuroshard.models.stored import Held, Stored
from neuroshard.plumbing.arrays import Float32Array, FloatArray

_LARGEST_WEIGHT = 1e9  # ms; sums of whatever amounts tables may have stay finite in fp32


@dataclass(frozen=True)
class RegressionCompute(Stored, SumModel):
    """A weighted sum of amounts over all tables of a set, plus what a call costs besides.

    Attributes:
        weight: (F,) ms of a unit of each amount (`FeatureSet.amounts`), none negative: more to move never costs less.
        offset_ms: (1,) of a call; a cost below 0 is 0.
    """

    kind: ClassVar[str] = "linear"

    features: FeatureSet
    weight: Annotated[FloatArray, Held("weight", np.float64)]
    offset_ms: Annotated[FloatArray, Held("offset_ms", np.float64)]

    def embed(self, loads: Loads) -> Float32Array:
        """(n, 1) ms of each table's amounts."""
        cost = self.features.amounts(self.features(loads)) @ self.weight
        return cost[:, None].astype(np.float32)

    @property
    def head(self) -> ReluHead:
        """The sum of the costs, plus that of the call."""
        return ReluHead(self.offset_ms.astype(np.float32), np.ones(1, np.float32), 0.0, 1.0)

    def check(self) -> None:
        """Raise ValueError if weights don't fit the features, are negative, or costs could overflow."""
        weight, offset_ms = self.weight, self.offset_ms
        if weight.shape != (len(self.features.columns),) or offset_ms.shape != (1,):
            raise ValueError(f"{len(weight)} weights and {len(offset_ms)} offsets don't fit the features")
        if (weight < 0).any() or max(weight.max(), np.abs(offset_ms).max()) > _LARGEST_WEIGHT:
            raise ValueError(f"weights must lie in 0..{_LARGEST_WEIGHT:g}, the offset not be farther from 0")
