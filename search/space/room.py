"""Compiled functions that check if a shard may be placed on a device, and that place a shard. The checks are about the
placement rules and the free memory and traffic (the room) of the device. Packing, heuristics and random placement use
these functions.
"""

import numpy as np

from neuroshard.plumbing.arrays import BoolArray, IntArray
from neuroshard.stages.search.jit import jit, jit_inline
from neuroshard.stages.search.published.device_room import DeviceRoom, may_hold, may_join, more_bytes
from neuroshard.stages.search.published.shard_table import PlacementRules, ShardTable


@jit
def open_devices(rules: PlacementRules, widths: IntArray, item: int) -> BoolArray:
    """Return a mask of D devices, (D,): True if the placement rules allow a shard of item number `item` on the device.
    Free memory is not checked. An item is a table, a pinned shard, or several tables kept together. `widths` (I, D) has
    the width of each of I items on each device so far, in units of 4 columns; 0 if the device has no shard of the item.
    """
    may: BoolArray = np.zeros(widths.shape[1], np.bool_)
    for device in range(len(may)):
        may[device] = may_hold(rules, widths, item, device, -1)
    return may


@jit_inline
def keeps_rules(rules: PlacementRules, widths: IntArray) -> bool:
    """Return True if a plan keeps the placement rules of all items (tables, pinned shards, or tables kept together).
    The plan is given as `widths` (I, D): the width of each of I items on each of D devices, in units of 4 columns.

    For each item, the rules give the devices that are allowed, the allowed numbers of shards, the smallest width of a
    shard, and the other items that may not be on the same device.
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
    """Return True if a shard of item number `item` may be placed on a device: the placement rules allow the shard, and
    the device has enough free memory and traffic. The shard is `width` units of 4 columns wide. `room` has the free
    memory and traffic of all devices.
    """
    there = room.widths[item, device]
    sends = shards.sent_units[shards.first[item] + width]
    return may_join(shards.rules, room, item, device, there, sends, more_bytes(shards, item, width, there))


@jit
def devices_with_room(shards: ShardTable, room: DeviceRoom, item: int, width: int) -> BoolArray:
    """Return a mask of D devices, (D,): True if a shard of item number `item` may be placed on the device. The
    placement rules must allow the shard, and the device must have enough free memory and traffic. The shard is `width`
    units of 4 columns wide.
    """
    has_room: BoolArray = np.zeros(len(room.free_bytes), np.bool_)
    for device in range(len(has_room)):
        has_room[device] = may_put(shards, room, item, width, device)
    return has_room


@jit_inline
def put(shards: ShardTable, room: DeviceRoom, item: int, width: int, device: int) -> None:
    """Place a shard of item number `item` on a device: reduce the free memory and traffic of the device in `room`, and
    add the shard to the placed widths in `room`. The arrays of `room` change in place. The shard is `width` units of 4
    columns wide.
    """
    room.free_bytes[device] -= more_bytes(shards, item, width, room.widths[item, device])
    room.free_units[device] -= shards.sent_units[shards.first[item] + width]
    room.widths[item, device] += width
