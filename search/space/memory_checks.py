"""Checks that the tables of a task fit in memory. If the tables do not fit, an error is raised. If possible, the error
names an amount of memory for which a packing of the tables was found.
"""

import numpy as np

from neuroshard.plans.hosts import least_host_bytes
from neuroshard.plumbing.arrays import IntArray
from neuroshard.plumbing.errors import InfeasibleError
from neuroshard.plumbing.messages import number_of
from neuroshard.plumbing.schema import DIM_MULTIPLE, readable_bytes, readable_bytes_up
from neuroshard.stages.search.space.cache_widths import has_bounds
from neuroshard.stages.search.space.fixed_load import check_buffers
from neuroshard.stages.search.space.packing import memory_that_does, packing_within
from neuroshard.stages.search.space.search_space import SearchSpace, narrowest_shards
from neuroshard.tasks.task import Task
from neuroshard.words.placement import Tier

_NAMED_ITEMS = 3
_MOST_GROUPS = 256  # different sets of devices that the constraints confine items to, whose sums are checked


def check_hosts(task: Task) -> None:
    """Raise InfeasibleError if the tables in host memory take more memory than all hosts together have."""
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


def check_whole(space: SearchSpace, method: str) -> None:
    """Raise InfeasibleError if the constraints require that some table is split; the searcher `method` never splits
    tables.
    """
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
    """Return the error to raise if the searcher `method` finds no device with room for a shard of the item `index`. The
    shard is `width` units of 4 columns wide.

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


def described(memory: IntArray) -> str:
    """Return text such as "4 devices of 8 GiB" from the bytes of memory of each device, (D,)."""
    smallest, largest = readable_bytes(memory.min()), readable_bytes(memory.max())
    return f"{number_of(len(memory), 'device')} of " + (smallest if smallest == largest else f"{smallest} to {largest}")


def memory_in_all(memory: IntArray) -> str:
    """Return text such as "4 devices of 8 GiB have 32 GiB in all" from the bytes of memory of each device, (D,)."""
    if len(memory) == 1:
        return f"the device has {readable_bytes(memory[0])}"
    return f"{described(memory)} have {readable_bytes(memory.sum())} in all"


def check_total(space: SearchSpace) -> None:
    """Raise InfeasibleError if sums of bytes prove that the column-wise tables do not fit in memory. The check searches
    for no packing, so tables that pass this check may still not fit.

    The proof is that all items together, or one item in its narrowest shards, take too many bytes. The bytes of cached
    tables may be upper bounds (`charged_widths`). The error names an amount of memory that suffices, if there is one.
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
    """Return the error to raise if some items fit on no device that is allowed for them, even if they are split as
    finely as the rules allow. An item is a table, a pinned shard, or several tables kept together. `tight` (n,) has the
    indices of the items that do not fit. The error names one of these items: the item whose narrowest shard takes the
    most bytes.
    """
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
    """Raise InfeasibleError if constraints confine some items to a set of devices that has too little memory for these
    items. An item is a table, a pinned shard, or several tables kept together. For example, the error is raised if
    constraints allow only devices 0 and 1 for 3 tables, and these tables take more bytes than both devices together
    have. At most 256 sets of devices are checked.
    """
    size = space.shards.size_bytes[space.shards.whole]
    allowed, memory = space.shards.rules.allowed, space.free_bytes
    confined = np.flatnonzero(~allowed.all(axis=1))
    groups = np.unique(allowed[confined], axis=0)[:_MOST_GROUPS] if len(confined) else allowed[:0]
    for group in groups:
        inside = confined[~(allowed[confined] & ~group).any(axis=1)]
        total, room = sum(size[inside].tolist()), sum(memory[group].tolist())
        if total > room:
            raise shortage(space, proven=not has_tier_choice(space.task))


def _of_bounds(space: SearchSpace) -> str:
    """Return the remark that a number of bytes in an error message is an upper bound, as text in parentheses. The
    bytes are an upper bound if every cache is counted as wide as the widest cached table, and if this adds bytes to
    some table. Otherwise return an empty text.
    """
    bounds = has_bounds(space.task, space.items, space.shards.rules)
    return " (if every cache counts as wide as the widest cached table)" if bounds else ""


def _advice(space: SearchSpace, why: str = "") -> str:
    """Return the last part of an error about too little memory: the advice to give each device more memory. If a
    sufficient amount of memory was found, the advice names the amount, followed by the text `why`, which is the reason
    for the amount.
    """
    named = memory_that_does(space)
    if named is None:
        return "Give each device more memory (topology.memory_bytes)"
    return f"Give each device at least {named} (topology.memory_bytes{f'; {why}' if why else ''})"


def packed(space: SearchSpace) -> IntArray:
    """Return a packing of all column-wise tables of the task into the free memory of the devices. The packing is an
    array (I, D): the width of each of I items (tables, pinned shards, or tables kept together) on each of D devices, in
    units of 4 columns.

    Raises:
        InfeasibleError: no packing was found. The error states that none exists only if a sum of bytes proves this.
    """
    widths = packing_within(space, space.free_bytes)
    if widths is None:
        if not space.fixed.others:  # otherwise the sum proves nothing about other sharding types
            check_confined(space)
        raise shortage(space)
    return widths


def shortage(space: SearchSpace, proven: bool = False) -> InfeasibleError:
    """Return the error to raise if a search found no plan. The error states that no plan exists only if `proven` is
    True. If an amount of memory was found with which the tables can be packed, the error names this amount.

    Args:
        space: space of all shards.
        proven: True if a sum of bytes proves that no plan exists, for every sharding type that the task allows.
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


def has_tier_choice(task: Task) -> bool:
    """Return True if a search may choose the tier or the cache size of at least one table of the task."""
    if not task.topology.host_bytes:
        return False
    return any(
        len(its.tiers) > 1 or (Tier.UVM_CACHING in its.tiers and its.cache_load_factor is None) for its in task.limits
    )
