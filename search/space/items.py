"""What the search places, whole tables as a rule, and whatever a task's constraints make of them; and their limits."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import BoolArray, IntArray
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.grouping import grouped
from neuroshard.plumbing.schema import DIM_MULTIPLE
from neuroshard.stages.search.space.base import Base
from neuroshard.stages.search.space.compiled import kernel, leaf
from neuroshard.tables import Table
from neuroshard.tasks.task import Task


class Limits(NamedTuple):
    """The items' limits as arrays; a tuple, so that compiled functions take it.

    Attributes:
        allowed: (I, D) whether a device may hold an item.
        min_shards, max_shards: (I,) devices that an item is spread over.
        min_width: (I,) units of 4 columns on each of them, at least.
        rival_first, rivals: (I + 1,) and (R,); rivals[rival_first[i] : rival_first[i + 1]] may not share a device
            with item i.
    """

    allowed: BoolArray
    min_shards: IntArray
    max_shards: IntArray
    min_width: IntArray
    rival_first: IntArray
    rivals: IntArray

    def of(self, kept: BoolArray) -> "Limits":
        """Take the limits of the items that are kept (I,), with all of their rivals."""
        place, count = kept.cumsum() - 1, np.diff(self.rival_first)
        return Limits(
            self.allowed[kept],
            self.min_shards[kept],
            self.max_shards[kept],
            self.min_width[kept],
            np.concatenate([[0], count[kept].cumsum()]),
            place[self.rivals[np.repeat(kept, count)]],
        )


@leaf
def may_lie(limits: Limits, held: IntArray, item: int, device: int, leaving: int) -> bool:
    """Return True if a device may hold a shard of an item beside what `held` (I, D) puts there.

    An item that is `leaving` the device counts as gone; -1 stands for none.
    """
    if not limits.allowed[item, device]:
        return False
    for r in range(limits.rival_first[item], limits.rival_first[item + 1]):
        if limits.rivals[r] != leaving and held[limits.rivals[r], device] > 0:
            return False
    return True


@kernel
def open_devices(limits: Limits, held: IntArray, item: int) -> BoolArray:
    """Return which devices may hold a shard of an item beside what `held` (I, D) puts there, (D,)."""
    may_hold: BoolArray = np.zeros(held.shape[1], np.bool_)
    for device in range(len(may_hold)):
        may_hold[device] = may_lie(limits, held, item, device, -1)
    return may_hold


@leaf
def keeps_limits(limits: Limits, held: IntArray) -> bool:
    """Return True if the devices, counts and widths of all shards of `held` (I, D) keep the limits of their items."""
    num_items, num_devices = held.shape
    for item in range(num_items):
        shards = 0
        for device in range(num_devices):
            if held[item, device] > 0:
                shards += 1
                if held[item, device] < limits.min_width[item] or not may_lie(limits, held, item, device, -1):
                    return False
        if not limits.min_shards[item] <= shards <= limits.max_shards[item]:
            return False
    return True


@dataclass(frozen=True)
class Item:
    """Columns that are placed as one, unless `max_shards` lets them be split.

    Attributes:
        tables: (table, units of 4 columns) of each table in it; more than one only if it is never split.
        devices: those that may hold it.
        min_shards, max_shards: devices that it is spread over.
        min_width: units on each of them, at least.
    """

    tables: tuple[tuple[int, int], ...]
    devices: tuple[int, ...]
    min_shards: int
    max_shards: int
    min_width: int

    @property
    def width(self) -> int:
        """Columns of all its tables, in units of 4."""
        return sum(units for _, units in self.tables)

    def columns(self, width: int) -> list[tuple[int, int]]:
        """List (table, dim) of what a shard `width` units wide holds; of tables kept together, all that there is."""
        if len(self.tables) > 1:
            return [(table, units * DIM_MULTIPLE) for table, units in self.tables]
        return [(self.tables[0][0], width * DIM_MULTIPLE)]


@dataclass(frozen=True, eq=False)
class Items:
    """The I items that are to be placed column-wise, and their limits."""

    base: Base
    items: tuple[Item, ...]
    limits: Limits

    @classmethod
    def of(cls, base: Base) -> "Items":
        """Make items of a base's column-wise tables, in order of their first table; without constraints, the tables."""
        task = base.task
        items = _items(task, base.in_columns)
        allowed = np.zeros((len(items), task.topology.num_devices), dtype=np.bool_)
        for index, item in enumerate(items):
            allowed[index, list(item.devices)] = True
        closed = base.closed_to()
        for index, item in enumerate(items):
            allowed[index] &= ~closed[[table for table, _ in item.tables]].any(axis=0)
        rivals = _rivals(task, items)
        limits = Limits(
            allowed,
            np.array([item.min_shards for item in items], dtype=np.int64),
            np.array([item.max_shards for item in items], dtype=np.int64),
            np.array([item.min_width for item in items], dtype=np.int64),
            np.array([0, *map(len, rivals)], dtype=np.int64).cumsum(),
            np.array([rival for some in rivals for rival in sorted(some)], dtype=np.int64),
        )
        return cls(base, items, limits)

    @property
    def task(self) -> Task:
        """The task, with all tables."""
        return self.base.task

    @property
    def free_bytes(self) -> IntArray:
        """Bytes of each device's memory that there are for the items, (D,)."""
        return self.base.free_bytes

    def __len__(self) -> int:
        return len(self.items)

    def rivals_of(self, index: int) -> IntArray:
        """Find the items that may not share a device with item `index`."""
        rivals: IntArray = self.limits.rivals[self.limits.rival_first[index] : self.limits.rival_first[index + 1]]
        return rivals

    @property
    def confined(self) -> BoolArray:
        """True for each item, (I,), that some device or other item excludes: such items are better placed first."""
        confined: BoolArray = ~self.limits.allowed.all(axis=1) | (np.diff(self.limits.rival_first) > 0)
        return confined

    def name(self, index: int) -> str:
        """Name the tables in item `index`, as errors show them."""
        return " + ".join(repr(self.task.tables[table].name) for table, _ in self.items[index].tables)

    def tables(self, index: int, width: int) -> list[Table]:
        """List the tables that a shard of item `index`, `width` units wide, holds, each as wide as there."""
        return [self.task.tables[table].with_dim(dim) for table, dim in self.items[index].columns(width)]

    def plan(self, held: IntArray) -> Plan:
        """Make the plan of `held` (I, D), units of each item on each device."""
        places = zip(*(axis.tolist() for axis in held.nonzero()), strict=True)
        return self.base.plan(
            [
                (table, dim, device)
                for index, device in places
                for table, dim in self.items[index].columns(int(held[index, device]))
            ]
        )

    def held(self, plan: Plan) -> IntArray:
        """Count the units of each item on each device, (I, D), of a plan that keeps the task's constraints.

        Raises:
            UserError: a table that is to be placed column-wise has another sharding type in the plan.
        """
        if not self.base.others:
            plan.check_layouts(
                lambda layout: layout.free,
                "this search starts from column-wise tables only",
                "Give a plan in which this table is column_wise",
            )
        units = np.zeros((len(self.task.tables), self.task.topology.num_devices), dtype=np.int64)
        for placement in plan.placements:
            units[placement.shard.table, placement.device] += placement.shard.dim // DIM_MULTIPLE
        held = np.zeros(self.limits.allowed.shape, dtype=np.int64)
        by_first_table = grouped(range(len(self)), lambda number: self.items[number].tables[0][0])
        for table, numbers in by_first_table.items():
            whole = [number for number in numbers if self.limits.max_shards[number] == 1]
            width = np.array([self.items[number].tables[0][1] for number in whole])
            fits = self.limits.allowed[whole] & (units[table] == width[:, None])
            for row, device in _own_devices(fits):
                held[whole[row], device] = self.items[whole[row]].width
                units[table, device] = 0
            for number in set(numbers).difference(whole):
                held[number] = units[table]
        return held


