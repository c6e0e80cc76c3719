"""Packs items into the memory of devices, without regard to costs. An item is a table, a pinned shard, or several
tables that are kept together. A packing obeys the constraints of every item, such as the allowed devices. If the items
do not fit, the module finds how much memory is enough.

Items can be split at every 4 columns, so slices of 4 columns are packed; the slices of an item are of about equal size.
Items are packed in descending size of a slice. As much of an item as fits goes to the device with the most free memory.
A packing fails only if less than one slice is free everywhere: without constraints, only close to the limit.
"""

from math import ceil

import numpy as np

from neuroshard.plumbing.arrays import BoolArray, IntArray
from neuroshard.plumbing.schema import MAX_BYTES, readable_bytes_up, to_bytes
from neuroshard.stages.search.space.exact import pack_exactly
from neuroshard.stages.search.space.room import open_devices
from neuroshard.stages.search.space.search_space import SearchSpace, narrowest_shards

_FRACTIONS = 1000  # steps per unit of a factor of memory
_PRECISION = 1.002  # of the smallest factor: it is at most 0.2% too large
_MOST_NAMED = 24  # amounts of memory that are checked before one is named: the last is 2.9 times the first
_TRIES = 16  # other orders of the items, if the first order fails
_MOST_CELLS = 1 << 22  # items x devices of all tries together
_AMPLE = 1 << 61  # more than any task takes, and still far from where 64 bits end


def enough(space: SearchSpace, factor: float) -> tuple[str, IntArray] | None:
    """Return a value for `topology.memory_bytes` with which the free memory for items on each device is at least
    `factor` times the present free memory, `space.free_bytes`.

    The result is a text, such as "16 GiB" or "1.5 times as much", and the bytes that are then left for the items on
    each device, (D,); or None if a device cannot have this much memory.
    """
    task, shards = space.task, np.maximum(space.free_bytes, 1)
    memory = task.topology.memory_bytes
    each = np.array(memory if isinstance(memory, tuple) else [memory] * task.topology.num_devices, dtype=np.int64)
    taken = each - space.free_bytes
    needed = taken + np.ceil(shards * factor)
    if needed.max() > MAX_BYTES * (1 - 1 / _FRACTIONS):
        return None
    if len(set(each.tolist())) == 1:
        text = readable_bytes_up(float(needed.max()))
        return text, to_bytes(text.removesuffix(" bytes"), "memory") - taken
    times = ceil(float((needed / each).max()) * _FRACTIONS) / _FRACTIONS
    return f"{times:.10g} times as much", (each * times).astype(np.int64) - taken


def memory_that_does(space: SearchSpace) -> str | None:
    """Return, as text, a value for `topology.memory_bytes` that gives the devices enough memory: with this value, a
    packing of the items was found. Return None if no such value was found.
    """
    memory = np.maximum(space.free_bytes, 1)
    factor = smallest_factor(space, memory)
    if factor is None:
        widths = packing_within(space, np.full_like(memory, _AMPLE))
        if widths is None:
            return None
        factor = float((space.shards.device_bytes(widths) / memory).max())
    for step in range(_MOST_NAMED):  # with a little more memory than suffices, filling by size may fail
        named = enough(space, max(factor, 1.0) * _PRECISION ** (step * step))
        if named is not None and packing_within(space, named[1]) is not None:
            return named[0]
    return None


def packing_within(space: SearchSpace, memory_bytes: IntArray) -> IntArray | None:
    """Return a packing of all items (tables, pinned shards, or tables kept together) into memory_bytes (D,). Return
    None if no packing is found. The packing is an array (I, D): the width of each of I items on each of D devices, in
    units of 4 columns.

    Three methods are tried, until one succeeds: packing by size, exact packing, and packing in other orders.
    """
    if _is_short(space, memory_bytes):
        return None
    ways = (way(space, memory_bytes) for way in (pack, pack_exactly, _pack_in_other_orders))
    return next((widths for widths in ways if widths is not None), None)


def _is_short(space: SearchSpace, memory_bytes: IntArray) -> bool:
    """Return True if the whole items take more bytes than the memory of all devices together, memory_bytes (D,). In
    this case no packing exists, because shards of an item never take fewer bytes than the whole item.
    """
    return bool(sum(space.shards.size_bytes[space.shards.whole].tolist()) > sum(memory_bytes.tolist()))


