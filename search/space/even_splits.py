"""Column splits into shards of about equal shares of a device, from which local search starts."""

import numpy as np

from neuroshard.plumbing.arrays import IntArray
from neuroshard.stages.search.published.shard_table import ShardTable, evenly_split, most_shards
from neuroshard.stages.search.space.costed_space import CostedSpace

_LEAST_MS = 1e-9  # of a device's share: models may predict that nothing costs anything


def even_splits(space: CostedSpace, most: float) -> IntArray:
    """Split items, as evenly as possible, into as few shards as leave none above `most` of a device's even share, (S,).

    A shard's share is of all compute or of all units sent, whichever is larger. Items that may not be split that far
    are split as far as they may.
    """
    shards, num_devices = space.shards, space.task.topology.num_devices
    cost_ms = max(shards.cost_ms[shards.whole].sum() / num_devices, _LEAST_MS)
    units, most_of_each, full_width = shards.total_sent_units / num_devices, most_shards(shards), shards.full_width
    counts, growing = shards.rules.min_shards.copy(), np.ones(shards.num_items, dtype=np.bool_)
    while growing.any():
        widest = shards.first - (-full_width // counts)  # rows
        share = np.maximum(shards.cost_ms[widest] / cost_ms, shards.sent_units[widest] / units)
        growing = (counts < most_of_each) & (share > most)
        counts[growing] += 1
    return evenly_split(shards, counts)


def equal_splits(shards: ShardTable, count: int) -> IntArray:
    """Split every item into `count` shards, as far as its rules allow, (S,)."""
    return evenly_split(shards, np.clip(count, shards.rules.min_shards, most_shards(shards)))
