"""The widths of column shards: no shard may be wider than FBGEMM's maximum width."""

from collections.abc import Iterator

import numpy as np

from neuroshard.cost.loads import LoadSets
from neuroshard.plumbing.schema import DIM_MULTIPLE, MAX_SHARD_DIM
from neuroshard.tables import Table


def fewest_parts(dim: int) -> int:
    """Return the minimum number of shards for `dim` columns that keeps each shard within FBGEMM's maximum width."""
    return -(-dim // MAX_SHARD_DIM)


def equal_parts(dim: int, least: int = 1) -> int:
    """Return the smallest number of shards, at least `least`, into which `dim` columns can be split equally.

    Each shard has a multiple of 4 columns. If there are fewer than 4 x `least` columns, the result is `least`.
    """
    units, parts = dim // DIM_MULTIPLE, max(fewest_parts(dim), least)
    return next((count for count in range(parts, units + 1) if units % count == 0), parts)


def shard_widths(table: Table, dim: int) -> Iterator[int]:
    """Return an iterator over the widths of the shards of a table on one device.
    The device has `dim` columns of the table in total.

    The shards are as few and as equal as possible. All shards of a sequence table have the same width on all devices.
    """
    widest = MAX_SHARD_DIM if table.pooled else table.dim // equal_parts(table.dim)
    count = -(-dim // widest)
    narrow, wider = divmod(dim // DIM_MULTIPLE, count)
    return (DIM_MULTIPLE * (narrow + (number >= count - wider)) for number in range(count))


def as_shards(sets: LoadSets) -> LoadSets:
    """Split every load that is too wide for FBGEMM into loads of column shards, and return the changed sets of loads.
    A load is the work of a table or shard for the kernels, and each set has the loads of one device. A load is too wide
    if it has more columns than FBGEMM allows in a shard. The column shards are as few and as equal in width as
    possible.
    """
    loads = sets.loads
    if not (loads.dim > MAX_SHARD_DIM).any():
        return sets
    widest = np.full(len(loads), MAX_SHARD_DIM)
    for number in np.flatnonzero(~loads.pooled & (loads.table_dim > MAX_SHARD_DIM)).tolist():
        dim = int(loads.table_dim[number])
        widest[number] = dim // equal_parts(dim)
    units = loads.dim.astype(np.int64) // DIM_MULTIPLE
    counts = -(-units * DIM_MULTIPLE // widest)
    whole = np.repeat(np.arange(len(loads)), counts)
    number = np.arange(len(whole)) - np.repeat(counts.cumsum() - counts, counts)  # index of the shard in its load
    narrow, wider = np.divmod(units, counts)
    dims = DIM_MULTIPLE * (narrow[whole] + (number >= (counts - wider)[whole]))
    return LoadSets(loads.take(whole).columns(dims), np.bincount(sets.owners, counts, len(sets)).astype(np.int64))
