"""Bytes that have to be moved from one plan to another: the one count of them."""

from dataclasses import replace

import numpy as np

from neuroshard.arrays import IntArray
from neuroshard.plans.plan import Plan
from neuroshard.stages.search.space.compiled import kernel, leaf
from neuroshard.stages.search.space.items import Items
from neuroshard.stages.search.space.sizes import Sizes
from neuroshard.tasks.task import Task


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
    `after` counts.
    """
    widest = max(before.task, after.task, key=lambda task: task.topology.num_devices)
    memory = replace(after.task.memory, batches_in_flight=0)  # buffers don't move
    task = Task(after.task.tables, widest.topology, widest.batch_size, memory)  # without constraints: items are tables
    sizes = Sizes.of(Items.of(task))
    held = [sizes.items.held(replace(plan, task=task)) for plan in (before, after)]
    moved: IntArray = moved_bytes(sizes.state_bytes, sizes.first, *held)
    return moved
