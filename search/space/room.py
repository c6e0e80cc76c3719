"""Devices that are filled shard by shard, and the one rule of what still goes where: compiled, and for Python alike."""

from typing import NamedTuple

import numpy as np

from neuroshard.plumbing.arrays import BoolArray, FloatArray, IntArray
from neuroshard.stages.search.space.compiled import kernel, leaf
from neuroshard.stages.search.space.limits import Limits, may_lie
from neuroshard.stages.search.space.sizes import Sizes


class Room(NamedTuple):
    """What lies on D devices so far, and what is left of them; `put` changes it in place.

    Attributes:
        limits: the items'.
        first, size_bytes, given: bytes of every shard and what it gives out, as `Sizes` has them.
        held: (I, D) units of 4 columns of each item on each device.
        free_bytes: (D,) of memory.
        free_units: (D,) of 4 columns, until a device gives out as many as it may.
    """

    limits: Limits
    first: IntArray
    size_bytes: IntArray
    given: FloatArray
    held: IntArray
    free_bytes: IntArray
    free_units: FloatArray

    @classmethod
    def empty(cls, sizes: Sizes, memory_bytes: IntArray) -> "Room":
        """Devices with memory_bytes (D,) that may give out everything."""
        held = np.zeros(sizes.items.limits.allowed.shape, dtype=np.int64)
        units = np.full(len(memory_bytes), sizes.total_given)
        return cls(sizes.items.limits, sizes.first, sizes.size_bytes, sizes.given, held, memory_bytes.copy(), units)


@leaf
def may_join(room: Room, item: int, device: int, held: int, gives: float, takes: int) -> bool:
    """Whether a shard of an item that gives and takes so much may go to a device that holds so many units of the item.

    What it gives out and its bytes must find room, its item be allowed there, and none of its item's rivals lie there.
    Two shards of an item become one where they meet, so those of an item that needs several devices must not.
    """
    if gives > room.free_units[device] or takes > room.free_bytes[device]:
        return False
    if held > 0 and room.limits.min_shards[item] > 1:
        return False
    return bool(may_lie(room.limits, room.held, item, device, -1))


@leaf
def takes_bytes(room: Room, item: int, width: int, held: int) -> int:
    """Bytes that a shard of an item, `width` units wide, takes of a device that holds so many units of the item."""
    before = room.first[item] + held
    return int(room.size_bytes[before + width] - room.size_bytes[before])


@leaf
def may_put(room: Room, item: int, width: int, device: int) -> bool:
    """Whether a shard of an item, `width` units wide, may go to a device."""
    held = room.held[item, device]
    gives = room.given[room.first[item] + width]
    return may_join(room, item, device, held, gives, takes_bytes(room, item, width, held))


@kernel
def devices_with_room(room: Room, item: int, width: int) -> BoolArray:
    """(D,) whether a shard of an item, `width` units wide, may go to each device."""
    found: BoolArray = np.zeros(len(room.free_bytes), np.bool_)
    for device in range(len(found)):
        found[device] = may_put(room, item, width, device)
    return found


@leaf
def put(room: Room, item: int, width: int, device: int) -> None:
    """Put a shard of an item, `width` units wide, on a device."""
    room.free_bytes[device] -= takes_bytes(room, item, width, room.held[item, device])
    room.free_units[device] -= room.given[room.first[item] + width]
    room.held[item, device] += width
