"""Fitting compute models without a network: non-negative least squares on what sets of tables move."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.linear_model import LinearRegression

from neuroshard.models.features import FeatureSet
from neuroshard.models.regression import RegressionCompute
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.stages.pretrain.examples import ComputeTable
from neuroshard.stages.pretrain.fitting import ComputeFitter, OnEpoch, compute_tables
from neuroshard.stages.pretrain.measurements import SplitMeasurements
from neuroshard.stages.pretrain.result import accuracy_of

_LEAST_MS = 1e-6  # what takes no time at all would outweigh everything else


@dataclass(frozen=True)
class Regression(ComputeFitter):
    """A weight for every feature, none negative, of the least squared relative error.

    Attributes:
        features: paper | paper_batch | log | physical | physical_reuse.
    """

    features: str = "physical"

    def __post_init__(self) -> None:
        FeatureSet(self.features)

    @property
    def epochs(self) -> int:
        """1: the weights are solved for at once."""
        return 1

    def fit(self, measured: SplitMeasurements, start: Any, seed: int, on_epoch: OnEpoch) -> RegressionCompute:
        """Fitted from nothing; nothing is random.

        Raises:
            UserError: the samples are of several batch sizes, which the features don't show.
        """
        features = FeatureSet(self.features)
        train, valid = compute_tables(measured, features)
        weight, offset_ms = solved(features.amounts(train.features), train)
        model = RegressionCompute(features, weight, np.array([offset_ms]))
        costs = _sums(features.amounts(valid.features) @ model.weight[:, None], valid)
        predicted = model.head(costs.astype(np.float32))
        on_epoch(0, accuracy_of(predicted, valid.cost_ms).mape)
        return model


def solved(amounts: FloatArray, train: ComputeTable) -> tuple[FloatArray, float]:
    """(F,) non-negative ms for one of each amount of all tables (N, F), and ms of a call besides."""
    sums = _sums(amounts, train)
    unit = np.maximum(sums.max(axis=0), 1.0)  # amounts are of very different sizes
    found = LinearRegression(positive=True).fit(sums / unit, train.cost_ms, np.maximum(train.cost_ms, _LEAST_MS) ** -2)
    return found.coef_ / unit, float(found.intercept_)


def _sums(amounts: FloatArray, table: ComputeTable) -> FloatArray:
    """(n, F) amounts of sets, from those of all their tables (N, F)."""
    first = (table.counts.cumsum() - table.counts).astype(np.int64)
    sums: FloatArray = np.add.reduceat(amounts, first, axis=0)
    return sums
