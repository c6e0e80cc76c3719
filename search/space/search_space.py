"""The column-wise tables that a search places, cut into items: an item is a table, a pinned shard, or several tables
that are kept together. All possible shards of the items are listed in arrays.

Usually an item is a table. Constraints make an item of each pinned shard, and a single item of all tables that are
kept together.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from neuroshard.cost.loads import Loads, LoadSets
from neuroshard.layouts.widths import as_shards
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import BoolArray, FloatArray, IntArray
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.grouping import grouped
from neuroshard.plumbing.schema import DIM_MULTIPLE
from neuroshard.stages.search.published.shard_table import PlacementRules, ShardTable
from neuroshard.stages.search.space.cache_widths import ItemTables, charged_widths
from neuroshard.stages.search.space.fixed_load import FixedLoad
from neuroshard.tables import Table
from neuroshard.tasks.task import Task

_FRACTIONS = 1024  # fractions per unit of 4 columns


@dataclass(frozen=True, eq=False)
class SearchSpace:
    """The column-wise tables of a task, which a search places on D devices. The tables are given as I items: an item is
    a table, a pinned shard, or several tables that are kept together. The devices may already have a fixed load: the
    row-wise and data-parallel tables of the task.

    Attributes:
        fixed: the task, and the load of its other tables.
        items: (I,) tables of each item, in the order of their first tables.
        shards: all shards of the items; with costs if it is a `CostedSpace`.
    """

    fixed: FixedLoad
    items: tuple[ItemTables, ...]
    shards: ShardTable

    @classmethod
    def of(cls, fixed: FixedLoad) -> "SearchSpace":
        """Return the search space of the tables that the fixed load `fixed` leaves to be placed column-wise.
        The space has the items of these tables, and all possible shards of the items. For each shard, the space has the
        bytes of memory, and the number of units of 4 columns that a device with the shard sends for each sample.

        Raises:
            UserError: a table may not be column-wise.
        """
        items = _items(fixed.task, fixed.column_wise)
        tables, rules = tuple(item.tables for item in items), _rules(fixed, items)
        full_width = np.array([sum(units for _, units in its) for its in tables], dtype=np.int64)
        first = np.concatenate([[0], (full_width + 1).cumsum()[:-1]])
        row, loads = row_loads(fixed.task, tables, first, full_width)
        count, memory = int(full_width.sum()) + len(tables), fixed.task.memory
        size_bytes, state_bytes = np.zeros((2, count), dtype=np.int64)
        charged = charged_widths(fixed.task, tables, rules, loads, np.searchsorted(first, row, side="right") - 1)
        np.add.at(size_bytes, row, memory.device_bytes(loads, charged))
        np.add.at(state_bytes, row, memory.state_bytes(loads))
        sent_units = np.zeros(count)
        np.add.at(sent_units, row, _rounded(loads.outputs / loads.samples * loads.dim / DIM_MULTIPLE))
        vectors, no_cost = np.zeros((count, 0), dtype=np.float32), np.zeros(count)
        shards = ShardTable(rules, first, size_bytes, state_bytes, sent_units, vectors, no_cost, no_cost)
        return cls(fixed, tables, shards)

    @classmethod
    def of_task(cls, task: Task) -> "SearchSpace":
        """Return the space in which all tables of a task are to be placed column-wise; no table is placed yet."""
        return cls.of(FixedLoad.empty(task))

    @property
    def task(self) -> Task:
        """The task with all tables, including the tables of the fixed load."""
        return self.fixed.task

    @property
    def free_bytes(self) -> IntArray:
        """The bytes of memory on each device that are left for the items, (D,)."""
        return self.fixed.free_bytes

    @property
    def first_tables(self) -> IntArray:
        """The index of the first table of each item (a table, a pinned shard, or several tables that are kept
        together), (I,).
        """
        return np.array([its[0][0] for its in self.items], dtype=np.int64)

    def name(self, item: int) -> str:
        """Return the names of the tables in an item for error messages: quoted, and joined by " + "."""
        return " + ".join(repr(self.task.tables[table].name) for table, _ in self.items[item])

    def columns(self, item: int, width: int) -> list[tuple[int, int]]:
        """Return a pair for each table in a shard of an item: the index of the table, and its number of columns in the
        shard. The shard is `width` units of 4 columns wide. If an item is several tables that are kept together, the
        shard has all columns of these tables.
        """
        if len(self.items[item]) > 1:
            return [(table, units * DIM_MULTIPLE) for table, units in self.items[item]]
        return [(self.items[item][0][0], width * DIM_MULTIPLE)]

    def tables(self, item: int, width: int) -> list[Table]:
        """Return the tables of an item, cut to the columns of a shard that is `width` units of 4 columns wide.

        An item is usually one table; it may also be several tables that are kept together, which are never split.
        """
        return [self.task.tables[table].with_dim(dim) for table, dim in self.columns(item, width)]

    def whole_tables(self) -> list[list[Table]]:
        """Return the tables of each item, (I,) lists; each table has only the columns that are in the item."""
        return [self.tables(item, width) for item, width in enumerate(self.shards.full_width.tolist())]

    def plan(self, widths: IntArray) -> Plan:
        """Return the plan of all tables of the task, with the column-wise tables placed according to `widths`.
        `widths` (I, D) has the width of each item on each device, in units of 4 columns; 0 if the device has no shard
        of the item. All other tables, which are row-wise or data-parallel, are placed as in `fixed`.
        """
        places = zip(*(axis.tolist() for axis in widths.nonzero()), strict=True)
        return self.fixed.plan(
            [
                (table, dim, device)
                for item, device in places
                for table, dim in self.columns(item, int(widths[item, device]))
            ]
        )

    def widths(self, plan: Plan) -> IntArray:
        """Return the width of each item on each device, (I, D), in units of 4 columns, in a plan that keeps the
        constraints of the task.

        Raises:
            UserError: a table that is to be placed column-wise has another sharding type in the plan.
        """
        if not self.fixed.others:
            plan.check_layouts(
                lambda layout: layout.free,
                "this search starts from column-wise tables only",
                "Give a plan in which this table is column_wise",
            )
        units = np.zeros((len(self.task.tables), self.task.topology.num_devices), dtype=np.int64)
        for placement in plan.placements:
            units[placement.shard.table, placement.device] += placement.shard.dim // DIM_MULTIPLE
        rules = self.shards.rules
        widths = np.zeros(rules.allowed.shape, dtype=np.int64)
        by_first_table = grouped(range(len(self.items)), lambda number: self.items[number][0][0])
        for table, numbers in by_first_table.items():
            whole = [number for number in numbers if rules.max_shards[number] == 1]
            width = np.array([self.items[number][0][1] for number in whole])
            fits = rules.allowed[whole] & (units[table] == width[:, None])
            for row, device in _own_devices(fits):
                widths[whole[row], device] = self.shards.full_width[whole[row]]
                units[table, device] = 0
            for number in set(numbers).difference(whole):
                widths[number] = units[table]
        return widths

    def moved_bytes(self, before: IntArray, after: IntArray) -> IntArray:
        """Return the bytes of weights and optimizer state that move to other devices, for each item, (I,), if the
        widths change from `before` to `after`.

        Both widths are (I, D). Columns may be renumbered, so a device keeps the smaller of both widths of an item.
        """
        first, state_bytes = self.shards.first[:, None], self.shards.state_bytes
        moved: IntArray = np.maximum(state_bytes[first + after] - state_bytes[first + before], 0).sum(axis=1)
        return moved

    def device_loads(self, widths: IntArray) -> LoadSets:
        """Return the loads of D devices, as one set of loads for each device. A load is the work of a shard for the
        kernels of a device. The array `widths` (I, D) has the width of each item on each device, in units of 4 columns.
        """
        device, item = widths.T.nonzero()
        sets = _shard_loads(self.task, self.items, item, widths[item, device])
        return LoadSets(sets.loads, np.bincount(device[sets.owners], minlength=widths.shape[1]))


def narrowest_shards(space: SearchSpace) -> tuple[IntArray, IntArray, IntArray]:
    """Split each of I items into as many nearly equal shards as the rules allow, and return three arrays (I,).
    The first array has the width of the item's widest shard, in units of 4 columns. The second array has the bytes of
    this shard. The third array has the most free bytes of any device on which the item is allowed.
    """
    shards, rules, width = space.shards, space.shards.rules, space.shards.full_width
    narrowest = np.where(rules.max_shards > 1, -(-width // rules.max_shards), width)
    room: IntArray = np.where(rules.allowed, space.free_bytes, 0).max(axis=1)
    return narrowest, shards.size_bytes[shards.first + narrowest], room


def _rounded(units: FloatArray) -> FloatArray:
    """Round the traffic of each of n loads, `units` (n,), to the nearest multiple of 1/1024, but not below 1/1024.
    The traffic is the number of units of 4 columns that a device sends for each sample because of the load. A load is
    the work of a shard of one table. Sums of the rounded numbers are exact in any order.
    """
    return np.maximum(np.round(units * _FRACTIONS), 1) / _FRACTIONS


def row_loads(task: Task, items: Sequence[ItemTables], first: IntArray, full_width: IntArray) -> tuple[IntArray, Loads]:
    """Return the n loads of all possible shards of the items, as two values: the row of each load, (n,), and the loads.
    A load is the work of a shard for the kernels of a device. The row is the row of the load's shard in the table of
    all shards (`ShardTable`). `first` and `full_width` (I,) have the first row and the whole width of each item.

    A shard has several loads if the shard has several tables or is too wide for the kernels. Empty shards have no load.
    Tables that are kept together are never split, so only the rows of the whole items have loads.
    """
    widths = [
        np.arange(1 if len(tables) == 1 else width, width + 1)
        for tables, width in zip(items, full_width.tolist(), strict=True)
    ]
    item, width = np.repeat(np.arange(len(items)), [len(some) for some in widths]), np.concatenate(widths)
    sets = _shard_loads(task, items, item, width)
    return (first[item] + width)[sets.owners], sets.loads


def _shard_loads(task: Task, items: Sequence[ItemTables], item: IntArray, units: IntArray) -> LoadSets:
    """Return the loads of n shards of items, as n sets: the work of each shard for the kernels of a device.
    Shard k is a part of the item with the index `item[k]` in `items`, and is `units[k]` units of 4 columns wide.

    The set of a shard has several loads if the shard has several tables or is too wide for the kernels. A shard of
    tables that are kept together always has all columns of these tables.
    """
    table = np.array([table for tables in items for table, _ in tables])
    whole = LoadSets(task.loads.take(table), np.array([len(tables) for tables in items]))
    sets = whole.take(item)
    dims = np.where(sets.counts[sets.owners] > 1, sets.loads.dim, units[sets.owners] * DIM_MULTIPLE)
    return as_shards(LoadSets(sets.loads.columns(dims), sets.counts))


class _Item(NamedTuple):
    """An item (a table, a pinned shard, or several tables that are kept together), with the rules on where it may be
    placed and how it may be split.

    Attributes:
        tables: the tables in it.
        devices: the devices on which the item is allowed.
        min_shards, max_shards: number of devices over which the item is spread.
        min_width: smallest number of units on each of these devices.
    """

    tables: ItemTables
    devices: tuple[int, ...]
    min_shards: int
    max_shards: int
    min_width: int


def _rules(fixed: FixedLoad, items: Sequence[_Item]) -> PlacementRules:
    """Return the rules for I items as arrays: the devices on which each item is allowed, into how many shards and how
    narrow shards the item may be split, and the items that may not share a device with the item.

    An item is not allowed on a device if the fixed load has a table there that constraints keep apart from the item.
    """
    allowed = np.zeros((len(items), fixed.task.topology.num_devices), dtype=np.bool_)
    for index, item in enumerate(items):
        allowed[index, list(item.devices)] = True
    closed = fixed.closed_to()
    for index, item in enumerate(items):
        allowed[index] &= ~closed[[table for table, _ in item.tables]].any(axis=0)
    rivals = _rivals(fixed.task, items)
    return PlacementRules(
        allowed,
        np.array([item.min_shards for item in items], dtype=np.int64),
        np.array([item.max_shards for item in items], dtype=np.int64),
        np.array([item.min_width for item in items], dtype=np.int64),
        np.array([0, *map(len, rivals)], dtype=np.int64).cumsum(),
        np.array([rival for some in rivals for rival in sorted(some)], dtype=np.int64),
    )


def _own_devices(fits: BoolArray) -> list[tuple[int, int]]:
    """Assign each of n shards to a different device, and return the assignment as pairs (shard, device).
    The mask `fits` (n, D) is True if a shard fits on a device. As many shards as possible are assigned to a device on
    which the shard fits. Every other shard is assigned to some device that is left.
    """
    if not len(fits):
        return []
    from scipy.optimize import linear_sum_assignment  # slow to import: only where it is used

    return list(zip(*(its.tolist() for its in linear_sum_assignment(~fits)), strict=True))


def _items(task: Task, tables: IntArray) -> tuple[_Item, ...]:
    constraints = task.constraints
    index = {table.name: number for number, table in enumerate(task.tables)}
    items: list[_Item] = []
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
                items.append(_Item(whole, tuple(sorted(set.intersection(*allowed))), 1, 1, 1))
            continue
        left, shards = table.dim // DIM_MULTIPLE, constraints.pins.get(table.name, [])
        for shard in shards:
            devices = tuple(sorted(set(shard.devices).intersection(limits.devices)))
            items.append(_Item(((number, shard.dim // DIM_MULTIPLE),), devices, 1, 1, 1))
            left -= shard.dim // DIM_MULTIPLE
        if left:
            least, most = (count - len(shards) for count in (limits.min_shards, limits.max_shards))
            narrowest = limits.min_dim // DIM_MULTIPLE
            most = min(most, left // narrowest)
            items.append(_Item(((number, left),), limits.devices, max(least, 1), most, narrowest))
    return tuple(items)


def _rivals(task: Task, items: Sequence[_Item]) -> list[set[int]]:
    """Return, for each item (a table, a pinned shard, or several tables kept together), the set of rivals: the items
    that may not share a device with this item.

    Rivals are items of tables that are kept apart from the item's tables, and other items of the same table.
    """
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
