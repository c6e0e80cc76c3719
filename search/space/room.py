"""Compiled checks that the rules and the room on devices allow a shard; packing, heuristics and random placement use
these checks.
"""

import numpy as np

from neuroshard.plumbing.arrays import BoolArray, IntArray
from neuroshard.stages.search.jit import jit, jit_inline
from neuroshard.stages.search.published.device_room import DeviceRoom, may_hold, may_join, more_bytes
from neuroshard.stages.search.published.shard_table import PlacementRules, ShardTable


@jit
def open_devices(rules: PlacementRules, widths: IntArray, item: int) -> BoolArray:
    """Return a mask of devices, (D,): True if the rules allow a shard of an item on the device. An item is a table, a
    pinned shard, or several tables kept together. The shards `widths` (I, D) are on the devices already.
    """
    may: BoolArray = np.zeros(widths.shape[1], np.bool_)
    for device in range(len(may)):
        may[device] = may_hold(rules, widths, item, device, -1)
    return may


@jit_inline
def keeps_rules(rules: PlacementRules, widths: IntArray) -> bool:
    """Return True if `widths` (I, D) keep the rules of all items (tables, pinned shards, or tables kept together): the
    allowed devices, the allowed numbers of shards, the smallest width, and the items that must be apart.
    """
    num_items, num_devices = widths.shape
    for item in range(num_items):
        shards = 0
        for device in range(num_devices):
            if widths[item, device] > 0:
                shards += 1
                if widths[item, device] < rules.min_width[item] or not may_hold(rules, widths, item, device, -1):
                    return False
        if not rules.min_shards[item] <= shards <= rules.max_shards[item]:
            return False
    return True


@jit_inline
def may_put(shards: ShardTable, room: DeviceRoom, item: int, width: int, device: int) -> bool:
    """Return True if the rules and the free room allow a shard of an item on a device. The shard is `width` units of 4
    columns wide.
    """
    there = room.widths[item, device]
    sends = shards.sent_units[shards.first[item] + width]
    return may_join(shards.rules, room, item, device, there, sends, more_bytes(shards, item, width, there))


@jit
def devices_with_room(shards: ShardTable, room: DeviceRoom, item: int, width: int) -> BoolArray:
    """Return a mask of devices, (D,): True if the rules and the free room allow a shard of an item on the device. The
    shard is `width` units of 4 columns wide.
    """
    has_room: BoolArray = np.zeros(len(room.free_bytes), np.bool_)
    for device in range(len(has_room)):
        has_room[device] = may_put(shards, room, item, width, device)
    return has_room


@jit_inline
def put(shards: ShardTable, room: DeviceRoom, item: int, width: int, device: int) -> None:
    """Put a shard of an item on a device, by changing the free room in `room` in place. The shard is `width` units of 4
    columns wide.
    """
    room.free_bytes[device] -= more_bytes(shards, item, width, room.widths[item, device])
    room.free_units[device] -= shards.sent_units[shards.first[item] + width]
    room.widths[item, device] += width
