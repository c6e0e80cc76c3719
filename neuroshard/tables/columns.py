"""Many tables as arrays: what features are computed from, without a Python loop."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from neuroshard.arrays import FloatArray, IntArray
from neuroshard.tables.table import NUM_REUSE_BINS, Table


@dataclass(frozen=True)
class TableColumns:
    """n tables: every array is (n,), `reuse` is (n, 17); meanings and units as in `Table`."""

    rows: FloatArray
    dim: FloatArray
    pooling_factor: FloatArray
    bytes_per_element: FloatArray
    reuse: FloatArray

    @classmethod
    def of(cls, tables: Sequence[Table]) -> "TableColumns":
        """The columns of n tables, in their order."""
        plain = np.array([(t.rows, t.dim, t.pooling_factor, t.bytes_per_element) for t in tables], dtype=np.float64)
        reuse = np.array([t.reuse for t in tables], dtype=np.float64).reshape(len(tables), NUM_REUSE_BINS)
        rows, dim, pooling_factor, bytes_per_element = plain.reshape(len(tables), 4).T
        return cls(rows, dim, pooling_factor, bytes_per_element, reuse)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def size_bytes(self) -> FloatArray:
        """(n,) bytes of the weights."""
        return self.rows * self.dim * self.bytes_per_element

    def take(self, indices: IntArray) -> "TableColumns":
        """The tables at `indices` (m,)."""
        return TableColumns(
            self.rows[indices],
            self.dim[indices],
            self.pooling_factor[indices],
            self.bytes_per_element[indices],
            self.reuse[indices],
        )

    def with_dim(self, dim: FloatArray) -> "TableColumns":
        """The same tables, `dim` (n,) wide."""
        return replace(self, dim=dim)
