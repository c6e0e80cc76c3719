"""Bytes that have to be moved from one plan to another: the one count of them."""

from dataclasses import replace

import numpy as np

from neuroshard.arrays import IntArray
from neuroshard.plans.plan import Plan
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


def moved_between(before: Plan, after: Plan) -> IntArray:
    """(T,) bytes of weights and optimizer state of each table that arrive on any device, to get from plan to plan.

    Both are of the same tables, and may be for different numbers of devices; optimizer state is what the task of
    `after` counts. A device keeps of its rows those that it has in both plans, in as many columns as it has in both.
    """
    loads, kept = after.device_loads.loads, np.zeros((2, len(after.placements)))
    held = {(placement.shard.table, placement.device): placement.shard for placement in before.placements}
    for number, placement in enumerate(after.by_device):
        shard, old = placement.shard, held.get((placement.shard.table, placement.device))
        if old is not None:
            rows = min(shard.row_end, old.row_end) - max(shard.row, old.row)
            kept[:, number] = max(rows, 0), min(shard.dim, old.dim)
    memory = after.task.memory
    arriving = memory.state_bytes(loads) - memory.state_bytes(replace(loads, rows=kept[0], dim=kept[1]))
    moved: IntArray = np.zeros(len(after.task.tables), dtype=np.int64)
    np.add.at(moved, [placement.shard.table for placement in after.by_device], arriving)
    return moved
