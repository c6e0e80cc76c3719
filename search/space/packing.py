"""Packing by bytes alone: plans that fit, and errors that name the memory with which one was found.

Items can be cut at every 4 columns, so what is packed are slices of 4 columns, all of an item's of about equal size.
Items go in descending size of a slice, as much of each as fits to the device with the most room left; only when less
than one slice is free everywhere does a packing fail, so without constraints it fails only close to the limit.
"""

from math import ceil

import numpy as np

from neuroshard.plans.hosts import least_host_bytes
from neuroshard.plumbing.arrays import BoolArray, IntArray
from neuroshard.plumbing.errors import InfeasibleError
from neuroshard.plumbing.messages import number_of
from neuroshard.plumbing.schema import DIM_MULTIPLE, MAX_BYTES, readable_bytes, readable_bytes_up, to_bytes
from neuroshard.stages.search.space.base import check_buffers
from neuroshard.stages.search.space.cache_widths import has_bounds
from neuroshard.stages.search.space.exact import pack_exactly
from neuroshard.stages.search.space.homes import has_other_homes
from neuroshard.stages.search.space.items import Items, open_devices
from neuroshard.stages.search.space.sizes import Sizes
from neuroshard.tasks.task import Task

_NAMED_ITEMS = 3
_FRACTIONS = 1000  # of how many times the memory would do
_PRECISION = 1.002  # of the smallest factor that is reported
_MOST_GROUPS = 256  # different sets of devices that the constraints confine items to, whose sums are checked
_MOST_NAMED = 24  # amounts of memory that are checked before one is named: the last is 2.9 times the first
_TRIES = 16  # other orders, when the usual one fails
_MOST_CELLS = 1 << 22  # items x devices of all tries together
_AMPLE = 1 << 61  # more than any task takes, and still far from where 64 bits end


def check_hosts(task: Task) -> None:
    """Raise InfeasibleError if tables in host memory take more of it than there is."""
    used, topology = int(task.memory.host_bytes(task.loads).sum()), task.topology
    if used > topology.all_host_bytes:
        hosts, least = len(topology.hosts), least_host_bytes(task)
        raise InfeasibleError(
            "host-memory-too-small",
            f"the tables in host memory take {readable_bytes(used)}",
            limit=f"the host has {readable_bytes(topology.host_bytes)}"
            if hosts == 1
            else f"{hosts} hosts of {readable_bytes(topology.host_bytes)} have "
            f"{readable_bytes(topology.all_host_bytes)} in all",
            remedy=f"Give each host at least {readable_bytes_up(least)} (topology.host_memory_bytes)",
        )


