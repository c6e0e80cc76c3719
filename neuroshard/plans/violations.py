"""What a plan breaks of its task's memory and constraints."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from neuroshard.matching import own_places
from neuroshard.plans.shard import Placement
from neuroshard.tasks.constraints import Constraints, PinnedShard, TableLimits
from neuroshard.tasks.task import Task
from neuroshard.units import readable_bytes

_Held = Mapping[str, Mapping[int, int]]  # columns by table and device


def violations(task: Task, placements: Sequence[Placement], device_bytes: Sequence[int]) -> Iterator[str]:
    """A line for everything that placements of all the task's tables break, with `device_bytes` (D,) on the devices."""
    for device, (used, free) in enumerate(zip(device_bytes, task.shard_memory, strict=True)):
        if used > free:
            yield f"device {device} needs {readable_bytes(used)}, it has {readable_bytes(free)}"
    held = _held(task, placements)
    for table in task.tables:
        limits = task.constraints.limits(table, task.topology.num_devices)
        yield from _broken_limits(table.name, limits, held[table.name])
    yield from _broken_groups(task.constraints, held)


def _held(task: Task, placements: Sequence[Placement]) -> _Held:
    held = {table.name: dict[int, int]() for table in task.tables}
    for placement in placements:
        held[task.tables[placement.shard.table].name][placement.device] = placement.shard.dim
    return held


def _broken_limits(name: str, limits: TableLimits, held: Mapping[int, int]) -> Iterator[str]:
    """Of one table; `held`: columns by device."""
    if wrong := set(held).difference(limits.devices):
        yield f"table {name!r} must not lie on device {min(wrong)}"
    if not limits.min_shards <= len(held) <= limits.max_shards:
        yield f"table {name!r} is on {len(held)} devices, not on {limits.min_shards} to {limits.max_shards}"
    if min(held.values()) < limits.min_dim:
        yield f"table {name!r} has a shard of {min(held.values())} columns, fewer than {limits.min_dim}"


def _broken_groups(constraints: Constraints, held: _Held) -> Iterator[str]:
    for name in dict.fromkeys(shard.table for shard in constraints.pinned):
        if not _pins_met([shard for shard in constraints.pinned if shard.table == name], held[name]):
            yield f"the pinned shards of table {name!r} are not where they belong"
    for group in constraints.together:
        if len({tuple(held[name]) for name in group}) > 1:
            yield f"tables {', '.join(group)} are not together"
    for group in constraints.apart:
        devices = [device for name in dict.fromkeys(group) for device in held[name]]
        if crowded := [device for device in devices if devices.count(device) > 1]:
            both = [name for name in dict.fromkeys(group) if crowded[0] in held[name]]
            yield f"tables {', '.join(both)} are both on device {crowded[0]}"


def _pins_met(pinned: Sequence[PinnedShard], held: Mapping[int, int]) -> bool:
    """Whether every pinned shard has a device of its own that holds just as many columns; `held`: columns by device."""
    fits = [[device in shard.devices and dim == shard.dim for device, dim in held.items()] for shard in pinned]
    return own_places(np.array(fits)) is not None
