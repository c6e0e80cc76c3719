"""Tables measured from a trace: the lookups of one batch, as a user's data loader gives them."""

import numpy as np

from neuroshard.arrays import IntArray
from neuroshard.errors import UserError
from neuroshard.tables.reuse import histogram
from neuroshard.tables.table import Table


def table_from_trace(
    name: str, indices: IntArray, offsets: IntArray, rows: int, dim: int, bytes_per_element: int = 4
) -> Table:
    """The table whose lookups in one batch of B samples are `indices` (L,), split at `offsets` (B + 1,).

    Raises:
        UserError: offsets don't rise from 0 to L, or an index lies outside 0..rows-1.
    """
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != len(indices) or (np.diff(offsets) < 0).any():
        raise UserError(f"trace of {name!r}: offsets must rise from 0 to the number of indices, {len(indices)}")
    if not len(indices) or indices.min() < 0 or indices.max() >= rows:
        raise UserError(f"trace of {name!r}: indices must lie in 0..{rows - 1}, at least one of them")
    counts = np.unique(indices, return_counts=True)[1]
    return Table(name, rows, dim, len(indices) / (len(offsets) - 1), histogram(counts), bytes_per_element)