def narrowest_shards(sizes: Sizes) -> tuple[IntArray, IntArray, IntArray]:
    """Cut each item as finely as it may be: units and bytes of its widest shard, and the room that it has, (I,) each.

    Room is the memory of the largest device that may hold it.
    """
    items, memory = sizes.items, sizes.items.free_bytes
    narrowest = np.where(items.limits.max_shards > 1, -(-sizes.full_width // items.limits.max_shards), sizes.full_width)
    room: IntArray = np.where(items.limits.allowed, memory, 0).max(axis=1)
    return narrowest, sizes.size_bytes[sizes.first + narrowest], room


def check_whole(items: Items, method: str) -> None:
    """Raise InfeasibleError if the constraints require that an item is split, for a method that never splits."""
    if (split := np.flatnonzero(items.limits.min_shards > 1)).size:
        raise InfeasibleError(
            "searcher-never-splits",
            f"the searcher {method!r} never splits tables",
            limit=f"the constraints require at least {items.limits.min_shards[split[0]]} shards of table "
            f"{items.name(int(split[0]))}",
            remedy="Set searcher=neuroshard, or remove the constraint",
        )


def no_room(
    items: Items, index: int, width: int, size_bytes: int, free_bytes: IntArray, method: str
) -> InfeasibleError:
    """Return the error that a method finds no device with room for a shard of an item, `width` units wide.

    `free_bytes` (n,) is the free memory of each device that may hold the shard; it is empty if no device may.
    """
    full = items.items[index].width
    part = "" if width == full else f"a shard of {width * DIM_MULTIPLE} of {full * DIM_MULTIPLE} columns of "
    table = f"table {items.name(index)}"
    if not len(free_bytes):
        return InfeasibleError(
            "searcher-no-device-allowed",
            f"no device is left for {part}{table}",
            where=method,
            limit="every allowed device has another shard of this table, or a table that the constraints keep apart "
            "from this table",
            remedy="Loosen the constraints, or set searcher=neuroshard",
        )
    return InfeasibleError(
        "searcher-no-device-with-room",
        f"{part}{table} takes {readable_bytes(size_bytes)}",
        where=method,
        limit=f"the allowed device with the most free memory has {readable_bytes(free_bytes.max())} left",
        remedy="Give each device more memory (topology.memory_bytes), or set searcher=neuroshard",
    )


def enough(items: Items, factor: float) -> tuple[str, IntArray] | None:
    """Return a `topology.memory_bytes` that leaves shards at least `factor` times the memory that they have now.

    Return it as text, such as "16 GiB" or "1.5 times as much", and the bytes that it leaves for the items on each
    device, (D,). Return None if a device cannot have this much memory.
    """
    task, shards = items.task, np.maximum(items.free_bytes, 1)
    memory = task.topology.memory_bytes
    each = np.array(memory if isinstance(memory, tuple) else [memory] * task.topology.num_devices, dtype=np.int64)
    taken = each - items.free_bytes
    needed = taken + np.ceil(shards * factor)
    if needed.max() > MAX_BYTES * (1 - 1 / _FRACTIONS):
        return None
    if len(set(each.tolist())) == 1:
        text = readable_bytes_up(float(needed.max()))
        return text, to_bytes(text.removesuffix(" bytes"), "memory") - taken
    times = ceil(float((needed / each).max()) * _FRACTIONS) / _FRACTIONS
    return f"{times:.10g} times as much", (each * times).astype(np.int64) - taken


def described(memory: IntArray) -> str:
    """Return the number of devices and their (D,) bytes for shards, as text: "4 devices of 8 GiB"."""
    smallest, largest = readable_bytes(memory.min()), readable_bytes(memory.max())
    return f"{number_of(len(memory), 'device')} of " + (smallest if smallest == largest else f"{smallest} to {largest}")


def memory_in_all(memory: IntArray) -> str:
    """Return the memory (D,) of all devices as a clause: "4 devices of 8 GiB have 32 GiB in all"."""
    if len(memory) == 1:
        return f"the device has {readable_bytes(memory[0])}"
    return f"{described(memory)} have {readable_bytes(memory.sum())} in all"


def check_total(sizes: Sizes) -> None:
    """Raise InfeasibleError if the bytes alone prove that the column-wise tables do not fit.

    The bytes are those of all items, or of one item at its narrowest. The memory that the error names suffices, if any
    amount does.
    """
    items, memory = sizes.items, sizes.items.free_bytes
    check_hosts(items.task)
    check_buffers(items.task)
    total = sum(sizes.size_bytes[sizes.whole].tolist())
    if total > sum(memory.tolist()):
        raise InfeasibleError(
            "tables-exceed-devices",
            f"the tables take {readable_bytes(total)}{_of_bounds(items)}",
            limit=memory_in_all(memory),
            remedy=_advice(sizes, "tables cannot always be divided evenly" if len(memory) > 1 else "")
            + ", or use more devices",
        )
    _, least, room = narrowest_shards(sizes)
    if (tight := np.flatnonzero(least > room)).size:
        raise too_large(sizes, tight)


def too_large(sizes: Sizes, tight: IntArray) -> InfeasibleError:
    """Return the error that the largest of some items (n,) fits on no device, even in the narrowest shards."""
    items = sizes.items
    narrowest, least, room = narrowest_shards(sizes)
    item = int(tight[np.argmax(least[tight])])
    whole = narrowest[item] == sizes.full_width[item] > 1
    columns, name, size = narrowest[item] * DIM_MULTIPLE, items.name(item), readable_bytes(least[item])
    shard = "" if whole else f"the narrowest allowed shard ({columns} columns) of "
    unsplit = " and may not be split" if whole else ""
    return InfeasibleError(
        "table-exceeds-device",
        f"{shard}table {name} takes {size}{_of_bounds(items)}{unsplit}",
        limit=f"the largest device that is allowed for this table has {readable_bytes(room[item])}",
        remedy=_advice(sizes),
    )


def check_confined(sizes: Sizes) -> None:
    """Raise InfeasibleError if the items that some devices alone may hold take more memory than these devices have."""
    items, size = sizes.items, sizes.size_bytes[sizes.whole]
    allowed, memory = items.limits.allowed, items.free_bytes
    confined = np.flatnonzero(~allowed.all(axis=1))
    groups = np.unique(allowed[confined], axis=0)[:_MOST_GROUPS] if len(confined) else allowed[:0]
    for group in groups:
        inside = confined[~(allowed[confined] & ~group).any(axis=1)]
        total, room = sum(size[inside].tolist()), sum(memory[group].tolist())
        if total > room:
            raise shortage(sizes, proven=not has_other_homes(items.task))


def _of_bounds(items: Items) -> str:
    """Return the text that bytes count every cache as wide as the widest cached table; empty if they do not."""
    return " (if every cache counts as wide as the widest cached table)" if has_bounds(items) else ""


def _advice(sizes: Sizes, why: str = "") -> str:
    """Return the remedy for too little memory, with an amount that suffices, and `why` so much, if one was found."""
    named = memory_that_does(sizes)
    if named is None:
        return "Give each device more memory (topology.memory_bytes)"
    return f"Give each device at least {named} (topology.memory_bytes{f'; {why}' if why else ''})"


def packed(sizes: Sizes) -> IntArray:
    """Return a packing of the task's columns, `held` (I, D).

    Raises:
        InfeasibleError: no packing was found. The error states that none exists only if a sum of bytes proves this.
    """
    held = _packed_within(sizes, sizes.items.free_bytes)
    if held is None:
        if not sizes.items.base.others:  # otherwise the sum proves nothing about other sharding types
            check_confined(sizes)
        raise shortage(sizes)
    return held


def _packed_within(sizes: Sizes, memory_bytes: IntArray) -> IntArray | None:
    """Pack items within memory_bytes (D,): by size if that works, else exactly, else in other orders."""
    if _is_short(sizes, memory_bytes):
        return None
    ways = (way(sizes, memory_bytes) for way in (pack, pack_exactly, _pack_in_other_orders))
    return next((held for held in ways if held is not None), None)


def shortage(sizes: Sizes, proven: bool = False) -> InfeasibleError:
    """Return the error that there is no plan, with an amount of memory into which the columns have been packed.

    Args:
        sizes: sizes of all shards.
        proven: whether a sum of bytes proves that no plan exists, for every sharding type that the task allows.
    """
    memory, size = sizes.items.free_bytes, sizes.size_bytes[sizes.whole]
    named = memory_that_does(sizes)
    if named is None:
        return InfeasibleError(
            "constraints-no-plan-found",
            "no plan was found that keeps the constraints",
            limit="memory is probably not the cause: with more memory per device, no plan was found either",
            remedy="Loosen some of the constraints, or choose the devices of some shards with constraints.pinned",
        )
    largest = np.argsort(-size, kind="stable")[:_NAMED_ITEMS].tolist()
    tables = ", ".join(f"{sizes.items.name(index)} ({readable_bytes(size[index])})" for index in largest)
    task = f"{readable_bytes(size.sum())} of tables on {described(memory)}"
    limit = f"the largest table{' is' if len(largest) == 1 else 's are'} {tables}"
    remedy = f"Give each device at least {named} (topology.memory_bytes)"
    if proven:
        return InfeasibleError("plan-impossible", f"no plan exists for {task}", limit=limit, remedy=remedy)
    return InfeasibleError("plan-not-found", f"no plan was found for {task}", limit=limit, remedy=remedy)


def memory_that_does(sizes: Sizes) -> str | None:
    """Name a `topology.memory_bytes` into which the items have been packed, as text; None if no amount was found."""
    memory = np.maximum(sizes.items.free_bytes, 1)
    factor = smallest_factor(sizes, memory)
    if factor is None:
        held = _packed_within(sizes, np.full_like(memory, _AMPLE))
        if held is None:
            return None
        factor = float((sizes.size_bytes[sizes.first[:, None] + held].sum(axis=0) / memory).max())
    for step in range(_MOST_NAMED):  # with a little more memory than suffices, filling by size may fail
        named = enough(sizes.items, max(factor, 1.0) * _PRECISION ** (step * step))
        if named is not None and _packed_within(sizes, named[1]) is not None:
            return named[0]
    return None


def _is_short(sizes: Sizes, memory_bytes: IntArray) -> bool:
    """Return True if the items take more bytes than memory_bytes (D,): shards take no fewer than the whole items."""
    return bool(sum(sizes.size_bytes[sizes.whole].tolist()) > sum(memory_bytes.tolist()))


def pack(sizes: Sizes, memory_bytes: IntArray) -> IntArray | None:
    """Pack items within memory_bytes (D,) and their limits, `held` (I, D), with few cuts; None if that fails."""
    if _is_short(sizes, memory_bytes):
        return None
    slice_bytes = sizes.size_bytes[sizes.first + np.where(sizes.items.limits.max_shards > 1, 1, sizes.full_width)]
    return _pack_in_order(sizes, memory_bytes, np.lexsort((-slice_bytes, ~sizes.items.confined)))


def _pack_in_other_orders(sizes: Sizes, memory_bytes: IntArray) -> IntArray | None:
    """Pack in several orders: fewest devices to go to first, then largest, and around that as drawn by seed."""
    rng = np.random.default_rng(0)
    places, size = sizes.items.limits.allowed.sum(axis=1), sizes.size_bytes[sizes.whole]
    tries = min(_TRIES, 1 + _MOST_CELLS // sizes.items.limits.allowed.size)
    for spread in np.linspace(0, 1, tries):
        drawn = rng.normal(0, spread, size=len(size))
        order = np.lexsort((-np.log(size) - drawn, places * np.exp(drawn), ~sizes.items.confined))
        held = _pack_in_order(sizes, memory_bytes, order)
        if held is not None:
            return held
    return None


def _pack_in_order(sizes: Sizes, memory_bytes: IntArray, order: IntArray) -> IntArray | None:
    held = np.zeros((sizes.num_items, len(memory_bytes)), dtype=np.int64)
    free = memory_bytes.astype(np.int64)
    for item in order.tolist():
        if not _pack_item(sizes, item, free, open_devices(sizes.items.limits, held, item), held[item]):
            return None
    return held


def _pack_item(sizes: Sizes, item: int, free: IntArray, open_to: BoolArray, held: IntArray) -> bool:
    """Put all of an item on devices `open_to` (D,) it, changing `free` and `held`, both (D,); False if it can't be."""
    left, shards = int(sizes.full_width[item]), 0
    limits = sizes.items.limits
    least, most, narrowest = int(limits.min_shards[item]), int(limits.max_shards[item]), int(limits.min_width[item])
    size = sizes.size_bytes[sizes.first[item] : sizes.first[item] + left + 1]
    devices = np.flatnonzero(open_to)
    for device in devices[np.argsort(-free[devices], kind="stable")].tolist():
        fitting = int(np.searchsorted(size, free[device], side="right")) - 1
        width = min(left - narrowest * max(least - shards - 1, 0), fitting)
        if 0 < left - width < narrowest:
            width = left - narrowest
        if width < narrowest or (shards == most - 1 and width < left):
            return False
        held[device], left, shards = width, left - width, shards + 1
        free[device] -= size[width]
        if not left:
            return True
    return False


def smallest_factor(sizes: Sizes, memory_bytes: IntArray) -> float | None:
    """Find how many times memory_bytes (D,) are enough for `pack`, within 0.2%; None if no amount is."""
    _, least, _ = narrowest_shards(sizes)
    room = np.where(sizes.items.limits.allowed, memory_bytes, 0).max(axis=1)
    total = int(sizes.size_bytes[sizes.whole].sum())
    of_one = float((least / np.maximum(room, 1)).max())
    low: float = max(total / max(sum(memory_bytes.tolist()), 1), of_one)  # no less does
    high, most = low, 4 * (low + 1) * len(memory_bytes) * max(1.0, memory_bytes.max() / max(memory_bytes.min(), 1))
    step = _PRECISION - 1
    while pack(sizes, _scaled(memory_bytes, high)) is None:
        if high > most:
            return None
        low, high, step = high, high * (1 + step), 2 * step
    while high > max(low, 1e-9) * _PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if pack(sizes, _scaled(memory_bytes, middle)) is None else (low, middle)
    return high


def _scaled(memory_bytes: IntArray, factor: float) -> IntArray:
    scaled: IntArray = np.ceil(np.minimum(memory_bytes * factor, _AMPLE)).astype(np.int64)
    return scaled
