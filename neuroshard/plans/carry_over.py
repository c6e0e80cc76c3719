"""Carry a plan over to another task: find the shards that can stay when tables or devices are added or removed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from glob import escape

import numpy as np

from neuroshard.cost.loads import Loads, LoadSets
from neuroshard.layouts import Layout, layout_of, place_column_wise, placed_loads
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.grouping import grouped
from neuroshard.tables import Table
from neuroshard.tasks.constraints import PinnedColumns, TableRule
from neuroshard.tasks.task import Task
from neuroshard.words.placement import ON_DEVICE, Placement, TierAssignment, by_table


@dataclass(frozen=True)
class Carried:
    """The shards of a plan that can stay on their devices in a plan for another task.

    Attributes:
        task: the other task.
        columns: (table, dim, device) of the column shards that stay; tables are indices in the task.
        others: placements of row-wise and data-parallel tables that stay, always all shards of a table.
        tier_assignments: tier assignments of tables that stay in host memory, by the index of the table in the task;
            all other tables are in device memory.
        changed: indices of tables that have other rows, columns or data type than before.
    """

    task: Task
    columns: tuple[tuple[int, int, int], ...]
    others: tuple[Placement, ...]
    tier_assignments: dict[int, TierAssignment] = field(default_factory=dict)
    changed: frozenset[int] = frozenset()

    @property
    def plan(self) -> Plan | None:
        """The plan that consists of all shards that can stay, on their present devices.
        None if these shards do not cover all tables, or if the plan would break a memory limit or a constraint.
        """
        dims = Counter[int]()
        for index, dim, _ in self.columns:
            dims[index] += dim
        elsewhere = {placed.shard.table for placed in self.others}
        if any(dims[i] != table.dim for i, table in enumerate(self.task.tables) if i not in elsewhere):
            return None
        placed = place_column_wise(self.task, self.columns)
        assigned = self.tier_assignments
        columns = (replace(column, tier_assignment=assigned.get(column.shard.table, ON_DEVICE)) for column in placed)
        plan = Plan(self.task, (*columns, *self.others))
        return None if plan.violations else plan

    @property
    def pinned(self) -> Task:
        """The task with constraints added, so that each shard that can stay keeps its present device.

        Tables that the task itself pins or keeps together get no such constraints.
        """
        constraints, tables = self.task.constraints, self.task.tables
        columns = Counter[tuple[int, int]]()  # by (table, device)
        for index, dim, device in self.columns:
            columns[index, device] += dim
        pins = tuple(PinnedColumns.on(tables[index].name, dim, (device,)) for (index, device), dim in columns.items())
        taken = constraints.pins.keys() | constraints.group_of.keys()
        others = zip(tables, by_table(self.others, len(tables)), strict=True)
        rules = tuple(_rule(table, placements) for table, placements in others if placements)
        rules += tuple(
            TableRule.keeping(tables[index].name, assignment) for index, assignment in self.tier_assignments.items()
        )
        kept = constraints.pinned + tuple(pin for pin in pins if pin.table not in taken)
        return replace(self.task, constraints=replace(constraints.with_rules(rules), pinned=kept))

    @property
    def fitting(self) -> "Carried":
        """A copy of this `Carried` object that has only as many column shards on each device as fit in the device's
        memory.

        Shards of unchanged tables come before shards of changed tables, and larger shards before smaller ones. Caches
        are counted as wide as if all column shards stayed.
        """
        tables = [self.task.tables[table].with_dim(dim) for table, dim, _ in self.columns]
        assignments = [self.tier_assignments.get(table, ON_DEVICE) for table, _, _ in self.columns]
        devices = np.array([device for _, _, device in self.columns], dtype=np.int64)
        loads = Loads.of(tables, self.task.batch_size).at(assignments)
        together, size_bytes = LoadSets.grouped(loads, devices, self.task.topology.num_devices), np.zeros_like(devices)
        size_bytes[np.argsort(devices, kind="stable")] = self.task.memory.bytes_with_caches(together)
        sizes = size_bytes.tolist()
        left, kept = self._left_by_others, set[int]()
        for number in sorted(range(len(sizes)), key=lambda n: (self.columns[n][0] in self.changed, -sizes[n])):
            device = self.columns[number][2]
            if sizes[number] <= left[device]:
                left[device] -= sizes[number]
                kept.add(number)
        return replace(self, columns=tuple(column for i, column in enumerate(self.columns) if i in kept))

    @property
    def _left_by_others(self) -> list[int]:
        """The bytes of memory that are left for column shards on each of D devices, (D,). This is the memory for
        shards, minus the bytes of the row-wise and data-parallel shards that stay on the device.
        """
        left = list(self.task.shard_memory)
        others = sorted(self.others, key=lambda placement: placement.device)
        loads = placed_loads(self.task.tables, others, self.task.batch_size, len(left))
        for placement, size in zip(others, self.task.memory.device_bytes(loads).tolist(), strict=True):
            left[placement.device] -= size
        return left

    def largest(self, share: float) -> "Carried":
        """Return a copy of this `Carried` object with only the largest column shards. The shards are added from the
        largest to the smallest, as long as their total size is at most the fraction `share` of the size of all column
        shards. For example, with a `share` of 0.5, the kept shards have at most half of all bytes.

        The smaller shards are placed again, because they can fill gaps on the devices.
        """
        ranked = sorted(self.columns, key=lambda column: (-self._size_bytes(column), column))
        most, kept, total = share * sum(map(self._size_bytes, ranked)), list[tuple[int, int, int]](), 0
        for column in ranked:
            total += self._size_bytes(column)
            if total <= most:
                kept.append(column)
        return replace(self, columns=tuple(kept))

    def _size_bytes(self, column: tuple[int, int, int]) -> int:
        """Return the size of a column shard's weights, in bytes."""
        table, dim, _ = column
        return self.task.tables[table].with_dim(dim).size_bytes


