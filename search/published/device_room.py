"""The room for shards on devices during placement: compiled functions that placement and local search share."""

from typing import NamedTuple

import numpy as np

from neuroshard.plumbing.arrays import Float32Array, FloatArray, IntArray
from neuroshard.stages.search.jit import jit_inline, jit_inline_fast
from neuroshard.stages.search.published.shard_table import PlacementRules, ShardTable


class DeviceRoom(NamedTuple):
    """The shards on D devices so far, and the memory and traffic that are left; placing a shard changes the arrays.

    Attributes:
        widths: (I, D) units of each item on each device.
        free_bytes: (D,) memory that is left.
        free_units: (D,) units that each device may still send for each sample, under the cap.
    """

    widths: IntArray
    free_bytes: IntArray
    free_units: FloatArray

    @classmethod
    def empty(cls, shards: ShardTable, memory_bytes: IntArray) -> "DeviceRoom":
        """Return the room of empty devices with memory_bytes (D,), without a cap on sent units (of 4 columns)."""
        widths = np.zeros(shards.rules.allowed.shape, dtype=np.int64)
        return cls(widths, memory_bytes.copy(), np.full(len(memory_bytes), np.inf))


@jit_inline
def may_hold(rules: PlacementRules, widths: IntArray, item: int, device: int, leaving: int) -> bool:
    """Return True if the rules allow a shard of an item on a device, given the shards `widths` (I, D) placed so far.

    The item `leaving` counts as gone from the device; -1 stands for none.
    """
    if not rules.allowed[item, device]:
        return False
    for r in range(rules.rival_first[item], rules.rival_first[item + 1]):
        if rules.rivals[r] != leaving and widths[rules.rivals[r], device] > 0:
            return False
    return True


@jit_inline
def may_join(
    rules: PlacementRules, room: DeviceRoom, item: int, device: int, there: int, sends: float, takes: int
) -> bool:
    """Return True if a device has room for a shard (`takes` bytes, `sends` units of 4 columns) and the rules allow it.

    The device has `there` units of the item. Two shards of an item on one device become one shard, so shards of an item
    that needs several devices must be on different devices.
    """
    if sends > room.free_units[device] or takes > room.free_bytes[device]:
        return False
    if there > 0 and rules.min_shards[item] > 1:
        return False
    return bool(may_hold(rules, room.widths, item, device, -1))


@jit_inline
def more_bytes(shards: ShardTable, item: int, width: int, there: int) -> int:
    """Return the bytes that `width` units (4 columns) of an item add to a device with `there` units of this item."""
    before = shards.first[item] + there
    return int(shards.size_bytes[before + width] - shards.size_bytes[before])


@jit_inline_fast
def score_with(base: Float32Array, plus: Float32Array, minus: Float32Array, weight: Float32Array) -> float:
    """Return a device's score after vector `plus` joins and vector `minus` leaves: relu(base + plus - minus) @ weight.

    `base` (H,) includes the bias; only the first entries, as many as `weight` has, count.
    """
    total = np.float32(0)
    for h in range(len(weight)):
        total += max(base[h] + plus[h] - minus[h], np.float32(0)) * weight[h]
    return float(total)
