"""Bytes that have to be moved, counted for compiled loops."""

import numpy as np

from neuroshard.plumbing.arrays import IntArray
from neuroshard.stages.search.space.compiled import kernel, leaf


@leaf
def arriving_bytes(state_bytes: IntArray, first: int, before: int, after: int) -> int:
    """Bytes of weights and optimizer state that come to a device that held `before` units of an item, to hold `after`.

    Columns are free to be renumbered, so a device keeps as many as it has in both. `first` is the item's first entry
    in `state_bytes`, as `Sizes` has them.
    """
    return int(max(state_bytes[first + after] - state_bytes[first + before], 0))


@kernel
def moved_bytes(state_bytes: IntArray, first: IntArray, before: IntArray, after: IntArray) -> IntArray:
    """(I,) bytes of weights and optimizer state of each item that arrive on any device.

    `before` and `after` are (I, D) units of each item on each device; `first` (I,) and `state_bytes` are as `Sizes`
    has them.
    """
    moved: IntArray = np.zeros(len(first), np.int64)
    for item in range(before.shape[0]):
        for device in range(before.shape[1]):
            moved[item] += arriving_bytes(state_bytes, first[item], before[item, device], after[item, device])
    return moved
