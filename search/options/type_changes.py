"""Changes of the sharding types in a finished plan. Tables get other sharding types, or the rows of a table move from
the devices of all hosts to the devices of one host.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from neuroshard.cost.loads import LoadSets
from neuroshard.layouts import LAYOUTS, place_column_wise
from neuroshard.models.simulator import Simulator
from neuroshard.plans.moves import moved_between
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import BoolArray, FloatArray, IntArray
from neuroshard.stages.search.local.starts import EvenLayouts
from neuroshard.stages.search.options.choices import Choices, TypeChoices, total_by_type
from neuroshard.stages.search.options.option_table import OptionTable
from neuroshard.stages.search.options.sharding_types import (
    COLUMNS,
    OTHERS,
    SpreadPlacements,
    allowed_types,
    rows_for_one_host,
)
from neuroshard.stages.search.space.fixed_load import device_memory
from neuroshard.words.form import FORMS, Call


@dataclass(frozen=True, eq=False)
class TypeChanges:
    """A plan, and the sharding types to which the tables of the plan may change.

    Attributes:
        start: the plan.
        choices: choices of sharding types; a table whose rows are on one host has no choice and stays there.
        now: (T,) sharding types of the plan; tables that stay count as column-wise.
    """

    start: Plan
    choices: OptionTable
    now: IntArray

    @classmethod
    def of(cls, start: Plan, simulator: Simulator, calls: Collection[Call]) -> "TypeChanges | None":
        """Return a `TypeChanges` of the plan `start`: the plan, and the sharding types to which each table may change.
        Return None if no table may change.

        A table may change to a sharding type only if the kernel calls in `calls` include a call of this type for the
        table. The plan must keep its limits.
        """
        task, stays = start.task, _on_hosts(start)
        now = np.where(stays, COLUMNS, [FORMS.index(form) for form in start.forms])
        allowed = allowed_types(task, calls)
        allowed[np.arange(len(now)), now] = True
        allowed[stays] = False
        if (allowed.sum(axis=1) < 2).all() or device_memory(task).min() < 1:
            return None
        choices = OptionTable(task, simulator, allowed, EvenLayouts(), task)
        return cls(start, choices, now)

    def within(self, most_bytes: int | None) -> Plan:
        """Change the sharding types of tables so that the estimated cost of the plan falls, and return the new plan.
        The changes move at most `most_bytes` bytes of weights and optimizer state to devices.

        If `most_bytes` is None, there is no limit. Tables that become column-wise are whole. The plan itself is
        returned if nothing helps, or if no changed plan keeps the task's limits.
        """
        bytes_of = _arriving(self.start, self.now, self.choices.allowed, self.choices.spread)

        def costs(choices: Choices) -> tuple[FloatArray, FloatArray]:
            """Return two estimated costs in ms for each of B choices of sharding types, as two arrays, (B,) each. Both
            costs are infinite if the choice moves more than `most_bytes` bytes to devices.

            `CostEstimates.costs` computes the estimates. The first estimate considers that a single shard may be more
            than an even share. The second estimate assumes that all devices share the work of the column-wise tables
            evenly.
            """
            cost, evenly = self.choices.estimates.costs(choices)
            beyond = total_by_type(choices, bytes_of) > (np.inf if most_bytes is None else most_bytes)
            return np.where(beyond, np.inf, cost), np.where(beyond, np.inf, evenly)

        path = self.choices.search_choices(self.now, costs)
        plans = (self._plan(types) for types in path[:0:-1])
        return next((plan for plan in plans if not plan.violations), self.start)

    def in_columns(self, most_ms: float) -> Plan:
        """Change as many row-wise and data-parallel tables as possible to table-wise, and return the new plan. The new
        plan keeps the limits of the task and costs at most `most_ms`. If no such plan is found, return the starting
        plan.

        The first are the tables whose other sharding type is estimated to gain least: 1, 2, 4, ... tables, until a plan
        costs too much; then the largest count is found by bisection.
        """
        choices, best = self.choices, self.start
        tables = np.flatnonzero((self.now != COLUMNS) & choices.allowed[:, COLUMNS])
        tables = np.unique(choices.leaders[tables])
        back = np.array([self._back(tables[place : place + 1]) for place in range(len(tables))])
        order = (
            tables[np.argsort(choices.estimates.costs(TypeChoices(back))[0], kind="stable")] if len(tables) else tables
        )
        fits, beyond = 0, len(order) + 1
        while beyond - fits > 1:
            count = min(max(2 * fits, 1), (fits + beyond) // 2)
            plan = self._plan(self._back(order[:count]))
            if plan.violations or choices.simulator.cost(plan.task, plan).total_ms > most_ms:
                beyond = count
            else:
                best, fits = plan, count
        return best

    def _back(self, tables: IntArray) -> IntArray:
        """Return the sharding types of all T tables, (T,), after a change of `tables` to column-wise. All other tables
        keep the sharding types of the starting plan.

        Tables that are kept together change together: `tables` has only the leader (`choices.leaders`) of such a group,
        and the whole group becomes column-wise.
        """
        return np.where(np.isin(self.choices.leaders, tables), COLUMNS, self.now)

    def _plan(self, types: IntArray) -> Plan:
        """Return a copy of the plan `start` in which the tables have the sharding types `types` (T,)."""
        changed, task = types != self.now, self.start.task
        kept = (placed for placed in self.start.placements if not changed[placed.shard.table])
        everywhere = np.flatnonzero(changed & (types != COLUMNS)).tolist()
        spread = (placed for table in everywhere for placed in self.choices.spread.placements(table, int(types[table])))
        columns = place_column_wise(task, self._devices_for(np.flatnonzero(changed & (types == COLUMNS))))
        return Plan(task, (*kept, *spread, *columns))

    @cached_property
    def _compute_ms(self) -> FloatArray:
        """The compute time of each device in the starting plan, (D,) ms."""
        return self.choices.simulator.cost(self.start.task, self.start).compute

    def _devices_for(self, tables: IntArray) -> Iterator[tuple[int, int, int]]:
        """Choose a device for each of `tables`, and yield one tuple for each table: the table, its number of columns,
        and the device. Each table goes as a whole to the allowed device that has the least compute time so far. The
        most expensive tables are first.
        """
        task, compute_ms = self.start.task, self._compute_ms.copy()
        alone_ms = self.choices.simulator.compute_for(task).predict(LoadSets.alone(task.loads.take(tables)))
        for place in np.argsort(-alone_ms, kind="stable"):
            table = int(tables[place])
            devices = np.array(task.limits[table].devices)
            device = int(devices[compute_ms[devices].argmin()])
            compute_ms[device] += alone_ms[place]
            yield table, task.tables[table].dim, device


def _on_hosts(plan: Plan) -> BoolArray:
    """Return a mask (T,): True for each of T tables whose rows are spread over the devices of one host (table_row_wise
    or grid_shard).
    """
    devices, each = plan.task.topology.num_devices, zip(plan.task.tables, plan.layouts, plan.by_table, strict=True)
    return np.array(
        [
            not layout.free and (len(its) < devices or any(placed.shard.dim < table.dim for placed in its))
            for table, layout, its in each
        ]
    )


def _arriving(start: Plan, now: IntArray, allowed: BoolArray, spread: SpreadPlacements) -> IntArray:
    """Return an upper bound of the bytes that devices receive if one table of the plan `start` changes its sharding
    type. The result, (T, F), has a number for each of T tables and each of F families of sharding types, such as
    row-wise, to which the table might change. The bytes are weights and optimizer state.

    `now` (T,) has the family of each table in the plan, and `allowed` (T, F) is True for the families to which a table
    may change. `spread` returns the placements of tables after a change to row-wise or data-parallel.

    The bytes are 0 if the table belongs to the family already, or may not change to row-wise or data-parallel. The
    bytes are also 0 if a data-parallel table becomes column-wise, because all devices have the table already.
    """
    task, arriving = start.task, np.zeros(allowed.shape, dtype=np.int64)
    in_blocks = np.array([layout.blocks for layout in LAYOUTS.values()])
    arriving[:, COLUMNS] = task.memory.state_bytes(task.loads) * in_blocks[now]  # else it is on all devices
    for form in OTHERS:
        to = allowed[:, form] & (now != form)
        kept = (placed for placed in start.placements if not to[placed.shard.table])
        changed = (placed for table in np.flatnonzero(to).tolist() for placed in spread.placements(table, form))
        arriving[:, form] = moved_between(start, Plan(task, (*kept, *changed)))
    return arriving


def move_rows_to_hosts(plan: Plan, simulator: Simulator, forced: Collection[int] = ()) -> Plan | None:
    """Move the rows of the most expensive row-wise tables from all devices to the devices of one host, and return the
    cheapest plan. The host may differ from table to table. The function makes plans with 1, 2, 4, ... moved tables, and
    with all tables moved.

    Tables go in order of their cost, each to the host whose tables compute least so far. All other tables stay in
    place. The plan itself is returned if no such plan is predicted to cost less, or if the models don't know the
    exchanges.

    Args:
        plan: its row-wise tables are on all devices.
        simulator: that predicts costs.
        forced: tables, by index, that must move; they are the first. None is returned if no plan with them moved fits.
    """
    tables = _movable(plan, simulator)
    if not set(forced).issubset(tables):
        return None
    if not tables:
        return plan
    task, hosts = plan.task, plan.task.topology.domains
    each = [plan.layouts[table].share(task.loads.take(np.array([table])), len(hosts[0])) for table in tables]
    block_ms = simulator.compute_for(task).predict(LoadSets.joined([LoadSets.alone(one) for one in each]))
    host_of: dict[int, int] = {}
    plans, busy_ms = [] if forced else [plan], np.zeros(len(hosts))
    optional = np.array([table not in forced for table in tables])
    for place in np.lexsort((-block_ms, optional)).tolist():
        host = int(busy_ms.argmin())
        busy_ms[host] += block_ms[place]
        host_of[tables[place]] = host
        counts = {len(forced), len(tables)}
        if len(host_of) >= len(forced) and (len(host_of) & (len(host_of) - 1) == 0 or len(host_of) in counts):
            moved = _moved(plan, host_of)
            plans += [moved] if moved.fits else []
    return plans[int(np.argmin([cost.total_ms for cost in simulator.costs(task, plans)]))] if plans else None


def _movable(plan: Plan, simulator: Simulator) -> list[int]:
    """Return the indices of the pooled row-wise tables whose rows may move from all devices to
    the devices of one host.
    """
    devices = plan.task.topology.num_devices
    tables = rows_for_one_host(plan.task, plan.layouts, simulator.models)
    return [table for table in tables if len(plan.by_table[table]) == devices]


def _moved(plan: Plan, host_of: Mapping[int, int]) -> Plan:
    """Move the rows of some tables from the devices of all hosts to the devices of one host, and return the new plan.
    `host_of` maps the index of each moved table to the number of the table's host. The moved tables stay row-wise.
    """
    hosts = plan.task.topology.domains
    kept = (placed for placed in plan.placements if placed.shard.table not in host_of)
    moved = (
        placed for table, host in host_of.items() for placed in plan.layouts[table].over(plan.task, table, hosts[host])
    )
    return Plan(plan.task, (*kept, *moved))
