"""What the simulator and the searchers ask of cost models. Costs are ms; batches are numpy arrays."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from neuroshard.arrays import Float32Array, FloatArray
from neuroshard.tables import Table
from neuroshard.tables.columns import TableColumns


class ComputeModel(ABC):
    """Compute cost of sets of tables. The empty set costs nothing."""

    @abstractmethod
    def predict(self, sets: Sequence[Sequence[Table]], batch_size: int) -> FloatArray:
        """(B,) ms of each of the B sets of tables."""

    def spread_ms(self, sets: Sequence[Sequence[Table]], batch_size: int) -> FloatArray:
        """(B,) what the members of an ensemble disagree by, ms; 0 for a model that has none."""
        return np.zeros(len(sets))


@dataclass(frozen=True)
class ReluHead:
    """From a set's vector v to its cost: max(sum(relu(v + bias) * weight) + offset, 0) * scale_ms.

    `bias` and `weight` are (H,). Simple enough to be compiled into the search's inner loop.
    """

    bias: Float32Array
    weight: Float32Array
    offset: float
    scale_ms: float

    @classmethod
    def of_cost(cls, offset: float = 0.0) -> "ReluHead":
        """For vectors of one number, a cost in ms that is not negative: the sum of costs, and `offset`."""
        return cls(np.zeros(1, np.float32), np.ones(1, np.float32), offset, 1.0)

    def __call__(self, sums: Float32Array) -> FloatArray:
        """(...,) ms of sets given as sums (..., H); not meaningful for empty sets."""
        return self.finish(np.maximum(sums + self.bias, 0) @ self.weight)

    def finish(self, score: FloatArray | Float32Array) -> FloatArray:
        """(...,) ms from the weighted sums (...,)."""
        cost: FloatArray = np.maximum(score.astype(np.float64) + self.offset, 0) * self.scale_ms
        return cost


class SumModel(ComputeModel):
    """A compute model of the papers' form: each table becomes a vector, a set their sum, and the sum a cost.

    The search is fast for these: adding a table to a device is one addition, a cost is one small dot product.
    """

    @property
    @abstractmethod
    def head(self) -> ReluHead:
        """From sums to costs."""

    @abstractmethod
    def embed(self, tables: TableColumns, batch_size: int) -> Float32Array:
        """(n, H) a vector for each of n tables; a set's vector is the sum of its tables'."""

    def predict(self, sets: Sequence[Sequence[Table]], batch_size: int) -> FloatArray:
        """(B,) ms of each of the B sets of tables."""
        lengths = np.array([len(tables) for tables in sets], dtype=np.int64)
        cost = np.zeros(len(sets))
        flat = [table for tables in sets for table in tables]
        if flat:
            filled = lengths > 0
            starts = np.concatenate([[0], lengths[filled].cumsum()[:-1]])
            vectors = self.embed(TableColumns.of(flat), batch_size)
            cost[filled] = self.head(np.add.reduceat(vectors, starts, axis=0))
        return cost


class CommModel(ABC):
    """Cost of one direction of the all-to-all, per device, waiting included."""

    @property
    @abstractmethod
    def num_devices(self) -> int | None:
        """D, the number of devices it was fitted for; None if it serves any."""

    @abstractmethod
    def predict(self, dims: FloatArray, start_ms: FloatArray, batch_size: int) -> FloatArray:
        """(B, D) ms, from the columns (B, D) and start delays (B, D) of the devices, at a global batch size."""
