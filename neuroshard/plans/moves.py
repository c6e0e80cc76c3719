"""What has to be moved from one plan to another, whose tables or devices may be others."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from neuroshard.arrays import IntArray
from neuroshard.plans.plan import Plan
from neuroshard.plans.shard import Shard
from neuroshard.units import readable_bytes

_Places = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class TableChange:
    """A table that lies elsewhere afterwards, is new, or is gone.

    Attributes:
        table: its name.
        before, after: (device, columns) of its shards; empty where there is no such table.
        size_bytes: of weights and optimizer state that come to devices that don't hold them yet; those of a new table
            are made there, not moved.
    """

    table: str
    before: _Places
    after: _Places
    size_bytes: int

    @property
    def is_new(self) -> bool:
        """Whether there was no such table."""
        return not self.before

    def __str__(self) -> str:
        if not self.after:
            return f"table {self.table}: gone"
        if self.is_new:
            return f"table {self.table}: new, {readable_bytes(self.size_bytes)} on {_told(self.after)}"
        return (
            f"table {self.table}: {readable_bytes(self.size_bytes)} moved, {_told(self.before)} -> {_told(self.after)}"
        )


def table_changes(before: Plan, after: Plan) -> tuple[TableChange, ...]:
    """Every table that lies elsewhere, is new or is gone, the most bytes first."""
    old, new = _places(before), _places(after)
    arriving = dict(zip(new, moved_between(before, after).tolist(), strict=True))
    found = [TableChange(name, old.get(name, ()), new.get(name, ()), arriving.get(name, 0)) for name in {**new, **old}]
    changed = (change for change in found if change.before != change.after)
    return tuple(sorted(changed, key=lambda change: (-change.size_bytes, change.table)))


def moved_bytes(before: Plan, after: Plan) -> int:
    """Bytes of weights and optimizer state of tables of both plans that arrive on any device."""
    known = {table.name for table in before.task.tables}
    arriving = zip(after.task.tables, moved_between(before, after).tolist(), strict=True)
    return sum(size for table, size in arriving if table.name in known)


def moved_between(before: Plan, after: Plan) -> IntArray:
    """(T,) bytes of weights and optimizer state of each table of `after` that arrive on any device.

    Tables are known by their names, and devices by their numbers; either may be others. Of a table that is new all
    bytes arrive; optimizer state is what the task of `after` counts. A device keeps of its rows those that it has in
    both plans, in as many columns as it has in both.
    """
    loads, kept = after.device_loads.loads, np.zeros((2, len(after.placements)))
    held = _held(before)
    for number, placement in enumerate(after.by_device):
        shard = placement.shard
        old = held.get((after.task.tables[shard.table].name, placement.device))
        if old is not None:
            rows = min(shard.row_end, old.row_end) - max(shard.row, old.row)
            kept[:, number] = max(rows, 0), min(shard.dim, old.dim)
    memory = after.task.memory
    arriving = memory.state_bytes(loads) - memory.state_bytes(replace(loads, rows=kept[0], dim=kept[1]))
    moved: IntArray = np.zeros(len(after.task.tables), dtype=np.int64)
    np.add.at(moved, [placement.shard.table for placement in after.by_device], arriving)
    return moved


def _held(plan: Plan) -> Mapping[tuple[str, int], Shard]:
    """Shards by table and device."""
    tables = plan.task.tables
    return {(tables[placed.shard.table].name, placed.device): placed.shard for placed in plan.placements}


def _places(plan: Plan) -> dict[str, _Places]:
    """The places of every table, by name."""
    pairs = zip(plan.task.tables, plan.by_table, strict=True)
    return {table.name: tuple(sorted((placed.device, placed.shard.dim) for placed in its)) for table, its in pairs}


def _told(places: _Places) -> str:
    return ", ".join(f"device {device} ({columns} columns)" for device, columns in places)
