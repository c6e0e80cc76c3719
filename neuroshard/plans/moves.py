"""The bytes that move if a job changes from one plan to another plan, which may have other tables or devices.

Tables of the two plans are matched by name: their rows, columns, data type and statistics may differ.
"""

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from neuroshard.layouts import COLUMN_WISE_LAYOUT, Layout
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import IntArray
from neuroshard.plumbing.schema import readable_bytes
from neuroshard.words.placement import Shard

Places = tuple[tuple[int, int], ...]

_NOWHERE: tuple[Places, Layout] = (), COLUMN_WISE_LAYOUT  # stands for a table that a plan does not have


@dataclass(frozen=True)
class TableChange:
    """A table that is new, is removed, or changes its devices or its sharding type.

    Attributes:
        table: name of the table.
        before, after: (device, columns) of the table's shards; empty if the plan does not have the table.
        size_bytes: bytes of weights and optimizer state that arrive on devices that did not have them before. The bytes
            of a new table count too, although they are initialised on the devices, not moved.
        layout_before, layout_after: the layout of the table; `COLUMN_WISE_LAYOUT` if the plan does not have the table.
    """

    table: str
    before: Places
    after: Places
    size_bytes: int
    layout_before: Layout = COLUMN_WISE_LAYOUT
    layout_after: Layout = COLUMN_WISE_LAYOUT

    @property
    def is_new(self) -> bool:
        """True if the earlier plan does not have the table."""
        return not self.before

    def __str__(self) -> str:
        if not self.after:
            return f"table {self.table}: gone"
        after = _described(self.after, self.layout_after)
        if self.is_new:
            return f"table {self.table}: new, {readable_bytes(self.size_bytes)} on {after}"
        before = _described(self.before, self.layout_before)
        return f"table {self.table}: {readable_bytes(self.size_bytes)} moved, {before} -> {after}"


def table_changes(before: Plan, after: Plan) -> tuple[TableChange, ...]:
    """Return a `TableChange` for each table that differs between two plans.
    These are tables that are new, are removed, or have other shards, other devices or another family
    of sharding types.

    Changes with more bytes come first.
    """
    old, new = _places(before), _places(after)
    arriving = dict(zip(new, moved_between(before, after).tolist(), strict=True))
    changed = []
    for name in {**new, **old}:
        (was, layout_before), (now, layout_after) = old.get(name, _NOWHERE), new.get(name, _NOWHERE)
        if (was, layout_before) != (now, layout_after):
            changed.append(TableChange(name, was, now, arriving.get(name, 0), layout_before, layout_after))
    return tuple(sorted(changed, key=lambda change: (-change.size_bytes, change.table)))


def moved_bytes(before: Plan, after: Plan) -> int:
    """Return the bytes of weights and optimizer state that move between devices, for tables that both plans have."""
    both = {table.name for table in before.task.tables}
    arriving = zip(after.task.tables, moved_between(before, after).tolist(), strict=True)
    return sum(size for table, size in arriving if table.name in both)


def moved_between(before: Plan, after: Plan) -> IntArray:
    """Return the bytes of weights and optimizer state that devices receive if a job changes from one plan to another.
    The result, (T,), has one number for each table of the plan `after`.

    Devices of the two plans are matched by number. All bytes of a new table arrive. Of a table that grew, only the rows
    and columns that it had before arrive: new rows and columns are initialised in place. Optimizer state is counted as
    the task of `after` counts it.

    The bytes that arrive with a shard are the bytes of these rows and columns minus the bytes that the device keeps:
    the rows that the device has in both plans, in min(columns before, columns after) columns.
    """
    loads, kept = after.device_loads.loads, np.zeros((2, len(after.placements)))
    existing = np.stack([loads.rows, loads.dim])  # rows and columns of each shard of `after` that `before` has anywhere
    shards, left = _shards(before), _columns(before)
    tables = {table.name: table for table in before.task.tables}
    for number, placement in enumerate(after.by_device):
        shard, name = placement.shard, after.task.tables[placement.shard.table].name
        if (table := tables.get(name)) is not None:
            existing[:, number] = min(max(table.rows - shard.row, 0), shard.rows), min(shard.dim, table.dim)
        if (old := shards.get(key := (name, placement.device))) is not None:
            rows = min(shard.row_end, old.row_end) - max(shard.row, old.row)
            kept[:, number] = max(rows, 0), min(shard.dim, left[key])
            left[key] -= min(shard.dim, left[key])  # a device may have several shards of a wide table
    memory = after.task.memory
    arriving, staying = (memory.state_bytes(replace(loads, rows=size[0], dim=size[1])) for size in (existing, kept))
    moved: IntArray = np.zeros(len(after.task.tables), dtype=np.int64)
    np.add.at(moved, [placement.shard.table for placement in after.by_device], arriving - staying)
    return moved


def _columns(plan: Plan) -> Counter[tuple[str, int]]:
    """Return the number of columns of each table on each device, by (name of the table, device)."""
    columns = Counter[tuple[str, int]]()
    for placed in plan.placements:
        columns[plan.task.tables[placed.shard.table].name, placed.device] += placed.shard.dim
    return columns


def _shards(plan: Plan) -> Mapping[tuple[str, int], Shard]:
    """Return a dict from each pair (name of a table, device) to a shard of the table on the device.
    If the device has several column shards of the table, the dict has only the last of these shards. The rows are the
    same in all of these shards.
    """
    tables = plan.task.tables
    return {(tables[placed.shard.table].name, placed.device): placed.shard for placed in plan.placements}


def _places(plan: Plan) -> dict[str, tuple[Places, Layout]]:
    """Return a dict from the name of each table to a pair (places, layout).
    The places are pairs (device, number of columns), one for each shard. The layout is the table's family of sharding
    types: column-wise, row-wise or data-parallel.
    """
    return {
        table.name: (tuple(sorted((placed.device, placed.shard.dim) for placed in placements)), layout)
        for table, placements, layout in zip(plan.task.tables, plan.by_table, plan.layouts, strict=True)
    }


def _described(places: Places, layout: Layout) -> str:
    """Return the devices and columns of shards as text, such as "device 0 (64 columns), device 1 (8 columns)"."""
    text = ", ".join(f"device {device} ({columns} columns)" for device, columns in places)
    return text if layout.free else f"{text}, {str(layout).replace('_', '-')}"


def layout_key(plan: Plan) -> Hashable:
    """Return a key of a plan that does not depend on the order of devices and hosts. Two plans of one task have the
    same key if they differ only in this order.

    The order of devices within a host, and of hosts, does not change the cost. The key contains the number of columns
    of a shard but not their position, because all columns of a table cost the same; it contains the rows of a shard.
    """
    topology = plan.task.topology
    contents: list[list[tuple[int, ...]]] = [[] for _ in range(topology.num_devices)]
    for placed in plan.placements:
        shard = placed.shard
        contents[placed.device].append((shard.table, shard.dim, shard.row, shard.rows))
    devices = [tuple(sorted(shards)) for shards in contents]
    return tuple(sorted(tuple(sorted(devices[device] for device in host)) for host in topology.hosts))
