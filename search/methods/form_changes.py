"""Plans near another plan: with other sharding types, rows on one host instead of all hosts, or fewer shards."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from neuroshard.cost.loads import LoadSets
from neuroshard.layouts import LAYOUTS, in_columns
from neuroshard.layouts.sharding_types import rows_on_one_host
from neuroshard.models.simulator import Simulator
from neuroshard.plans.moves import moved_between
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import BoolArray, FloatArray, IntArray
from neuroshard.stages.search.kernels.steps import ITEM_OUT, TARGET
from neuroshard.stages.search.local.local_search import CostedPlan, LocalSearch, applied
from neuroshard.stages.search.methods.acceptance import cheapest
from neuroshard.stages.search.methods.form_choices import FormChoices
from neuroshard.stages.search.methods.improved import EvenLayouts
from neuroshard.stages.search.space.costed_space import CostedSpace
from neuroshard.stages.search.space.fixed_load import FixedLoad, device_memory
from neuroshard.stages.search.space.forms import COLUMNS, OTHERS, Choices, Forms, Spread, allowed_forms, total_by_form
from neuroshard.stages.search.space.homes import settled
from neuroshard.words.form import FORMS, Call


@dataclass(frozen=True, eq=False)
class FormChanges:
    """The sharding types that a plan's tables may change to.

    Attributes:
        start: the plan.
        choices: choices of sharding types; a table whose rows are on one host has no choice and stays there.
        now: (T,) sharding types of the plan; tables that stay count as column-wise.
    """

    start: Plan
    choices: FormChoices
    now: IntArray

    @classmethod
    def of(cls, start: Plan, simulator: Simulator, calls: Collection[Call]) -> "FormChanges | None":
        """Prepare changes to sharding types that have `calls`, for a plan within its limits; None if there are none."""
        task, stays = start.task, _on_hosts(start)
        now = np.where(stays, COLUMNS, [FORMS.index(form) for form in start.forms])
        allowed = allowed_forms(task, calls)
        allowed[np.arange(len(now)), now] = True
        allowed[stays] = False
        if (allowed.sum(axis=1) < 2).all() or device_memory(task).min() < 1:
            return None
        choices = FormChoices.of(task, simulator, allowed, EvenLayouts())
        return cls(start, choices, now)

    def within(self, most_bytes: int | None) -> Plan:
        """Return the plan after the changes that are estimated to help most and move at most `most_bytes` to devices.

        None sets no limit. Tables that become column-wise are whole. The plan itself is returned if nothing helps, or
        if no changed plan keeps the task's limits.
        """
        bytes_of = _arriving(self.start, self.now, self.choices.allowed, self.choices.spread)

        def costs(choices: Choices) -> tuple[FloatArray, FloatArray]:
            """Estimate choices; infinite if more bytes than `most_bytes` would arrive."""
            cost, evenly = self.choices.estimates.costs(choices)
            beyond = total_by_form(choices, bytes_of) > (np.inf if most_bytes is None else most_bytes)
            return np.where(beyond, np.inf, cost), np.where(beyond, np.inf, evenly)

        path = self.choices.descent(self.now, costs)
        plans = (self._plan(forms) for forms in path[:0:-1])
        return next((plan for plan in plans if not plan.violations), self.start)

    def in_columns(self, most_ms: float) -> Plan:
        """Make as many tables table-wise as keep the plan's cost at or below `most_ms` and keep its limits.

        The first are the tables whose other sharding type is estimated to gain least: 1, 2, 4, ... tables, until a plan
        costs too much; then the largest count is found by bisection.
        """
        choices, best = self.choices, self.start
        tables = np.flatnonzero((self.now != COLUMNS) & choices.allowed[:, COLUMNS])
        tables = np.unique(choices.leaders[tables])
        back = np.array([self._back(tables[place : place + 1]) for place in range(len(tables))])
        order = tables[np.argsort(choices.estimates.costs(Forms(back))[0], kind="stable")] if len(tables) else tables
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
        """Return sharding types (T,) with some tables, and those kept together with them, column-wise."""
        return np.where(np.isin(self.choices.leaders, tables), COLUMNS, self.now)

    def _plan(self, forms: IntArray) -> Plan:
        """Make the plan with sharding types `forms` (T,)."""
        changed, task = forms != self.now, self.start.task
        kept = (placed for placed in self.start.placements if not changed[placed.shard.table])
        everywhere = np.flatnonzero(changed & (forms != COLUMNS)).tolist()
        spread = (placed for table in everywhere for placed in self.choices.spread.placements(table, int(forms[table])))
        columns = in_columns(task, self._homes(np.flatnonzero(changed & (forms == COLUMNS))))
        return Plan(task, (*kept, *spread, *columns))

    @cached_property
    def _compute_ms(self) -> FloatArray:
        """Compute cost of each device in the starting plan, ms, (D,)."""
        return self.choices.simulator.cost(self.start.task, self.start).compute

    def _homes(self, tables: IntArray) -> Iterator[tuple[int, int, int]]:
        """Yield (table, columns, device) of whole tables, the most expensive first, each on the least loaded device."""
        task, compute_ms = self.start.task, self._compute_ms.copy()
        alone_ms = self.choices.simulator.compute_for(task).predict(LoadSets.alone(task.loads.take(tables)))
        for place in np.argsort(-alone_ms, kind="stable"):
            table = int(tables[place])
            devices = np.array(task.limits[table].devices)
            device = int(devices[compute_ms[devices].argmin()])
            compute_ms[device] += alone_ms[place]
            yield table, task.tables[table].dim, device


def _on_hosts(plan: Plan) -> BoolArray:
    """Return which tables have rows on the devices of one host (table_row_wise, grid_shard), (T,)."""
    devices, each = plan.task.topology.num_devices, zip(plan.task.tables, plan.layouts, plan.by_table, strict=True)
    return np.array(
        [
            not layout.free and (len(its) < devices or any(placed.shard.dim < table.dim for placed in its))
            for table, layout, its in each
        ]
    )


def _arriving(start: Plan, now: IntArray, allowed: BoolArray, spread: Spread) -> IntArray:
    """Count the bytes moved to devices, at most, if each table changes to each sharding type, (T, F).

    0 if the table has the sharding type or may not have it.
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


