"""Tables measured from a trace: the lookups of one batch, as a user's data loader gives them."""

from typing import Annotated

import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike

from neuroshard.arrays import IntArray
from neuroshard.checked import checked
from neuroshard.errors import UserError
from neuroshard.schema import BytesPerElement, Dim, Name, Rows
from neuroshard.tables.reuse import histogram
from neuroshard.tables.table import MAX_ROW_BLOCKS, Table

_RowBlocks = Annotated[int, Meta(ge=0, le=MAX_ROW_BLOCKS)]


@checked
def table_from_trace(
    name: Name,
    indices: ArrayLike,
    offsets: ArrayLike,
    rows: Rows,
    dim: Dim,
    bytes_per_element: BytesPerElement = 4,
    row_blocks: _RowBlocks = 0,
) -> Table:
    """The table whose lookups in one global batch of B samples are `indices` (L,), split at `offsets` (B + 1,).

    Its reuse histogram is that batch's, so B is the batch size that the table is made for: `reuse_batch_size`. With
    `row_blocks`, 2 to 1,024, so are its `row_lookups` in as many blocks of rows, but no more than there are rows; with
    0 it has none.

    Raises:
        UserError: offsets don't rise from 0 to L, or an index lies outside 0..rows-1.
    """
    found, splits = _whole_numbers(indices, "indices", name), _whole_numbers(offsets, "offsets", name)
    if len(splits) < 2 or splits[0] != 0 or splits[-1] != len(found) or (np.diff(splits) < 0).any():
        raise UserError(f"trace of {name!r}: offsets must rise from 0 to the number of indices, {len(found)}")
    if not len(found) or found.min() < 0 or found.max() >= rows:
        raise UserError(f"trace of {name!r}: indices must lie in 0..{rows - 1}, at least one of them")
    batch_size = len(splits) - 1
    counts = np.unique(found, return_counts=True)[1]
    pooling_factor, spread = len(found) / batch_size, _row_lookups(found, rows, min(row_blocks, rows))
    return Table(name, rows, dim, pooling_factor, histogram(counts), bytes_per_element, batch_size, spread)


def _row_lookups(found: IntArray, rows: int, blocks: int) -> tuple[float, ...]:
    """(K,) share of the lookups in each of so many blocks; a row is counted where it begins."""
    counts = np.bincount(found * blocks // rows, minlength=blocks) if blocks else np.zeros(0)
    return tuple((counts / len(found)).tolist())


def _whole_numbers(values: ArrayLike, what: str, name: str) -> IntArray:
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise UserError(
            f"trace of {name!r}: {what} must be one row of whole numbers, not {array.dtype} of shape {array.shape}"
        )
    return array.astype(np.int64)
