"""Layouts: which shards a task is cut into, column-wise, before they are placed.

A layout is the (S,) catalog entries of its shards, ascending; P layouts of as many shards are (P, S).
"""

import numpy as np

from neuroshard.plumbing.arrays import BoolArray, IntArray
from neuroshard.stages.search.space.catalog import Catalog
from neuroshard.stages.search.space.sizes import Sizes

_LEAST_MS = 1e-9  # of a device's share: models may say that nothing costs anything


def fewest_shards(sizes: Sizes) -> IntArray:
    """(S,) every item in as few shards as its limits allow, as even as it goes."""
    return _evenly_cut(sizes, sizes.items.limits.min_shards)


def even_layout(catalog: Catalog, most: float) -> IntArray:
    """(S,) every item in as few shards, as even as it goes, as leave none above `most` of a device's even share.

    A shard's share is of all compute or of all that is given out, whichever is larger. Items that may not be split that
    far are split as far as they may.
    """
    limits, num_devices = catalog.items.limits, catalog.items.task.topology.num_devices
    cost_ms = max(catalog.cost_ms[catalog.whole].sum() / num_devices, _LEAST_MS)
    given, most_shards = catalog.total_given / num_devices, _most_shards(catalog)
    counts, growing = limits.min_shards.copy(), np.ones(catalog.num_items, dtype=np.bool_)
    while growing.any():
        widest = catalog.first - (-catalog.full_width // counts)  # entries
        share = np.maximum(catalog.cost_ms[widest] / cost_ms, catalog.given[widest] / given)
        growing = (counts < most_shards) & (share > most)
        counts[growing] += 1
    return _evenly_cut(catalog, counts)


def equal_parts(sizes: Sizes, count: int) -> IntArray:
    """(S,) every item in `count` shards, as far as its limits allow."""
    return _evenly_cut(sizes, np.clip(count, sizes.items.limits.min_shards, _most_shards(sizes)))


def _most_shards(sizes: Sizes) -> IntArray:
    """(I,) shards that each item may be cut into."""
    limits = sizes.items.limits
    most: IntArray = np.maximum(np.minimum(limits.max_shards, limits.allowed.sum(axis=1)), limits.min_shards)
    return most


def _evenly_cut(sizes: Sizes, counts: IntArray) -> IntArray:
    """(S,) every item in `counts` (I,) shards whose widths differ by 1 at most."""
    item = np.repeat(np.arange(sizes.num_items), counts)
    number = np.arange(len(item)) - np.repeat(counts.cumsum() - counts, counts)  # of the shard, in its item
    narrow, wider = np.divmod(sizes.full_width, counts)
    widths = narrow[item] + (number >= (counts - wider)[item])
    entries: IntArray = sizes.first[item] + widths
    return entries


def splittable(catalog: Catalog, layout: IntArray) -> IntArray:
    """(n,) a layout's different shards that can be cut further, ascending."""
    shards = np.unique(layout)
    item, limits = catalog.item[shards], catalog.items.limits
    count = np.bincount(catalog.item[layout], minlength=catalog.num_items)
    may: BoolArray = (shards - catalog.first[item] >= 2 * limits.min_width[item]) & (count < limits.max_shards)[item]
    cut: IntArray = shards[may]
    return cut


def one_split_each(catalog: Catalog, layout: IntArray, shards: IntArray) -> IntArray:
    """(n, S + 1) a layout with one of its `shards` (n,) cut in half; odd widths are cut as evenly as it goes."""
    first = catalog.first[catalog.item[shards]]
    half = (shards - first) // 2
    after = np.empty((len(shards), len(layout) + 1), dtype=np.int64)
    after[:, :-1] = layout
    after[np.arange(len(shards)), np.searchsorted(layout, shards)] = first + half
    after[:, -1] = shards - half
    after.sort(axis=1)
    return after
