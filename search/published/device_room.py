"""The free memory and traffic of devices, and compiled functions that greedy placement and local search share."""

from typing import NamedTuple

import numpy as np

from neuroshard.plumbing.arrays import Float32Array, FloatArray, IntArray
from neuroshard.stages.search.jit import jit_inline, jit_inline_fast
from neuroshard.stages.search.published.shard_table import PlacementRules, ShardTable


class DeviceRoom(NamedTuple):
    """The shards placed on D devices so far, with the memory and the traffic that each device has left for more shards.
    The code that places a further shard changes the arrays in place.

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
        """Return the `DeviceRoom` of D empty devices: all `memory_bytes` (D,) are free, and traffic has no limit."""
        widths = np.zeros(shards.rules.allowed.shape, dtype=np.int64)
        return cls(widths, memory_bytes.copy(), np.full(len(memory_bytes), np.inf))


@jit_inline
def may_hold(rules: PlacementRules, widths: IntArray, item: int, device: int, leaving: int) -> bool:
    """Return True if the rules allow a shard of `item` on `device` with the other items there. `widths` (I, D) has
    the units (4 columns) of each item on each device. The item `leaving` (-1: none) leaves the device and is ignored.
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
    """Return True if a device has room for a further shard of an item, and the rules allow the shard there. The shard
    needs `takes` bytes, and makes the device send `sends` more units (4 columns) for each sample. The device already
    has `there` units of the item. If `there` is above 0, both shards would become one shard; so the result is then
    False for an item that needs shards on several devices.
    """
    if sends > room.free_units[device] or takes > room.free_bytes[device]:
        return False
    if there > 0 and rules.min_shards[item] > 1:
        return False
    return bool(may_hold(rules, room.widths, item, device, -1))


@jit_inline
def more_bytes(shards: ShardTable, item: int, width: int, there: int) -> int:
    """Return the bytes that `width` units (4 columns) of an item add to a device with `there` units of that item."""
    before = shards.first[item] + there
    return int(shards.size_bytes[before + width] - shards.size_bytes[before])


@jit_inline_fast
def score_with(base: Float32Array, plus: Float32Array, minus: Float32Array, weight: Float32Array) -> float:
    """Return the score of a device after a change of its shards: relu(base + plus - minus) @ weight.
    `base` (H,) is the bias plus the sum of the shards' vectors before the change. The change adds the vector `plus` and
    removes the vector `minus`. If `weight` is shorter than H, only the first len(weight) entries count.
    """
    total = np.float32(0)
    for h in range(len(weight)):
        total += max(base[h] + plus[h] - minus[h], np.float32(0)) * weight[h]
    return float(total)