def _own_devices(fits: BoolArray) -> list[tuple[int, int]]:
    """Pair each of n shards with a device of its own that it fits on, (n, D)."""
    if not len(fits):
        return []
    from scipy.optimize import linear_sum_assignment  # slow to import: only where it is used

    return list(zip(*(its.tolist() for its in linear_sum_assignment(~fits)), strict=True))


def _items(task: Task, tables: IntArray) -> tuple[Item, ...]:
    constraints = task.constraints
    index = {table.name: number for number, table in enumerate(task.tables)}
    items: list[Item] = []
    for number in tables.tolist():
        table, limits = task.tables[number], task.limits[number]
        if not limits.free:
            forms = " or ".join(sorted(limits.forms))
            raise UserError(
                "constraints-not-column-wise",
                f"table {table.name!r} may only be {forms}",
                where="constraints",
                limit="this searcher places only column-wise tables",
                remedy="Allow column_wise for this table, or set searcher=neuroshard",
            )
        if table.name in constraints.group_of:
            group = sorted(index[name] for name in constraints.group_of[table.name])
            if group[0] == number:
                allowed = [set(task.limits[t].devices) for t in group]
                whole = tuple((t, task.tables[t].dim // DIM_MULTIPLE) for t in group)
                items.append(Item(whole, tuple(sorted(set.intersection(*allowed))), 1, 1, 1))
            continue
        left, shards = table.dim // DIM_MULTIPLE, constraints.pins.get(table.name, [])
        for shard in shards:
            devices = tuple(sorted(set(shard.devices).intersection(limits.devices)))
            items.append(Item(((number, shard.dim // DIM_MULTIPLE),), devices, 1, 1, 1))
            left -= shard.dim // DIM_MULTIPLE
        if left:
            least, most = (count - len(shards) for count in (limits.min_shards, limits.max_shards))
            narrowest = limits.min_dim // DIM_MULTIPLE
            most = min(most, left // narrowest)
            items.append(Item(((number, left),), limits.devices, max(least, 1), most, narrowest))
    return tuple(items)


def _rivals(task: Task, items: Sequence[Item]) -> list[set[int]]:
    """Find, for each item, those that may not share its device: of tables kept apart, and of its own table."""
    of_table: dict[str, set[int]] = defaultdict(set)
    for number, item in enumerate(items):
        for table, _ in item.tables:
            of_table[task.tables[table].name].add(number)
    groups = [set().union(*(of_table[name] for name in group)) for group in task.constraints.apart]
    groups += [numbers for numbers in of_table.values() if len(numbers) > 1]
    rivals: list[set[int]] = [set() for _ in items]
    for group in groups:
        for number in group:
            rivals[number] |= group - {number}
    return rivals