def carried_over(before: Plan, task: Task) -> Carried:
    """Return the shards of the plan `before` that can stay on their devices in a plan for `task`.
    These are shards of tables that the plan and the task both have, on devices that the plan and the task both have.

    Tables are matched by name, and devices by number. Table-wise and column-wise tables keep the shards whose devices
    stay, but a split table is placed again if its number of columns changed. Row-wise and data-parallel tables stay
    only if the numbers of devices and hosts are the same as before, because these numbers determine their shards.
    Tables keep their tier assignments. Shards that the rules of the task forbid do not stay.
    """
    index = {table.name: number for number, table in enumerate(task.tables)}
    devices_stay = have_same_devices(before.task, task)
    columns: list[tuple[int, int, int]] = []
    others: list[Placement] = []
    tier_assignments: dict[int, TierAssignment] = {}
    changed = set[int]()
    for number, layout in enumerate(before.layouts):
        table = before.task.tables[number]
        new = index.get(table.name)
        if new is None or not (layout.free or devices_stay):
            continue
        stay = _laid_out_again(before, number, task, new)
        if stay is None or not _allowed(task, new, layout, stay):
            continue
        if _shape(table) != _shape(task.tables[new]):
            changed.add(new)
        if layout.free:
            columns += [(new, p.shard.dim, p.device) for p in stay if p.device < task.topology.num_devices]
        else:
            others += stay
        if before.tier_assignments[number] != ON_DEVICE:
            tier_assignments[new] = before.tier_assignments[number]
    return Carried(task, tuple(columns), tuple(others), tier_assignments, frozenset(changed))


def restated(before: Plan, task: Task) -> Plan | None:
    """Return a plan for `task` in which each table is sharded in the same way as in the plan `before`.
    The plan and the task must have the same number of devices and the same table names.

    The order of the tables may differ.

    Returns:
        The plan, which may break limits of the task; None if a table's new shape does not allow its old placement.

    Raises:
        UserError: the tables of the plan and of the task have different names.
    """
    before_of = {table.name: number for number, table in enumerate(before.task.tables)}
    if before_of.keys() != {table.name for table in task.tables}:
        raise UserError(
            "plan-tables-renamed",
            "the plan's tables have other names than the task's tables",
            limit="the names of the tables must be the same",
            remedy="Use a plan and a task whose tables have the same names",
        )
    placements: list[Placement] = []
    for new, table in enumerate(task.tables):
        again = _laid_out_again(before, before_of[table.name], task, new)
        if again is None:
            return None
        placements += again
    return Plan(task, tuple(placements))


