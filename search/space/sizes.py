"""Bytes of every possible shard of a task, what it gives out, and devices that are filled with them."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from neuroshard.cost.loads import Loads, LoadSets
from neuroshard.layouts.widths import as_shards
from neuroshard.plumbing.arrays import BoolArray, FloatArray, IntArray
from neuroshard.plumbing.schema import DIM_MULTIPLE
from neuroshard.stages.search.space.cache_widths import charged_widths
from neuroshard.stages.search.space.compiled import kernel, leaf
from neuroshard.stages.search.space.items import Items, Limits, may_lie

_FRACTIONS = 1024  # of a unit


@dataclass(frozen=True, eq=False)
class Sizes:
    """Shards of I items, their widths counted in units of 4 columns; N = sum over items of (width + 1) entries.

    The shard of item i that is w units wide is entry `first[i] + w`; entry `first[i]` is the empty shard. Of tables
    kept together only the empty and the full shard mean anything.

    Attributes:
        items: what is placed.
        first: (I,) first entry of each item.
        full_width: (I,) units of the whole items.
        size_bytes: (N,) bytes on a device; of cached tables a bound, where a wider one may come to it (`cache_widths`).
        state_bytes: (N,) bytes that move with the shard: without buffers.
        given: (N,) units of 4 columns that a sample gets of the shard: its width, for each of the table's outputs; in
            1/1024, so that sums are exact in any order.
    """

    items: Items
    first: IntArray
    full_width: IntArray
    size_bytes: IntArray
    state_bytes: IntArray
    given: FloatArray

    @classmethod
    def of(cls, items: Items) -> "Sizes":
        """Compute the bytes and units of every shard of every item."""
        full_width = np.array([item.width for item in items.items], dtype=np.int64)
        first = np.concatenate([[0], (full_width + 1).cumsum()[:-1]])
        entry, shards = entry_loads(items, first)
        size_bytes, state_bytes = np.zeros((2, int(full_width.sum()) + len(items)), dtype=np.int64)
        widths = charged_widths(items, shards, np.searchsorted(first, entry, side="right") - 1)
        np.add.at(size_bytes, entry, items.task.memory.device_bytes(shards, widths))
        np.add.at(state_bytes, entry, items.task.memory.state_bytes(shards))
        given = np.zeros(len(size_bytes))
        np.add.at(given, entry, _rounded(shards.outputs / shards.samples * shards.dim / DIM_MULTIPLE))
        return cls(items, first, full_width, size_bytes, state_bytes, given)

    @property
    def num_items(self) -> int:
        """I, the number of items."""
        return len(self.first)

    @cached_property
    def item(self) -> IntArray:
        """The item of each entry, (N,)."""
        return np.repeat(np.arange(self.num_items), self.full_width + 1)

    @property
    def whole(self) -> IntArray:
        """Entries of the whole items, (I,)."""
        return self.first + self.full_width

    @property
    def total_given(self) -> float:
        """Units of 4 columns that a sample gets of all items."""
        return float(self.given[self.whole].sum())

    def given_by(self, contents: IntArray) -> FloatArray:
        """Count units of 4 columns that a sample gets of devices (...,) that hold so many of each item, (..., I)."""
        given: FloatArray = self.given[self.first + contents].sum(axis=-1)
        return given

    def moved_bytes(self, before: IntArray, after: IntArray) -> IntArray:
        """Count bytes of weights and optimizer state that arrive on devices, (I,), by what each held and holds, (I, D).

        Columns are free to be renumbered, so a device keeps as many as it has in both.
        """
        first = self.first[:, None]
        moved: IntArray = np.maximum(self.state_bytes[first + after] - self.state_bytes[first + before], 0).sum(axis=1)
        return moved


def _rounded(units: FloatArray) -> FloatArray:
    """Round units (n,) to the nearest fractions, none of them to nothing."""
    return np.maximum(np.round(units * _FRACTIONS), 1) / _FRACTIONS


def entry_loads(items: Items, first: IntArray) -> tuple[IntArray, Loads]:
    """Compute n loads over all entries: the entry that each belongs to, (n,), and the loads."""
    widths = [np.arange(1 if len(item.tables) == 1 else item.width, item.width + 1) for item in items.items]
    item, width = np.repeat(np.arange(len(items)), [len(some) for some in widths]), np.concatenate(widths)
    shards = _shard_loads(items, item, width)
    return (first[item] + width)[shards.owners], shards.loads


def device_loads(items: Items, contents: IntArray) -> LoadSets:
    """Compute the loads of n devices that hold so many units of 4 columns of each item, (n, I)."""
    device, item = contents.nonzero()
    shards = _shard_loads(items, item, contents[device, item])
    return LoadSets(shards.loads, np.bincount(device[shards.owners], minlength=len(contents)))


def _shard_loads(items: Items, item: IntArray, units: IntArray) -> LoadSets:
    """Compute the loads of n shards, so many units of 4 columns of each `item` (n,): a set for each.

    What is wider than a shard may be is several loads. Of an item that is several tables kept together, a shard holds
    all columns.
    """
    table = np.array([table for item in items.items for table, _ in item.tables])
    whole = LoadSets(items.task.loads.take(table), np.array([len(item.tables) for item in items.items]))
    sets = whole.take(item)
    dims = np.where(sets.counts[sets.owners] > 1, sets.loads.dim, units[sets.owners] * DIM_MULTIPLE)
    return as_shards(LoadSets(sets.loads.columns(dims), sets.counts))


class Room(NamedTuple):
    """The shards on D devices so far, and the room that is left; `put` changes both in place.

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
        """Make room on empty devices with memory_bytes (D,) that may give out everything."""
        held = np.zeros(sizes.items.limits.allowed.shape, dtype=np.int64)
        units = np.full(len(memory_bytes), sizes.total_given)
        return cls(sizes.items.limits, sizes.first, sizes.size_bytes, sizes.given, held, memory_bytes.copy(), units)


