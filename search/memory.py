"""Errors for tasks that don't fit, with the numbers a user needs."""

import numpy as np

from neuroshard.arrays import IntArray
from neuroshard.errors import InfeasibleError
from neuroshard.tables import Table
from neuroshard.tables.table import DIM_MULTIPLE
from neuroshard.task import Task

_GIB = 1 << 30
_NAMED_TABLES = 3


def gib(size_bytes: float) -> str:
    """The size for people."""
    return f"{size_bytes / _GIB:.3g} GiB" if size_bytes >= _GIB / 100 else f"{size_bytes / (1 << 20):.3g} MiB"


def device_memory(task: Task) -> IntArray:
    """(D,) bytes for embedding weights on each device."""
    return np.full(task.topology.num_devices, task.topology.memory_bytes, dtype=np.int64)


def check_total(task: Task) -> None:
    """Raise InfeasibleError if no plan at all can fit: one table at its narrowest, or the total, is too much."""
    cap, devices = task.topology.memory_bytes, task.topology.num_devices
    narrowest = max((table.with_dim(DIM_MULTIPLE) for table in task.tables), key=lambda table: table.size_bytes)
    if narrowest.size_bytes > cap:
        raise InfeasibleError(
            f"table {narrowest.name!r} takes {gib(narrowest.size_bytes)} even at {DIM_MULTIPLE} columns, "
            f"a device holds {gib(cap)}; give each device more memory"
        )
    if task.size_bytes > cap * devices:
        raise InfeasibleError(
            f"the tables take {gib(task.size_bytes)}, {devices} devices of {gib(cap)} hold {gib(cap * devices)}; "
            f"give each at least {gib(task.size_bytes / devices)}, or use more devices"
        )


def no_room(task: Task, table: Table, free_bytes: int, method: str) -> InfeasibleError:
    """The error of a method that places whole tables and finds no device with room for `table`."""
    return InfeasibleError(
        f"{method}: table {table.name!r} needs {gib(table.size_bytes)}, the emptiest device has {gib(free_bytes)} of "
        f"{gib(task.topology.memory_bytes)} left; give the devices more memory, or split columns: searcher=neuroshard"
    )


def nothing_fits(task: Task, smallest_cap: int) -> InfeasibleError:
    """The error of a search that splits columns and finds no plan; a plan exists from `smallest_cap` bytes on."""
    largest = sorted(task.tables, key=lambda table: -table.size_bytes)[:_NAMED_TABLES]
    named = ", ".join(f"{table.name!r} {gib(table.size_bytes)}" for table in largest)
    return InfeasibleError(
        f"no plan found for {gib(task.size_bytes)} of tables on {task.topology.num_devices} devices of "
        f"{gib(task.topology.memory_bytes)}; {gib(smallest_cap)} on each would do; the largest tables: {named}"
    )
