"""A plan carried over to another task: what stays where it is when tables come and go, or devices do."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from glob import escape

import numpy as np

from neuroshard.cost.loads import Loads, LoadSets
from neuroshard.layouts import Layout, in_columns, layout_of
from neuroshard.plans.moves import known_as
from neuroshard.plans.plan import Plan
from neuroshard.tables import Table
from neuroshard.tasks.constraints import PinnedColumns, TableRule
from neuroshard.tasks.task import Task
from neuroshard.words.placement import ON_DEVICE, Placement, TierAssignment, by_table


@dataclass(frozen=True)
class Carried:
    """The shards of a plan that can stay in another task.

    Attributes:
        task: the other task.
        columns: (table, dim, device) of column shards, tables by their indices in the task.
        others: placements of row-wise and data-parallel tables; all shards of a table, or none.
        tier_assignments: of tables that stay in host memory, by their indices in the task; all others are in device
            memory.
    """

    task: Task
    columns: tuple[tuple[int, int, int], ...]
    others: tuple[Placement, ...]
    tier_assignments: dict[int, TierAssignment] = field(default_factory=dict)

    @property
    def plan(self) -> Plan | None:
        """The plan in which everything stays; None if something has no place, or limits are broken."""
        dims = Counter[int]()
        for index, dim, _ in self.columns:
            dims[index] += dim
        elsewhere = {placed.shard.table for placed in self.others}
        if any(dims[i] != table.dim for i, table in enumerate(self.task.tables) if i not in elsewhere):
            return None
        placed = in_columns(self.task, self.columns)
        columns = (
            replace(one, tier_assignment=self.tier_assignments.get(one.shard.table, ON_DEVICE)) for one in placed
        )
        plan = Plan(self.task, (*columns, *self.others))
        return None if plan.violations else plan

    @property
    def pinned(self) -> Task:
        """The task, with everything that can stay held where it is; tables that its constraints place are left out."""
        constraints, tables = self.task.constraints, self.task.tables
        held = Counter[tuple[int, int]]()
        for index, dim, device in self.columns:
            held[index, device] += dim
        pins = tuple(PinnedColumns.on(tables[index].name, dim, (device,)) for (index, device), dim in held.items())
        taken = constraints.pins.keys() | constraints.group_of.keys()
        others = zip(tables, by_table(self.others, len(tables)), strict=True)
        rules = tuple(_rule(table, its) for table, its in others if its)
        rules += tuple(TableRule.keeping(tables[index].name, home) for index, home in self.tier_assignments.items())
        kept = constraints.pinned + tuple(pin for pin in pins if pin.table not in taken)
        return replace(self.task, constraints=replace(constraints.with_rules(rules), pinned=kept))

    @property
    def fitting(self) -> "Carried":
        """What stays with as many column shards on each device as its memory has room for, the largest first.

        Caches are counted as wide as if all column shards stayed.
        """
        tables = [self.task.tables[table].with_dim(dim) for table, dim, _ in self.columns]
        homes = [self.tier_assignments.get(table, ON_DEVICE) for table, _, _ in self.columns]
        devices = np.array([device for _, _, device in self.columns], dtype=np.int64)
        loads = Loads.of(tables, self.task.batch_size).at(homes)
        together, size_bytes = LoadSets.grouped(loads, devices, self.task.topology.num_devices), np.zeros_like(devices)
        size_bytes[np.argsort(devices, kind="stable")] = self.task.memory.bytes_beside(together)
        sizes = size_bytes.tolist()
        left, kept = list(self.task.shard_memory), set[int]()
        for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
            device = self.columns[number][2]
            if sizes[number] <= left[device]:
                left[device] -= sizes[number]
                kept.add(number)
        return replace(self, columns=tuple(column for i, column in enumerate(self.columns) if i in kept))

    def largest(self, share: float) -> "Carried":
        """Keep the largest column shards only, which hold so much of the bytes of all: small ones fill gaps."""
        ranked = sorted(self.columns, key=lambda column: (-self._size_bytes(column), column))
        most, kept, total = share * sum(map(self._size_bytes, ranked)), list[tuple[int, int, int]](), 0
        for column in ranked:
            total += self._size_bytes(column)
            if total <= most:
                kept.append(column)
        return replace(self, columns=tuple(kept))

    def _size_bytes(self, column: tuple[int, int, int]) -> int:
        """Compute the bytes of a column shard's weights."""
        table, dim, _ = column
        return self.task.tables[table].with_dim(dim).size_bytes


def carried_over(before: Plan, task: Task) -> Carried:
    """Return the shards of the plan that can stay: shards of tables that both tasks have, on devices that both have.

    A device is known by its number. Table-wise and column-wise tables keep the shards whose devices stay. Row-wise and
    data-parallel tables stay only if there are as many devices and hosts as before, because these numbers decide their
    shards. Tables keep their tier assignments. Shards that the rules of the task forbid do not stay.
    """
    index = {table.name: number for number, table in enumerate(task.tables)}
    devices_stay = have_same_devices(before.task, task)
    columns: list[tuple[int, int, int]] = []
    others: list[Placement] = []
    homes: dict[int, TierAssignment] = {}
    for number, placements in enumerate(before.by_table):
        table, layout = before.task.tables[number], before.layouts[number]
        new = index.get(table.name)
        if new is None or known_as(task.tables[new]) != known_as(table) or not _allowed(task, new, layout, placements):
            continue
        if before.tier_assignments[number] != ON_DEVICE and (layout.free or devices_stay):
            homes[new] = before.tier_assignments[number]
        if layout.free:
            columns += [(new, p.shard.dim, p.device) for p in placements if p.device < task.topology.num_devices]
        elif devices_stay:
            others += [replace(placed, shard=replace(placed.shard, table=new)) for placed in placements]
    return Carried(task, tuple(columns), tuple(others), homes)


def _allowed(task: Task, index: int, layout: Layout, placements: Sequence[Placement]) -> bool:
    """Return True if rules allow a table's layout, the devices of it that stay, and its tier assignment."""
    limits = task.limits[index]
    staying = {placed.device for placed in placements if placed.device < task.topology.num_devices}
    home = placements[0].tier_assignment
    has_home = limits.may_lie_in(home) and (home == ON_DEVICE or task.topology.host_bytes > 0)
    return layout.form in limits.forms and staying.issubset(limits.devices) and has_home


def _rule(table: Table, placements: Sequence[Placement]) -> TableRule:
    """Make the rule that a row-wise or data-parallel table keeps its devices and its family of sharding types."""
    devices = tuple(sorted(placed.device for placed in placements))
    layout = layout_of(table, [placed.shard for placed in placements])
    return TableRule(escape(table.name), devices=devices, sharding_types=layout.type_names)


def have_same_devices(one: Task, other: Task) -> bool:
    """Tell whether two tasks have as many devices, and as many of them on a host and with fast links."""
    ours, theirs = ((its.num_devices, its.host_size, its.domain_size) for its in (one.topology, other.topology))
    return ours == theirs
