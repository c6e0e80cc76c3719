"""Which items each device holds, kept up to date as plans change: compiled. The matrix of units is large and sparse."""

from typing import NamedTuple

import numpy as np

from neuroshard.plumbing.arrays import IntArray
from neuroshard.stages.search.space.compiled import kernel


class Lists(NamedTuple):
    """Where items lie.

    Attributes:
        shards: (I,) devices that hold each item.
        start, items: (D + 1,) and (n,); items[start[d] : start[d + 1]] are what device d holds, ascending.
    """

    shards: IntArray
    start: IntArray
    items: IntArray


@kernel
def listed(held: IntArray) -> Lists:
    """List what lies where, from units of each item on each device (I, D)."""
    num_items, num_devices = held.shape
    shards = np.zeros(num_items, np.int64)
    start = np.zeros(num_devices + 1, np.int64)
    for i in range(num_items):
        for d in range(num_devices):
            if held[i, d] > 0:
                shards[i] += 1
                start[d + 1] += 1
    start = start.cumsum()
    items = np.empty(start[-1], np.int64)
    filled = start[:-1].copy()
    for i in range(num_items):
        if shards[i]:
            for d in range(num_devices):
                if held[i, d] > 0:
                    items[filled[d]] = i
                    filled[d] += 1
    return Lists(shards, start, items)


@kernel
def on_device(lists: Lists, device: int) -> IntArray:
    """The items that a device holds, ascending."""
    return lists.items[lists.start[device] : lists.start[device + 1]]


@kernel
def copied(lists: Lists) -> Lists:
    """Copy what `relisted` writes to."""
    return Lists(lists.shards.copy(), lists.start.copy(), lists.items)


@kernel
def relisted(lists: Lists, held: IntArray, item: int, device: int) -> Lists:
    """List anew after `held[item, device]` has changed; numbers are changed in place."""
    shards, start, items = lists
    place = start[device] + np.searchsorted(on_device(lists, device), item)
    listed_there = place < start[device + 1] and items[place] == item
    if listed_there == (held[item, device] > 0):
        return lists
    more = -1 if listed_there else 1
    shards[item] += more
    start[device + 1 :] += more
    after = np.empty(len(items) + more, np.int64)
    after[:place] = items[:place]
    if listed_there:
        after[place:] = items[place + 1 :]
    else:
        after[place] = item
        after[place + 1 :] = items[place:]
    return Lists(shards, start, after)