def _laid_out_again(before: Plan, number: int, task: Task, new: int) -> list[Placement] | None:
    """Return placements for a table of `task` that keep the table on the devices that it has in the plan `before`. The
    index of the table is `number` in the plan and `new` in the task. Return None if the number of rows or columns has
    changed and the new number does not allow such placements.
    """
    old, table, placements = before.task.tables[number], task.tables[new], before.by_table[number]
    if (old.rows, old.dim) == (table.rows, table.dim):
        return [replace(placed, shard=replace(placed.shard, table=new)) for placed in placements]
    if before.layouts[number].free:
        again = _other_columns(old, task, new, placements)
    else:
        again = _other_blocks(old, task, new, placements, before.layouts[number])
    return again and [replace(placed, tier_assignment=placements[0].tier_assignment) for placed in again]


def _other_columns(old: Table, task: Task, new: int, placements: Sequence[Placement]) -> list[Placement] | None:
    """Return placements for a column-wise table whose number of rows or columns has changed. The devices are the same
    as in `placements`, the earlier placements of the table. If only the number of rows has changed, each device keeps
    its number of columns. If the number of columns has changed, a table on one device gets all columns there; for a
    table on several devices, return None.

    `old` is the table as it was; `new` is the index of the table in `task`.
    """
    dims = Counter[int]()
    for placed in placements:
        dims[placed.device] += placed.shard.dim
    if old.dim != (dim := task.tables[new].dim):
        if len(dims) > 1:
            return None
        dims = Counter(dict.fromkeys(dims, dim))
    return place_column_wise(task, [(new, dim, device) for device, dim in dims.items()])


def _other_blocks(
    old: Table, task: Task, new: int, placements: Sequence[Placement], layout: Layout
) -> list[Placement] | None:
    """Return placements for a row-wise or data-parallel table that has another number of rows or columns than in the
    previous plan. The table stays on the devices of `placements`, the placements in the previous plan.

    Return None if the table has too few rows. Several column ranges stay the same, so the result is also None if the
    table has several column ranges and another number of columns than before.
    """
    ranges = grouped(placements, lambda placed: (placed.shard.column, placed.shard.dim))
    if len(ranges) > 1 and old.dim != task.tables[new].dim:
        return None
    try:
        over = [
            (columns, layout.over(task, new, [placed.device for placed in group])) for columns, group in ranges.items()
        ]
    except UserError:  # the table has too few rows
        return None
    if len(over) == 1:
        return over[0][1]
    return [
        replace(placed, shard=replace(placed.shard, column=column, dim=dim))
        for (column, dim), group in over
        for placed in group
    ]


def _shape(table: Table) -> tuple[int, int, int]:
    return table.rows, table.dim, table.bytes_per_element


def _allowed(task: Task, index: int, layout: Layout, placements: Sequence[Placement]) -> bool:
    """Return True if the constraints of a task allow a table to keep the shards that it had in an earlier plan.
    The sharding type, the memory tier, and the number and width of the shards must be allowed. The devices of the
    shards must be allowed too, except devices that the task no longer has.
    """
    limits, assignment = task.limits[index], placements[0].tier_assignment
    dims = Counter[int]()  # columns on each device
    for placed in placements:
        dims[placed.device] += placed.shard.dim
    staying = {device for device in dims if device < task.topology.num_devices}
    counts = limits.may_count(layout, len(dims)) if len(staying) == len(dims) else len(staying) < limits.max_shards
    has_type = limits.sharding_types & layout.allowed_by(placements, task.topology)
    has_tier = limits.allows_tier(assignment) and (assignment == ON_DEVICE or task.topology.host_bytes > 0)
    wide_enough = min(dims.values()) >= limits.min_dim
    return bool(has_type) and has_tier and counts and wide_enough and staying.issubset(limits.devices)


def _rule(table: Table, placements: Sequence[Placement]) -> TableRule:
    """Return a rule that makes a row-wise or data-parallel table keep its devices and its family of sharding types."""
    devices = tuple(sorted(placed.device for placed in placements))
    layout = layout_of(table, [placed.shard for placed in placements])
    return TableRule(escape(table.name), devices=devices, sharding_types=layout.type_names)


def have_same_devices(one: Task, other: Task) -> bool:
    """Return True if two tasks have the same numbers of devices: in total, per host, and per domain of fast links."""
    topologies = one.topology, other.topology
    first, second = ((place.num_devices, place.host_size, place.domain_size) for place in topologies)
    return first == second
