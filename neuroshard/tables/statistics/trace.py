"""Tables measured from a trace: the lookups of one batch, as a user's data loader gives them."""

from typing import Annotated

import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike

from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import BytesPerElement, Dim, Name, Rows
from neuroshard.tables.reuse import histogram
from neuroshard.tables.statistics.lookups import Lookups
from neuroshard.tables.statistics.row_counts import block_counts
from neuroshard.tables.table import MAX_ROW_BLOCKS, Table

RowBlocks = Annotated[int, Meta(ge=0, le=MAX_ROW_BLOCKS)]


@checked
def table_from_trace(
    name: Name,
    indices: ArrayLike,
    offsets: ArrayLike,
    rows: Rows,
    dim: Dim,
    bytes_per_element: BytesPerElement = 4,
    row_blocks: RowBlocks = 0,
) -> Table:
    """Make the table whose lookups in one global batch of B samples are `indices` (L,), split at `offsets` (B + 1,).

    Its reuse histogram is that batch's, so B is the batch size that the table is made for: `reuse_batch_size`. With
    `row_blocks`, 2 to 1,024, so are its `row_lookups` in as many blocks of rows, but no more than there are rows; with
    0 it has none. `tables_from_batches` does the same for several tables and batches.

    Raises:
        UserError: offsets don't rise from 0 to L, or an index lies outside 0..rows-1.
    """
    where = f"trace of {name!r}"
    lookups = Lookups.of(indices, offsets, "offsets", rows, where)
    if not lookups.samples or not len(lookups.indices):
        raise UserError(f"{where}: indices must be at least one, in at least one sample")
    looked_up = lookups.indices.astype(np.int64)
    pooling_factor, reuse = len(looked_up) / lookups.samples, histogram(np.unique(looked_up, return_counts=True)[1])
    in_blocks = block_counts(looked_up, rows, min(row_blocks, rows)) if row_blocks else np.zeros(0)
    spread = tuple((in_blocks / len(looked_up)).tolist())
    return Table(name, rows, dim, pooling_factor, reuse, bytes_per_element, lookups.samples, spread)
