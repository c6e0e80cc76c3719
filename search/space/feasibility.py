"""Errors for tasks that don't fit, with the numbers a user needs."""

from math import ceil

import numpy as np

from neuroshard.plans.hosts import least_host_bytes
from neuroshard.plumbing.arrays import IntArray
from neuroshard.plumbing.errors import InfeasibleError
from neuroshard.plumbing.schema import DIM_MULTIPLE
from neuroshard.plumbing.units import readable_bytes, readable_bytes_up
from neuroshard.stages.search.space.items import Items
from neuroshard.stages.search.space.sizes import Sizes
from neuroshard.tasks.task import Task

_NAMED_ITEMS = 3
_PARTS = 1000  # of how many times the memory would do


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


def narrowest_shards(sizes: Sizes) -> tuple[IntArray, IntArray, IntArray]:
    """Units and bytes of each item's widest shard, cut as finely as it may be, and the room that it has, (I,) each.

    Room is the memory of the largest device that may hold it.
    """
    items, memory = sizes.items, sizes.items.free_bytes
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


def nothing_fits(sizes: Sizes, factor: float, outcome: str) -> InfeasibleError:
    """The error of a search that has no plan, with what is known of that: `outcome`.

    `factor` is how many times the memory for shards would do, in columns.
    """
    items, memory = sizes.items, sizes.items.free_bytes
    size = sizes.size_bytes[sizes.whole]
    largest = np.argsort(-size, kind="stable")[:_NAMED_ITEMS].tolist()
    named = ", ".join(f"{items.name(index)} {readable_bytes(size[index])}" for index in largest)
    return InfeasibleError(
        f"{outcome} for {readable_bytes(size.sum())} of tables on {described(memory)}; "
        f"{enough(items, factor)} on each would do; the largest tables: {named}"
    )


def enough(items: Items, factor: float) -> str:
    """The `topology.memory_bytes` that leave shards so many times the memory they have: never less, as text."""
    task, shards = items.task, items.free_bytes
    given = task.topology.memory_bytes
    each = np.array(given if isinstance(given, tuple) else [given] * task.topology.num_devices, dtype=np.float64)
    needed = each - shards + np.ceil(shards * factor)
    if len(set(each)) == 1:
        return readable_bytes_up(float(needed.max()))
    return f"{ceil(float((needed / each).max()) * _PARTS) / _PARTS:.10g} times as much"


def keeps_nothing(proven: bool) -> InfeasibleError:
    """The error of a search that has no plan whatever the memory, because there is none if that is `proven`."""
    if proven:
        return InfeasibleError("no plan keeps the constraints, whatever the memory; loosen some of them")
    return InfeasibleError(
        "no plan found that keeps the constraints within the search's budget, though there may be one; loosen some, or "
        "pin shards to where they may go"
    )


def described(memory: IntArray) -> str:
    """Devices with (D,) bytes for shards, for people."""
    smallest, largest = readable_bytes(memory.min()), readable_bytes(memory.max())
    return f"{len(memory)} devices of " + (smallest if smallest == largest else f"{smallest} to {largest}")