def rows_on_hosts(plan: Plan, simulator: Simulator, forced: Collection[int] = ()) -> Plan | None:
    """Move the 1, 2, 4, ... most expensive row-wise tables, or all, to one host each, where that costs least.

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
    homes: dict[int, int] = {}
    plans, busy_ms = [] if forced else [plan], np.zeros(len(hosts))
    optional = np.array([table not in forced for table in tables])
    for place in np.lexsort((-block_ms, optional)).tolist():
        home = int(busy_ms.argmin())
        busy_ms[home] += block_ms[place]
        homes[tables[place]] = home
        counts = {len(forced), len(tables)}
        if len(homes) >= len(forced) and (len(homes) & (len(homes) - 1) == 0 or len(homes) in counts):
            moved = _moved(plan, homes)
            plans += [moved] if moved.fits else []
    return plans[cheapest(simulator.costs(task, plans))] if plans else None


def _movable(plan: Plan, simulator: Simulator) -> list[int]:
    """List the pooled row-wise tables, by their index, whose rows may be on one host instead of all devices."""
    task, models = plan.task, simulator.models
    host, devices = task.topology.domain_size, task.topology.num_devices
    if not 1 < host < devices:
        return []
    known = models.forward.collectives & models.backward.collectives
    bound = {name for group in (*task.constraints.together, *task.constraints.apart) for name in group}
    return [
        index
        for index, (table, layout, blocks) in enumerate(zip(task.tables, plan.layouts, plan.by_table, strict=True))
        if layout.host_exchanges
        and table.pooled  # the rows of sequence tables are on all devices
        and len(blocks) == devices
        and table.name not in bound
        and known.issuperset(layout.host_exchanges)
        and layout.fits(table.rows, host)
        and task.limits[index].min_blocks <= host
        and rows_on_one_host(task.limits[index].sharding_types)
    ]


def _moved(plan: Plan, homes: Mapping[int, int]) -> Plan:
    """Make some of a plan's tables, by their index, row-wise on the devices of one host, by its number."""
    hosts = plan.task.topology.domains
    kept = (placed for placed in plan.placements if placed.shard.table not in homes)
    moved = (
        placed for table, home in homes.items() for placed in plan.layouts[table].over(plan.task, table, hosts[home])
    )
    return Plan(plan.task, (*kept, *moved))


