"""What a plan breaks of its task's memory and constraints."""

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from neuroshard.layouts import Layout
from neuroshard.plumbing.arrays import own_places
from neuroshard.plumbing.schema import readable_bytes
from neuroshard.tasks.constraints import Constraints, PinnedShard, TableLimits
from neuroshard.tasks.task import Task
from neuroshard.words.placement import Home, Placement

_Held = Mapping[str, Mapping[int, int]]  # columns by table and device


def violations(
    task: Task,
    placed: Sequence[Sequence[Placement]],
    layouts: Sequence[Layout],
    device_bytes: Sequence[int],
    host_bytes: Sequence[int],
) -> Iterator[str]:
    """Yield a line for everything that placements of the task's tables (T,), in such layouts (T,), break.

    They take `device_bytes` (D,) of the devices, and `host_bytes` (H,) of the hosts.
    """
    for device, (used, free) in enumerate(zip(device_bytes, task.shard_memory, strict=True)):
        if used > free:
            yield f"device {device} needs {readable_bytes(used)}, it has {readable_bytes(free)}"
    for host, used in enumerate(host_bytes):
        if used > (free := task.topology.host_bytes):
            yield f"host {host} needs {readable_bytes(used)} of its memory for tables, it has {readable_bytes(free)}"
    pairs = zip(task.tables, placed, strict=True)
    held = {table.name: {one.device: one.shard.dim for one in its} for table, its in pairs}
    for table, limits, layout, its in zip(task.tables, task.limits, layouts, placed, strict=True):
        yield from _broken_limits(table.name, layout, limits, held[table.name])
        yield from _broken_home(table.name, its[0].home, limits)
        widths = held[table.name].values()
        if not table.pooled and (why := layout.unserved(widths, task.topology.num_devices)) is not None:
            yield f"table {table.name!r} is a sequence table {why}"
    others = {table.name for table, layout in zip(task.tables, layouts, strict=True) if not layout.free}
    yield from _broken_groups(task.constraints, held, others)


def _broken_limits(name: str, layout: Layout, limits: TableLimits, held: Mapping[int, int]) -> Iterator[str]:
    """Name what a table breaks of its limits; `held`: columns by device."""
    if layout.form not in limits.forms:
        yield f"table {name!r} must not lie in {layout}, only in {' or '.join(sorted(limits.forms))}"
    if wrong := set(held).difference(limits.devices):
        yield f"table {name!r} must not lie on device {min(wrong)}"
    if not limits.may_count(layout, len(held)):
        least, most = limits.counts_of(layout)
        yield f"table {name!r} is on {len(held)} devices{layout.counted}, not on {least} to {most}"
    if min(held.values()) < limits.min_dim:
        yield f"table {name!r} has a shard of {min(held.values())} columns, fewer than {limits.min_dim}"


def _broken_home(name: str, home: Home, limits: TableLimits) -> Iterator[str]:
    """Name what a table's home breaks of its limits: the tier, or the rows cached."""
    if home.tier not in limits.tiers:
        yield f"table {name!r} must not lie in tier {home.tier.value}, only in {' or '.join(sorted(limits.tiers))}"
    elif not limits.may_lie_in(home):
        yield f"table {name!r} has a cache for {home.cached} of its rows, not for {limits.cached}"


def _broken_groups(constraints: Constraints, held: _Held, others: Collection[str]) -> Iterator[str]:
    """Name broken pins and groups; `others` are the tables whose shards aren't free: nothing of them is pinned."""
    for name, pinned in constraints.pins.items():
        if name in others or not _pins_met(pinned, held[name]):
            yield f"the pinned shards of table {name!r} are not where they belong"
    for group in constraints.together:
        if len({frozenset(held[name]) for name in group}) > 1:
            yield f"tables {', '.join(group)} are not together"
    for group in constraints.apart:
        devices = [device for name in dict.fromkeys(group) for device in held[name]]
        if crowded := [device for device in devices if devices.count(device) > 1]:
            both = [name for name in dict.fromkeys(group) if crowded[0] in held[name]]
            yield f"tables {', '.join(both)} are both on device {crowded[0]}"


def _pins_met(pinned: Sequence[PinnedShard], held: Mapping[int, int]) -> bool:
    """Tell whether every pinned shard has a device of its own with just as many columns; `held`: columns by device."""
    fits = [[device in shard.devices and dim == shard.dim for device, dim in held.items()] for shard in pinned]
    return own_places(np.array(fits)) is not None
