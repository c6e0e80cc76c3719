"""Limits of items, and whether a plan keeps them: compiled, for the kernels and for Python alike."""

from typing import NamedTuple

import numpy as np

from neuroshard.plumbing.arrays import BoolArray, IntArray
from neuroshard.stages.search.space.compiled import kernel, leaf


class Limits(NamedTuple):
    """The items' limits as arrays; a tuple, so that compiled functions take it.

    Attributes:
        allowed: (I, D) whether a device may hold an item.
        min_shards, max_shards: (I,) devices that an item is spread over.
        min_width: (I,) units of 4 columns on each of them, at least.
        rival_first, rivals: (I + 1,) and (R,); rivals[rival_first[i] : rival_first[i + 1]] may not share a device
            with item i.
    """

    allowed: BoolArray
    min_shards: IntArray
    max_shards: IntArray
    min_width: IntArray
    rival_first: IntArray
    rivals: IntArray

    def of(self, kept: BoolArray) -> "Limits":
        """The limits of the items that are kept (I,), with all of their rivals."""
        place, count = kept.cumsum() - 1, np.diff(self.rival_first)
        return Limits(
            self.allowed[kept],
            self.min_shards[kept],
            self.max_shards[kept],
            self.min_width[kept],
            np.concatenate([[0], count[kept].cumsum()]),
            place[self.rivals[np.repeat(kept, count)]],
        )


@leaf
def may_lie(limits: Limits, held: IntArray, item: int, device: int, leaving: int) -> bool:
    """Whether a device may hold a shard of an item beside what `held` (I, D) puts there.

    An item that is `leaving` the device counts as gone; -1 stands for none.
    """
    if not limits.allowed[item, device]:
        return False
    for r in range(limits.rival_first[item], limits.rival_first[item + 1]):
        if limits.rivals[r] != leaving and held[limits.rivals[r], device] > 0:
            return False
    return True


@kernel
def open_devices(limits: Limits, held: IntArray, item: int) -> BoolArray:
    """(D,) whether each device may hold a shard of an item beside what `held` (I, D) puts there."""
    found: BoolArray = np.zeros(held.shape[1], np.bool_)
    for device in range(len(found)):
        found[device] = may_lie(limits, held, item, device, -1)
    return found


@leaf
def keeps_limits(limits: Limits, held: IntArray) -> bool:
    """Whether all shards of `held` (I, D) lie where they may; items have as many, as wide, as they must and may."""
    num_items, num_devices = held.shape
    for item in range(num_items):
        shards = 0
        for device in range(num_devices):
            if held[item, device] > 0:
                shards += 1
                if held[item, device] < limits.min_width[item] or not may_lie(limits, held, item, device, -1):
                    return False
        if not limits.min_shards[item] <= shards <= limits.max_shards[item]:
            return False
    return True