def pack(space: SearchSpace, memory_bytes: IntArray) -> IntArray | None:
    """Return a packing of all items into the memory of D devices, memory_bytes (D,), or None if no packing is found.
    The packing is an array (I, D): the width of each of I items on each device, in units of 4 columns.

    An item is a table, a pinned shard, or several tables that are kept together. The packing obeys the constraints of
    every item, such as the allowed devices, and cuts few items into shards.
    """
    if _is_short(space, memory_bytes):
        return None
    shards, rules = space.shards, space.shards.rules
    slice_bytes = shards.size_bytes[shards.first + np.where(rules.max_shards > 1, 1, shards.full_width)]
    return _pack_in_order(space, memory_bytes, np.lexsort((-slice_bytes, ~rules.confined)))


def _pack_in_other_orders(space: SearchSpace, memory_bytes: IntArray) -> IntArray | None:
    """Pack the items in one order after another until a packing succeeds, and return this packing. Return None if no
    order succeeds.

    The first order begins with the items that constraints keep away from a device or from another item. Among these
    items, and among all others, items with fewer allowed devices come first, and then larger items.

    The other orders are random, with a fixed seed, and deviate more and more from the first.
    """
    rng = np.random.default_rng(0)
    places, size = space.shards.rules.allowed.sum(axis=1), space.shards.size_bytes[space.shards.whole]
    tries = min(_TRIES, 1 + _MOST_CELLS // space.shards.rules.allowed.size)
    for spread in np.linspace(0, 1, tries):
        drawn = rng.normal(0, spread, size=len(size))
        order = np.lexsort((-np.log(size) - drawn, places * np.exp(drawn), ~space.shards.rules.confined))
        widths = _pack_in_order(space, memory_bytes, order)
        if widths is not None:
            return widths
    return None


def _pack_in_order(space: SearchSpace, memory_bytes: IntArray, order: IntArray) -> IntArray | None:
    widths = np.zeros((space.shards.num_items, len(memory_bytes)), dtype=np.int64)
    free = memory_bytes.astype(np.int64)
    for item in order.tolist():
        if not _pack_item(space, item, free, open_devices(space.shards.rules, widths, item), widths[item]):
            return None
    return widths


def _pack_item(space: SearchSpace, item: int, free: IntArray, open_to: BoolArray, widths: IntArray) -> bool:
    """Put an item (a table, a pinned shard, or several tables kept together) on devices for which `open_to` (D,) is
    True. Change two arrays in place: `free`, the free bytes of each device (D,), and `widths`, the width of the item on
    each device (D,). Return False if the item does not fit.
    """
    left, shards = int(space.shards.full_width[item]), 0
    rules = space.shards.rules
    least, most, narrowest = int(rules.min_shards[item]), int(rules.max_shards[item]), int(rules.min_width[item])
    size = space.shards.size_bytes[space.shards.first[item] : space.shards.first[item] + left + 1]
    devices = np.flatnonzero(open_to)
    for device in devices[np.argsort(-free[devices], kind="stable")].tolist():
        fitting = int(np.searchsorted(size, free[device], side="right")) - 1
        width = min(left - narrowest * max(least - shards - 1, 0), fitting)
        if 0 < left - width < narrowest:
            width = left - narrowest
        if width < narrowest or (shards == most - 1 and width < left):
            return False
        widths[device], left, shards = width, left - width, shards + 1
        free[device] -= size[width]
        if not left:
            return True
    return False


def smallest_factor(space: SearchSpace, memory_bytes: IntArray) -> float | None:
    """Return the smallest factor, within 0.2%, by which memory_bytes (D,) must be multiplied so that `pack` succeeds;
    None if no factor is found.
    """
    _, least, _ = narrowest_shards(space)
    room = np.where(space.shards.rules.allowed, memory_bytes, 0).max(axis=1)
    total = int(space.shards.size_bytes[space.shards.whole].sum())
    of_one = float((least / np.maximum(room, 1)).max())
    low: float = max(total / max(sum(memory_bytes.tolist()), 1), of_one)  # a lower factor cannot suffice
    high, most = low, 4 * (low + 1) * len(memory_bytes) * max(1.0, memory_bytes.max() / max(memory_bytes.min(), 1))
    step = _PRECISION - 1
    while pack(space, _scaled(memory_bytes, high)) is None:
        if high > most:
            return None
        low, high, step = high, high * (1 + step), 2 * step
    while high > max(low, 1e-9) * _PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if pack(space, _scaled(memory_bytes, middle)) is None else (low, middle)
    return high


def _scaled(memory_bytes: IntArray, factor: float) -> IntArray:
    scaled: IntArray = np.ceil(np.minimum(memory_bytes * factor, _AMPLE)).astype(np.int64)
    return scaled