@leaf
def may_join(room: Room, item: int, device: int, held: int, gives: float, takes: int) -> bool:
    """Return True if a shard of an item, with its output units and bytes, may go to a device with `held` units of it.

    The output and the bytes of the shard must fit, the item must be allowed there, and no rival of the item may be
    there. Two shards of an item on one device become one shard, so shards of an item that needs several devices must be
    on different devices.
    """
    if gives > room.free_units[device] or takes > room.free_bytes[device]:
        return False
    if held > 0 and room.limits.min_shards[item] > 1:
        return False
    return bool(may_lie(room.limits, room.held, item, device, -1))


@leaf
def takes_bytes(room: Room, item: int, width: int, held: int) -> int:
    """Count the bytes that a shard of an item, `width` units wide, takes of a device that holds so many units of it."""
    before = room.first[item] + held
    return int(room.size_bytes[before + width] - room.size_bytes[before])


@leaf
def may_put(room: Room, item: int, width: int, device: int) -> bool:
    """Return True if a shard of an item, `width` units wide, may go to a device."""
    held = room.held[item, device]
    gives = room.given[room.first[item] + width]
    return may_join(room, item, device, held, gives, takes_bytes(room, item, width, held))


@kernel
def devices_with_room(room: Room, item: int, width: int) -> BoolArray:
    """Return which devices a shard of an item, `width` units wide, may go to, (D,)."""
    has_room: BoolArray = np.zeros(len(room.free_bytes), np.bool_)
    for device in range(len(has_room)):
        has_room[device] = may_put(room, item, width, device)
    return has_room


@leaf
def put(room: Room, item: int, width: int, device: int) -> None:
    """Put a shard of an item, `width` units wide, on a device."""
    room.free_bytes[device] -= takes_bytes(room, item, width, room.held[item, device])
    room.free_units[device] -= room.given[room.first[item] + width]
    room.held[item, device] += width
