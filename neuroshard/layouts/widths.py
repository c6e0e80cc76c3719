"""Widths of shards: FBGEMM's kernels have a maximum width, and a device splits columns of a table beyond that."""

from collections.abc import Iterator

import numpy as np

from neuroshard.cost.loads import LoadSets
from neuroshard.plumbing.schema import DIM_MULTIPLE, MAX_SHARD_DIM
from neuroshard.tables import Table


def fewest_parts(dim: int) -> int:
    """Return the fewest shards that `dim` columns can be cut into."""
    return -(-dim // MAX_SHARD_DIM)


def equal_parts(dim: int, least: int = 1) -> int:
    """Return the fewest shards, `least` or more, that are all as wide and make up `dim` columns."""
    units, parts = dim // DIM_MULTIPLE, max(fewest_parts(dim), least)
    return next((count for count in range(parts, units + 1) if units % count == 0), parts)


def shard_widths(table: Table, dim: int) -> Iterator[int]:
    """Yield the widths of the shards that a device cuts `dim` columns of a table into.

    These are as few and as even as possible. Shards of a sequence table are all as wide, on every device.
    """
    widest = MAX_SHARD_DIM if table.pooled else table.dim // equal_parts(table.dim)
    count = -(-dim // widest)
    narrow, wider = divmod(dim // DIM_MULTIPLE, count)
    return (DIM_MULTIPLE * (narrow + (number >= count - wider)) for number in range(count))


def as_shards(sets: LoadSets) -> LoadSets:
    """Split column-wise loads that are too wide for a shard, as `shard_widths` does; each part is a load of its own."""
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
    number = np.arange(len(whole)) - np.repeat(counts.cumsum() - counts, counts)  # of the part, in its load
    narrow, wider = np.divmod(units, counts)
    dims = DIM_MULTIPLE * (narrow[whole] + (number >= (counts - wider)[whole]))
    return LoadSets(loads.take(whole).columns(dims), np.bincount(sets.owners, counts, len(sets)).astype(np.int64))
