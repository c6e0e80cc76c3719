"""What a compute model sees of a table."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from neuroshard.arrays import FloatArray
from neuroshard.errors import unknown_name
from neuroshard.tables.columns import TableColumns
from neuroshard.tables.table import NUM_REUSE_BINS

_REUSE_NAMES = tuple(f"reuse_{i}" for i in range(NUM_REUSE_BINS))
_BYTES_PER_MIB = 1 << 20


def _paper(tables: TableColumns) -> FloatArray:
    plain = np.stack([tables.dim, tables.rows, tables.pooling_factor, tables.size_bytes / _BYTES_PER_MIB], axis=1)
    return np.concatenate([plain, tables.reuse], axis=1)


def _log(tables: TableColumns) -> FloatArray:
    plain = np.log2(np.stack([tables.dim, tables.rows, tables.pooling_factor, tables.size_bytes], axis=1))
    return np.concatenate([plain, plain[:, :1] + plain[:, 2:3], tables.reuse], axis=1)


@dataclass(frozen=True)
class FeatureSet:
    """A named way to describe tables as numbers; bundles store the name and the columns' names.

    "paper": dim, rows, pooling factor, size in MiB and reuse histogram as they are (NeuroShard, section 3.2).
    "log": binary logs of the first four, the log of the columns read for a sample (dim x pooling factor), histogram.

    Raises:
        UserError: no such feature set.
    """

    name: str

    def __post_init__(self) -> None:
        if self.name not in _FEATURES:
            raise unknown_name("feature set", self.name, _FEATURES)

    @property
    def columns(self) -> tuple[str, ...]:
        """(F,) names of the features."""
        return _FEATURES[self.name].columns

    def __call__(self, tables: TableColumns) -> FloatArray:
        """(n, F) features of n tables."""
        return _FEATURES[self.name].compute(tables)


@dataclass(frozen=True)
class _Features:
    columns: tuple[str, ...]
    compute: Callable[[TableColumns], FloatArray]


_FEATURES = {
    "paper": _Features(("dim", "rows", "pooling_factor", "size_mib", *_REUSE_NAMES), _paper),
    "log": _Features(
        ("log_dim", "log_rows", "log_pooling_factor", "log_size_bytes", "log_columns_read", *_REUSE_NAMES), _log
    ),
}