def simpler(
    plan: Plan, simulator: Simulator, calls: Collection[Call], tolerance: float, fewer: Plan | None = None
) -> Plan:
    """Find a plan of the same task and limits with fewer shards that costs at most `tolerance` more, relative.

    Row-wise and data-parallel tables become table-wise, or the plan `fewer`, which has fewer shards, replaces the plan;
    then shards of a table are merged, the cheapest merges first. Tiers stay the same, and tables have sharding types
    with kernel `calls`. The plan itself is returned if nothing is within the tolerance.
    """
    if not tolerance:
        return plan
    start = settled(plan)
    before = simulator.cost(start.task, start)
    most_ms = before.total_ms * (1 + tolerance)
    changes = FormChanges.of(start, simulator, calls) if not start.in_columns else None
    found = start if changes is None else changes.in_columns(most_ms)
    if fewer is not None and simulator.cost(fewer.task, fewer).total_ms <= most_ms:
        found = min(found, settled(fewer), key=lambda one: len(one.placements))
    found = _with_fewer_shards(found, simulator, most_ms)
    if len(found.placements) >= len(start.placements):
        return plan
    found = found if found.task is plan.task else Plan(plan.task, found.placements)
    after = simulator.cost(plan.task, found)
    within = after.total_ms <= most_ms and after.likely_ms <= before.likely_ms * (1 + tolerance)
    return found if within and not found.violations else plan


def _with_fewer_shards(plan: Plan, simulator: Simulator, most_ms: float) -> Plan:
    """Merge shards of column-wise tables while the plan costs no more than `most_ms`."""
    fixed = FixedLoad.of_plan(plan, simulator.compute_for(plan.task))
    in_columns = set(fixed.column_wise.tolist())
    if sum(placed.shard.table in in_columns for placed in plan.placements) == len(in_columns):
        return plan
    space = CostedSpace.checked(fixed, simulator)
    widths = space.widths(plan)
    local = LocalSearch(space, widths)
    begun = local.costed(widths)
    other_ms = simulator.cost(plan.task, plan).total_ms - begun.cost_ms  # of parts that local search doesn't know
    return space.plan(_merged(space, local, begun, most_ms - other_ms).widths)


def _merged(space: CostedSpace, local: LocalSearch, plan: CostedPlan, most_ms: float) -> CostedPlan:
    """Merge shards, the cheapest merges first, as long as the plan costs no more than `most_ms`.

    Every item's narrowest shard may join any other of it. The plan itself if none may.
    """
    while len(steps := _merges(space, plan.widths)):
        total_ms = local.totals_ms(plan, steps)
        order = np.argsort(total_ms, kind="stable")
        likely = _independent(steps[order[total_ms[order] <= most_ms]])
        fewer = _most_at_once(local, plan, likely, most_ms)
        if fewer is None:
            break
        plan = fewer
    return plan


def _most_at_once(local: LocalSearch, plan: CostedPlan, steps: IntArray, most_ms: float) -> CostedPlan | None:
    """Take as many of some independent steps (K, 5) as `most_ms` lets: all, or the first half, or a quarter, ..."""
    count = len(steps)
    while count:
        widths = plan.widths
        for step in steps[:count]:
            widths = applied(widths, step)
        if (after := local.costed(widths)).cost_ms <= most_ms:
            return after
        count //= 2
    return None


def _independent(steps: IntArray) -> IntArray:
    """Choose steps (k, 5), of (K, 5), whose items and targets no earlier one of them has: all may be taken at once."""
    items, targets, kept = set[int](), set[int](), list[bool]()
    for item, target in steps[:, [ITEM_OUT, TARGET]].tolist():
        kept.append(item not in items and target not in targets)
        if kept[-1]:
            items.add(item)
            targets.add(target)
    return steps[np.array(kept, dtype=np.bool_)]


def _merges(space: CostedSpace, widths: IntArray) -> IntArray:
    """List steps (K, 5) that move an item's narrowest shard to a device that holds another and has room for both."""
    first, size_bytes = space.shards.first[:, None], space.shards.size_bytes
    free = space.free_bytes - space.shards.device_bytes(widths)
    item = np.flatnonzero((widths > 0).sum(axis=1) > np.maximum(space.shards.rules.min_shards, 1))
    source = np.where(widths[item] > 0, widths[item], np.iinfo(np.int64).max).argmin(axis=1)
    units = widths[item, source]
    more = np.minimum(widths[item] + units[:, None], space.shards.full_width[item][:, None])
    grows = size_bytes[first[item] + more] - size_bytes[first[item] + widths[item]]
    may = (widths[item] > 0) & (np.arange(widths.shape[1]) != source[:, None]) & (grows <= free)
    which, target = may.nonzero()
    none = np.full(len(which), -1)
    return np.stack([source[which], target, item[which], units[which], none], axis=1)
