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
from neuroshard.stages.search.space.cache_widths import has_bounds
from neuroshard.stages.search.space.exact import pack_exactly
from neuroshard.stages.search.space.fixed_load import check_buffers
from neuroshard.stages.search.space.homes import has_other_homes
from neuroshard.stages.search.space.room import open_devices
from neuroshard.stages.search.space.search_space import SearchSpace
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


def narrowest_shards(space: SearchSpace) -> tuple[IntArray, IntArray, IntArray]:
    """Split each item as finely as the rules allow; return units and bytes of the widest shard, and room, (I,) each.

    Room is the memory of the largest device that may hold the item.
    """
    shards, rules, width = space.shards, space.shards.rules, space.shards.full_width
    narrowest = np.where(rules.max_shards > 1, -(-width // rules.max_shards), width)
    room: IntArray = np.where(rules.allowed, space.free_bytes, 0).max(axis=1)
    return narrowest, shards.size_bytes[shards.first + narrowest], room


def check_whole(space: SearchSpace, method: str) -> None:
    """Raise InfeasibleError if the constraints require that an item is split, for a method that never splits."""
    if (split := np.flatnonzero(space.shards.rules.min_shards > 1)).size:
        raise InfeasibleError(
            "searcher-never-splits",
            f"the searcher {method!r} never splits tables",
            limit=f"the constraints require at least {space.shards.rules.min_shards[split[0]]} shards of table "
            f"{space.name(int(split[0]))}",
            remedy="Set searcher=neuroshard, or remove the constraint",
        )


def no_room(
    space: SearchSpace, index: int, width: int, size_bytes: int, free_bytes: IntArray, method: str
) -> InfeasibleError:
    """Return the error that a method finds no device with room for a shard of an item, `width` units wide.

    `free_bytes` (n,) is the free memory of each device that may hold the shard; it is empty if no device may.
    """
    full = int(space.shards.full_width[index])
    part = "" if width == full else f"a shard of {width * DIM_MULTIPLE} of {full * DIM_MULTIPLE} columns of "
    table = f"table {space.name(index)}"
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


def enough(space: SearchSpace, factor: float) -> tuple[str, IntArray] | None:
    """Return a `topology.memory_bytes` that leaves shards at least `factor` times the memory that they have now.

    Return it as text, such as "16 GiB" or "1.5 times as much", and the bytes that it leaves for the items on each
    device, (D,). Return None if a device cannot have this much memory.
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


def described(memory: IntArray) -> str:
    """Return the number of devices and their (D,) bytes for shards, as text: "4 devices of 8 GiB"."""
    smallest, largest = readable_bytes(memory.min()), readable_bytes(memory.max())
    return f"{number_of(len(memory), 'device')} of " + (smallest if smallest == largest else f"{smallest} to {largest}")


def memory_in_all(memory: IntArray) -> str:
    """Return the memory (D,) of all devices as a clause: "4 devices of 8 GiB have 32 GiB in all"."""
    if len(memory) == 1:
        return f"the device has {readable_bytes(memory[0])}"
    return f"{described(memory)} have {readable_bytes(memory.sum())} in all"


def check_total(space: SearchSpace) -> None:
    """Raise InfeasibleError if the bytes alone prove that the column-wise tables do not fit.

    The bytes are those of all items, or of one item at its narrowest. The memory that the error names suffices, if any
    amount does.
    """
    memory = space.free_bytes
    check_hosts(space.task)
    check_buffers(space.task)
    total = sum(space.shards.size_bytes[space.shards.whole].tolist())
    if total > sum(memory.tolist()):
        raise InfeasibleError(
            "tables-exceed-devices",
            f"the tables take {readable_bytes(total)}{_of_bounds(space)}",
            limit=memory_in_all(memory),
            remedy=_advice(space, "tables cannot always be divided evenly" if len(memory) > 1 else "")
            + ", or use more devices",
        )
    _, least, room = narrowest_shards(space)
    if (tight := np.flatnonzero(least > room)).size:
        raise too_large(space, tight)


def too_large(space: SearchSpace, tight: IntArray) -> InfeasibleError:
    """Return the error that the largest of some items (n,) fits on no device, even in the narrowest shards."""
    narrowest, least, room = narrowest_shards(space)
    item = int(tight[np.argmax(least[tight])])
    whole = narrowest[item] == space.shards.full_width[item] > 1
    columns, name, size = narrowest[item] * DIM_MULTIPLE, space.name(item), readable_bytes(least[item])
    shard = "" if whole else f"the narrowest allowed shard ({columns} columns) of "
    unsplit = " and may not be split" if whole else ""
    return InfeasibleError(
        "table-exceeds-device",
        f"{shard}table {name} takes {size}{_of_bounds(space)}{unsplit}",
        limit=f"the largest device that is allowed for this table has {readable_bytes(room[item])}",
        remedy=_advice(space),
    )


def check_confined(space: SearchSpace) -> None:
    """Raise InfeasibleError if the items that some devices alone may hold take more memory than these devices have."""
    size = space.shards.size_bytes[space.shards.whole]
    allowed, memory = space.shards.rules.allowed, space.free_bytes
    confined = np.flatnonzero(~allowed.all(axis=1))
    groups = np.unique(allowed[confined], axis=0)[:_MOST_GROUPS] if len(confined) else allowed[:0]
    for group in groups:
        inside = confined[~(allowed[confined] & ~group).any(axis=1)]
        total, room = sum(size[inside].tolist()), sum(memory[group].tolist())
        if total > room:
            raise shortage(space, proven=not has_other_homes(space.task))


def _of_bounds(space: SearchSpace) -> str:
    """Return the text that bytes count every cache as wide as the widest cached table; empty if they do not."""
    bounds = has_bounds(space.task, space.items, space.shards.rules)
    return " (if every cache counts as wide as the widest cached table)" if bounds else ""


def _advice(space: SearchSpace, why: str = "") -> str:
    """Return the remedy for too little memory, with an amount that suffices, and `why` so much, if one was found."""
    named = memory_that_does(space)
    if named is None:
        return "Give each device more memory (topology.memory_bytes)"
    return f"Give each device at least {named} (topology.memory_bytes{f'; {why}' if why else ''})"


def packed(space: SearchSpace) -> IntArray:
    """Return a packing of the task's columns, `widths` (I, D).

    Raises:
        InfeasibleError: no packing was found. The error states that none exists only if a sum of bytes proves this.
    """
    widths = _packed_within(space, space.free_bytes)
    if widths is None:
        if not space.fixed.others:  # otherwise the sum proves nothing about other sharding types
            check_confined(space)
        raise shortage(space)
    return widths


def _packed_within(space: SearchSpace, memory_bytes: IntArray) -> IntArray | None:
    """Pack items within memory_bytes (D,): by size if that works, else exactly, else in other orders."""
    if _is_short(space, memory_bytes):
        return None
    ways = (way(space, memory_bytes) for way in (pack, pack_exactly, _pack_in_other_orders))
    return next((widths for widths in ways if widths is not None), None)


def shortage(space: SearchSpace, proven: bool = False) -> InfeasibleError:
    """Return the error that there is no plan, with an amount of memory into which the columns have been packed.

    Args:
        space: space of all shards.
        proven: whether a sum of bytes proves that no plan exists, for every sharding type that the task allows.
    """
    memory, size = space.free_bytes, space.shards.size_bytes[space.shards.whole]
    named = memory_that_does(space)
    if named is None:
        return InfeasibleError(
            "constraints-no-plan-found",
            "no plan was found that keeps the constraints",
            limit="memory is probably not the cause: with more memory per device, no plan was found either",
            remedy="Loosen some of the constraints, or choose the devices of some shards with constraints.pinned",
        )
    largest = np.argsort(-size, kind="stable")[:_NAMED_ITEMS].tolist()
    tables = ", ".join(f"{space.name(index)} ({readable_bytes(size[index])})" for index in largest)
    task = f"{readable_bytes(size.sum())} of tables on {described(memory)}"
    limit = f"the largest table{' is' if len(largest) == 1 else 's are'} {tables}"
    remedy = f"Give each device at least {named} (topology.memory_bytes)"
    if proven:
        return InfeasibleError("plan-impossible", f"no plan exists for {task}", limit=limit, remedy=remedy)
    return InfeasibleError("plan-not-found", f"no plan was found for {task}", limit=limit, remedy=remedy)


def memory_that_does(space: SearchSpace) -> str | None:
    """Name a `topology.memory_bytes` into which the items have been packed, as text; None if no amount was found."""
    memory = np.maximum(space.free_bytes, 1)
    factor = smallest_factor(space, memory)
    if factor is None:
        widths = _packed_within(space, np.full_like(memory, _AMPLE))
        if widths is None:
            return None
        factor = float((space.shards.device_bytes(widths) / memory).max())
    for step in range(_MOST_NAMED):  # with a little more memory than suffices, filling by size may fail
        named = enough(space, max(factor, 1.0) * _PRECISION ** (step * step))
        if named is not None and _packed_within(space, named[1]) is not None:
            return named[0]
    return None


def _is_short(space: SearchSpace, memory_bytes: IntArray) -> bool:
    """Return True if the items take more bytes than memory_bytes (D,): shards take no fewer than the whole items."""
    return bool(sum(space.shards.size_bytes[space.shards.whole].tolist()) > sum(memory_bytes.tolist()))


def pack(space: SearchSpace, memory_bytes: IntArray) -> IntArray | None:
    """Pack items within memory_bytes (D,) and their rules, `widths` (I, D), with few cuts; None if that fails."""
    if _is_short(space, memory_bytes):
        return None
    shards, rules = space.shards, space.shards.rules
    slice_bytes = shards.size_bytes[shards.first + np.where(rules.max_shards > 1, 1, shards.full_width)]
    return _pack_in_order(space, memory_bytes, np.lexsort((-slice_bytes, ~rules.confined)))


def _pack_in_other_orders(space: SearchSpace, memory_bytes: IntArray) -> IntArray | None:
    """Pack in several orders: fewest devices to go to first, then largest, and around that as drawn by seed."""
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
    """Put an item on devices `open_to` (D,), and change `free` and `widths`, (D,); return False if it does not fit."""
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
    """Find how many times memory_bytes (D,) are enough for `pack`, within 0.2%; None if no amount is."""
    _, least, _ = narrowest_shards(space)
    room = np.where(space.shards.rules.allowed, memory_bytes, 0).max(axis=1)
    total = int(space.shards.size_bytes[space.shards.whole].sum())
    of_one = float((least / np.maximum(room, 1)).max())
    low: float = max(total / max(sum(memory_bytes.tolist()), 1), of_one)  # no less does
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
