"""The shards that move from one plan to another plan, which may have other tables or devices."""

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from neuroshard.layouts import COLUMNS, Layout
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import IntArray
from neuroshard.plumbing.schema import readable_bytes
from neuroshard.tables import Table
from neuroshard.words.placement import Shard

Places = tuple[tuple[int, int], ...]

_NOWHERE: tuple[Places, Layout] = (), COLUMNS


@dataclass(frozen=True)
class TableChange:
    """A table that is new, is gone, or changes its devices or its sharding type.

    Attributes:
        table: name of the table.
        before, after: (device, columns) of the table's shards; empty if there is no such table.
        size_bytes: bytes of weights and optimizer state that come to devices that do not hold them yet; the bytes of a
            new table are made there, not moved.
        layout_before, layout_after: the layout of the table; `COLUMNS` if there is no such table.
    """

    table: str
    before: Places
    after: Places
    size_bytes: int
    layout_before: Layout = COLUMNS
    layout_after: Layout = COLUMNS

    @property
    def is_new(self) -> bool:
        """Whether there was no such table before."""
        return not self.before

    def __str__(self) -> str:
        if not self.after:
            return f"table {self.table}: gone"
        after = _told(self.after, self.layout_after)
        if self.is_new:
            return f"table {self.table}: new, {readable_bytes(self.size_bytes)} on {after}"
        before = _told(self.before, self.layout_before)
        return f"table {self.table}: {readable_bytes(self.size_bytes)} moved, {before} -> {after}"


def table_changes(before: Plan, after: Plan) -> tuple[TableChange, ...]:
    """List every table that is new, is gone, or changes its devices or sharding type; the most bytes first."""
    old, new = _lying(before), _lying(after)
    arriving = dict(zip(new, moved_between(before, after).tolist(), strict=True))
    changed = []
    for known in {**new, **old}:
        (was, layout_before), (now, layout_after) = old.get(known, _NOWHERE), new.get(known, _NOWHERE)
        if (was, layout_before) != (now, layout_after):
            changed.append(TableChange(known[0], was, now, arriving.get(known, 0), layout_before, layout_after))
    return tuple(sorted(changed, key=lambda change: (-change.size_bytes, change.table)))


def moved_bytes(before: Plan, after: Plan) -> int:
    """Count the bytes of weights and optimizer state of tables of both plans that arrive on any device."""
    known = set(map(known_as, before.task.tables))
    arriving = zip(after.task.tables, moved_between(before, after).tolist(), strict=True)
    return sum(size for table, size in arriving if known_as(table) in known)


def moved_between(before: Plan, after: Plan) -> IntArray:
    """Count (T,) bytes of weights and optimizer state of each table of `after` that arrive on any device.

    Tables are known by name, rows, columns and data type, and devices by their numbers; either may be others. Of a
    table that is new all bytes arrive; optimizer state is what the task of `after` counts. A device keeps of its rows
    those that it has in both plans, in as many columns as it has in both.
    """
    loads, kept = after.device_loads.loads, np.zeros((2, len(after.placements)))
    held, left = _held(before), _columns_held(before)
    for number, placement in enumerate(after.by_device):
        shard, key = placement.shard, (known_as(after.task.tables[placement.shard.table]), placement.device)
        if (old := held.get(key)) is not None:
            rows = min(shard.row_end, old.row_end) - max(shard.row, old.row)
            kept[:, number] = max(rows, 0), min(shard.dim, left[key])
            left[key] -= min(shard.dim, left[key])  # of a wide table the device may have further shards
    memory = after.task.memory
    arriving = memory.state_bytes(loads) - memory.state_bytes(replace(loads, rows=kept[0], dim=kept[1]))
    moved: IntArray = np.zeros(len(after.task.tables), dtype=np.int64)
    np.add.at(moved, [placement.shard.table for placement in after.by_device], arriving)
    return moved


_Known = tuple[str, int, int, int]


def known_as(table: Table) -> _Known:
    """Return what a table has in two plans, if it is the same: its name, rows, columns and bytes per element."""
    return table.name, table.rows, table.dim, table.bytes_per_element


def _columns_held(plan: Plan) -> Counter[tuple[_Known, int]]:
    """Count the columns of each table on each device."""
    columns = Counter[tuple[_Known, int]]()
    for placed in plan.placements:
        columns[known_as(plan.task.tables[placed.shard.table]), placed.device] += placed.shard.dim
    return columns


def _held(plan: Plan) -> Mapping[tuple[_Known, int], Shard]:
    """Index shards by table and device; of several columns shards, which have the same rows, the last one."""
    tables = plan.task.tables
    return {(known_as(tables[placed.shard.table]), placed.device): placed.shard for placed in plan.placements}


def _lying(plan: Plan) -> dict[_Known, tuple[Places, Layout]]:
    """Find the places of every table and its layout."""
    return {
        known_as(table): (tuple(sorted((placed.device, placed.shard.dim) for placed in its)), layout)
        for table, its, layout in zip(plan.task.tables, plan.by_table, plan.layouts, strict=True)
    }


def _told(places: Places, layout: Layout) -> str:
    told = ", ".join(f"device {device} ({columns} columns)" for device, columns in places)
    return told if layout.free else f"{told}, {layout}"


def layout_key(plan: Plan) -> Hashable:
    """Make a key that is equal for plans of one task that differ only in the order of a host's devices, and of hosts.

    Which of a table's columns a shard holds doesn't count, for all cost the same; which of its rows does.
    """
    topology = plan.task.topology
    contents: list[list[tuple[int, ...]]] = [[] for _ in range(topology.num_devices)]
    for placed in plan.placements:
        shard = placed.shard
        contents[placed.device].append((shard.table, shard.dim, shard.row, shard.rows))
    devices = [tuple(sorted(its)) for its in contents]
    return tuple(sorted(tuple(sorted(devices[device] for device in host)) for host in topology.hosts))
