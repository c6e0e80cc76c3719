"""Errors for tasks that don't fit, with the numbers a user needs."""

import numpy as np

from neuroshard.arrays import IntArray
from neuroshard.errors import InfeasibleError
from neuroshard.plans.hosts import least_host_bytes
from neuroshard.schema import DIM_MULTIPLE
from neuroshard.stages.search.space.items import Items
from neuroshard.stages.search.space.sizes import Sizes
from neuroshard.tasks.task import Task
from neuroshard.units import readable_bytes, readable_bytes_up

_NAMED_ITEMS = 3


def device_memory(task: Task) -> IntArray:
    """(D,) bytes for shards on each device."""
    return np.array(task.shard_memory, dtype=np.int64)


def check_hosts(task: Task) -> None:
    """Raise InfeasibleError if tables in host memory take more of it than there is."""
    used, topology = int(task.memory.host_bytes(task.loads).sum()), task.topology
    if used > topology.all_host_bytes:
        hosts, least = len(topology.hosts), least_host_bytes(task)
        raise InfeasibleError(
            f"the tables in host memory take {readable_bytes(used)}, {hosts} host(s) of "
            f"{readable_bytes(topology.host_bytes)} hold {readable_bytes(topology.all_host_bytes)}; "
            f"{readable_bytes_up(least)} on each would do: topology.host_memory_bytes"
        )


def check_total(sizes: Sizes) -> None:
    """Raise InfeasibleError if no plan at all can fit: one item at its narrowest, or the total, is too much."""
    items, memory = sizes.items, device_memory(sizes.items.task)
    check_hosts(items.task)
    if memory.min() < 0:
        raise InfeasibleError(
            f"the buffers of every device's own samples leave {readable_bytes(-int(memory.min()))} too little memory; "
            "give each device more, or count fewer batches in flight"
        )
    narrowest, least, room = narrowest_shards(sizes)
    if (tight := np.flatnonzero(least > room)).size:
        item = int(tight[np.argmax(least[tight])])
        whole = narrowest[item] == sizes.full_width[item] > 1
        how = "unsplit" if whole else f"even at {narrowest[item] * DIM_MULTIPLE} columns"
        raise InfeasibleError(
            f"table {items.name(item)} takes {readable_bytes(least[item])} {how}, "
            f"a device that may hold it has {readable_bytes(room[item])}; give each device more memory"
        )
    total, devices = sum(sizes.size_bytes[sizes.whole].tolist()), len(memory)
    if total > memory.sum():
        raise InfeasibleError(
            f"the tables take {readable_bytes(total)}, {_described(memory)} hold {readable_bytes(memory.sum())}; "
            f"give each at least {readable_bytes(total / devices)}, or use more devices"
        )


def narrowest_shards(sizes: Sizes) -> tuple[IntArray, IntArray, IntArray]:
    """Units and bytes of each item's widest shard, cut as finely as it may be, and the room that it has, (I,) each.

    Room is the memory of the largest device that may hold it.
    """
    items, memory = sizes.items, device_memory(sizes.items.task)
    narrowest = np.where(items.limits.max_shards > 1, -(-sizes.full_width // items.limits.max_shards), sizes.full_width)
    room: IntArray = np.where(items.limits.allowed, memory, 0).max(axis=1)
    return narrowest, sizes.size_bytes[sizes.first + narrowest], room


def check_whole(items: Items, method: str) -> None:
    """Raise InfeasibleError if the constraints want an item split, for a method that never splits."""
    if (split := np.flatnonzero(items.limits.min_shards > 1)).size:
        raise InfeasibleError(
            f"{method} never splits a table, but {items.name(int(split[0]))} needs "
            f"{items.limits.min_shards[split[0]]} shards; use searcher=neuroshard"
        )


def no_room(items: Items, index: int, width: int, size_bytes: int, most_free: int, method: str) -> InfeasibleError:
    """The error of a method that finds no device with room for a shard of an item, `width` units wide."""
    full = items.items[index].width
    what = "" if width == full else f"a shard of {width * DIM_MULTIPLE} of {full * DIM_MULTIPLE} columns of "
    return InfeasibleError(
        f"{method}: {what}table {items.name(index)} needs {readable_bytes(size_bytes)}, the emptiest device that may "
        f"hold it has {readable_bytes(most_free)} left; give the devices more memory, or search with "
        "searcher=neuroshard"
    )


def nothing_fits(sizes: Sizes, factor: float, proven: bool) -> InfeasibleError:
    """The error of a search that splits columns and has no plan, because there is none if that is `proven`.

    `factor` is how many times the memory would do.
    """
    items, memory = sizes.items, device_memory(sizes.items.task)
    size = sizes.size_bytes[sizes.whole]
    enough = f"{readable_bytes(memory[0] * factor)}" if len(set(memory)) == 1 else f"{factor:.3g} times as much"
    largest = np.argsort(-size, kind="stable")[:_NAMED_ITEMS].tolist()
    named = ", ".join(f"{items.name(index)} {readable_bytes(size[index])}" for index in largest)
    outcome = "no plan exists" if proven else "none found within the search's budget, though there may be a plan,"
    return InfeasibleError(
        f"{outcome} for {readable_bytes(size.sum())} of tables on {_described(memory)}; "
        f"{enough} on each would do; the largest tables: {named}"
    )


def keeps_nothing(proven: bool) -> InfeasibleError:
    """The error of a search that has no plan whatever the memory, because there is none if that is `proven`."""
    if proven:
        return InfeasibleError("no plan keeps the constraints, whatever the memory; loosen some of them")
    return InfeasibleError(
        "no plan found that keeps the constraints within the search's budget, though there may be one; loosen some, or "
        "pin shards to where they may go"
    )


def _described(memory: IntArray) -> str:
    smallest, largest = readable_bytes(memory.min()), readable_bytes(memory.max())
    return f"{len(memory)} devices of " + (smallest if smallest == largest else f"{smallest} to {largest}")
