"""Bounds of the cache rows' widths, by which searches add up bytes shard by shard.

A device's cache has rows as wide as the widest cached shard on it, so the bytes of a shard depend on the shards beside
it, which no search knows in advance. Searches charge each cached shard for the widest cached shard that may come to
the same device. So they never fill a device with more than it holds. A task whose rules keep narrow and wide shards on
different devices, or cut the wide tables, has lower bounds (`neuroshard.plans.caches`).
"""

import numpy as np

from neuroshard.cost.loads import Loads
from neuroshard.plumbing.arrays import FloatArray, IntArray
from neuroshard.plumbing.schema import DIM_MULTIPLE
from neuroshard.stages.search.space.items import Items
from neuroshard.words.placement import TIERS, Tier


def charged_widths(items: Items, loads: Loads, item: IntArray) -> FloatArray | None:
    """Compute (n,) columns of the cache row that each of n loads is charged for, by the item (n,) of each.

    None if every load is charged for its own width: nothing is cached, each width has a cache of its own, or all cached
    tables of a kernel call are as wide. Column shards of the latter may differ in width, so a plan of them may take
    more than it is charged for; it is then refused, and its tables stay whole (`separated`).
    """
    cached = loads.tier == TIERS.index(Tier.UVM_CACHING)
    if not cached.any() or not items.task.memory.shares_caches:
        return None
    charged, kernel = loads.dim.copy(), loads.kernel
    for number in np.unique(kernel[cached]).tolist():
        which = np.flatnonzero(cached & (kernel == number))
        if len(np.unique(loads.table_dim[which])) > 1:
            beside = _widest_beside(items, loads.take(which), item[which])
            charged[which] = np.maximum(charged[which], beside[item[which]])
    return charged if (charged > loads.dim).any() else None


def _widest_beside(items: Items, loads: Loads, item: IntArray) -> FloatArray:
    """Compute (I,) columns of the widest shard that may share a device and a cache with each item.

    The `loads` (n,) are all shards of one kernel call, with the item (n,) of each. A shard of an item never meets
    another shard of the same item, but tables that are kept together do meet.
    """
    widest, allowed = np.zeros(len(items)), items.limits.allowed
    together = np.array([len(its.tables) > 1 for its in items.items])
    can_be = np.array([_widest_shard(items, number) for number in range(len(items))])
    np.maximum.at(widest, item, np.where(together[item], loads.dim, np.minimum(loads.dim, can_be[item])))
    by_device = np.where(allowed, widest[:, None], 0.0)  # (I, D)
    first = by_device.argmax(axis=0)
    highest = by_device[first, np.arange(len(first))]
    by_device[first, np.arange(len(first))] = 0.0
    others = np.where(np.arange(len(items))[:, None] == first, by_device.max(axis=0), highest)
    beside: FloatArray = np.where(allowed, others, 0.0).max(axis=1)
    return np.where(together, np.maximum(beside, widest), beside)


def _widest_shard(items: Items, number: int) -> int:
    """Compute the columns of the widest shard that an item's limits allow."""
    item = items.items[number]
    return (item.width - item.min_width * (max(item.min_shards, 1) - 1)) * DIM_MULTIPLE


def has_bounds(items: Items) -> bool:
    """Return True if the bytes of some item are a bound, because wider cached tables may come to the same device."""
    table = np.array([table for item in items.items for table, _ in item.tables], dtype=np.int64)
    item = np.repeat(np.arange(len(items)), [len(one.tables) for one in items.items])
    return charged_widths(items, items.task.loads.take(table), item) is not None
