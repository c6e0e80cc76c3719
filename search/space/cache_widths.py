"""Compute upper bounds of the widths of cache rows, for search methods. All rows of a cache are as wide as the widest
shard in the cache. With a bound for each shard, a search can count the bytes of the shard before the search knows which
other shards use the same cache.

A device's cache has rows as wide as the widest cached shard on it, so the bytes of a shard depend on the shards beside
it, which no search knows in advance. Searches charge each cached shard for the widest cached shard that may come to
the same device, so they never overfill a device. A task whose rules keep narrow and wide shards on
different devices, or cut the wide tables, has lower bounds (`neuroshard.plans.caches`).
"""

from collections.abc import Sequence

import numpy as np

from neuroshard.cost.loads import Loads
from neuroshard.plumbing.arrays import FloatArray, IntArray
from neuroshard.plumbing.schema import DIM_MULTIPLE
from neuroshard.stages.search.published.shard_table import PlacementRules
from neuroshard.tasks.task import Task
from neuroshard.words.placement import TIERS, Tier

# The tables of an item: (index of the table, units of 4 columns). Only a single table is ever split.
ItemTables = tuple[tuple[int, int], ...]


def charged_widths(
    task: Task, items: Sequence[ItemTables], rules: PlacementRules, loads: Loads, item: IntArray
) -> FloatArray | None:
    """Return the width, in columns, with which a search counts the bytes of each of n shards, (n,). The shards are
    given as `loads`: a load is the work of one shard for the kernels of a device. The returned width of a shard may be
    larger than the shard, because all rows of a cache are as wide as the widest shard in the cache.

    The array `item` (n,) has the item (a table, a pinned shard, or several tables kept together) of each load.

    Return None if every load is charged for its own width: no table is cached, each width has a cache of its own, or
    all cached tables of a kernel call have equal widths. In the last case column shards may still differ in width, so a
    plan may take more memory than it is charged for. Such a plan is rejected, and the tables stay whole (`separated`).
    """
    cached = loads.tier == TIERS.index(Tier.UVM_CACHING)
    if not cached.any() or not task.memory.shares_caches:
        return None
    charged, kernel = loads.dim.copy(), loads.kernel
    for number in np.unique(kernel[cached]).tolist():
        which = np.flatnonzero(cached & (kernel == number))
        if len(np.unique(loads.table_dim[which])) > 1:
            beside = _widest_beside(items, rules, loads.take(which), item[which])
            charged[which] = np.maximum(charged[which], beside[item[which]])
    return charged if (charged > loads.dim).any() else None


def _widest_beside(items: Sequence[ItemTables], rules: PlacementRules, loads: Loads, item: IntArray) -> FloatArray:
    """Return, for each of I items, the width in columns of the widest shard that may be in the same cache as a shard of
    the item, (I,). A cache is shared by the cached shards of one kernel call on one device.

    `loads` (n,) has all shards of one kernel call, and `item` (n,) has the item of each shard. A shard of an item never
    meets another shard of the same item, but tables that are kept together do meet.
    """
    widest, allowed = np.zeros(len(items)), rules.allowed
    together = np.array([len(tables) > 1 for tables in items])
    can_be = _widest_shards(items, rules)
    np.maximum.at(widest, item, np.where(together[item], loads.dim, np.minimum(loads.dim, can_be[item])))
    by_device = np.where(allowed, widest[:, None], 0.0)  # (I, D)
    first = by_device.argmax(axis=0)
    highest = by_device[first, np.arange(len(first))]
    by_device[first, np.arange(len(first))] = 0.0
    others = np.where(np.arange(len(items))[:, None] == first, by_device.max(axis=0), highest)
    beside: FloatArray = np.where(allowed, others, 0.0).max(axis=1)
    return np.where(together, np.maximum(beside, widest), beside)


def _widest_shards(items: Sequence[ItemTables], rules: PlacementRules) -> IntArray:
    """Return the width in columns of the widest shard that each of I items may have under the placement rules, (I,).
    For example, if an item of 128 columns needs at least 2 shards of at least 32 columns, the widest shard has 96
    columns.
    """
    width = np.array([sum(units for _, units in tables) for tables in items], dtype=np.int64)
    widest: IntArray = (width - rules.min_width * (np.maximum(rules.min_shards, 1) - 1)) * DIM_MULTIPLE
    return widest


def has_bounds(task: Task, items: Sequence[ItemTables], rules: PlacementRules) -> bool:
    """Return True if a search must count more bytes for some table than the columns of the table take. A table needs
    more bytes if the table may share a cache with wider tables or shards, because all rows of a cache are as wide as
    the widest shard in the cache.
    """
    table = np.array([table for tables in items for table, _ in tables], dtype=np.int64)
    item = np.repeat(np.arange(len(items)), [len(tables) for tables in items])
    return charged_widths(task, items, rules, task.loads.take(table), item) is not None
