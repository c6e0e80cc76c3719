"""Changes of the tier assignments of a plan's tables, with all shards on the same devices."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from neuroshard.cost.loads import LoadSets
from neuroshard.models import ComputeModel
from neuroshard.models.simulator import Simulator
from neuroshard.plans.caches import of_mixed_widths, shared_caches
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import IntArray
from neuroshard.stages.search.options.settings import SETTINGS
from neuroshard.stages.search.options.tiers import TierOptions
from neuroshard.stages.search.space.fixed_load import FixedLoad, device_memory, placed_bytes
from neuroshard.stages.search.space.search_space import SearchSpace
from neuroshard.tasks.constraints import PinnedShard, TableRule
from neuroshard.tasks.task import Task
from neuroshard.words.placement import TIERS, Placement, Tier, TierAssignment


def assign_tiers(task: Task, assignments: tuple[TierAssignment, ...]) -> Task:
    """Fix the tier assignment (T,) of each table of the task, so that searches keep it."""
    rules = [replace(rule, tiers=None, cache_load_factor=None) for rule in task.constraints.rules]
    rules += [
        TableRule.keeping(table.name, assignment) for table, assignment in zip(task.tables, assignments, strict=True)
    ]
    return replace(task, constraints=replace(task.constraints, rules=tuple(rules)))


def fix_tiers(plan: Plan) -> Plan:
    """Return the plan on a task that fixes every table's tier assignment in the plan.

    If the task's bounds of caches (`cache_widths`) are more than devices hold, cached shards are pinned to devices
    whose caches are as wide as theirs: then the bounds are the plan's own bytes.
    """
    kept = (
        plan
        if plan.tier_assignments == plan.task.tier_assignments
        else replace(plan, task=assign_tiers(plan.task, plan.tier_assignments))
    )
    return kept if within_bounds(kept) else pin_to_caches(kept)


def reassign_tiers(plan: Plan, task: Task, assignments: tuple[TierAssignment, ...]) -> Plan:
    """Return the plan's shards as a plan of `task`, of the same tables, with tier assignments `assignments` (T,)."""
    placements = (replace(placed, tier_assignment=assignments[placed.shard.table]) for placed in plan.placements)
    return Plan(task, tuple(placements))


def within_bounds(plan: Plan) -> bool:
    """Return True if devices have room for the plan by the bounds that searches add up."""
    if not len(of_mixed_widths(plan.task, shared_caches(plan.task))):
        return True
    each = zip(plan.by_table, plan.layouts, strict=True)
    others = [placed for its, layout in each if not layout.free for placed in its]
    columns = np.flatnonzero([layout.free for layout in plan.layouts])
    if not len(columns):
        return True
    space = SearchSpace.of(replace(FixedLoad.empty(plan.task, columns), others=tuple(others)))
    used = space.shards.device_bytes(space.widths(plan))
    if others:
        used = used + placed_bytes(plan.task, others)
    return bool((used <= device_memory(plan.task)).all())


def pin_to_caches(plan: Plan) -> Plan:
    """Pin the cached column shards of a plan to the devices whose caches of their kernel call are as wide.

    What the task's constraints already place or keep together stays as it is.
    """
    task, sets = plan.task, plan.device_loads
    widths, kernel = task.memory.cache_widths(sets).astype(int).tolist(), sets.loads.kernel.tolist()
    cached = (sets.loads.tier == TIERS.index(Tier.UVM_CACHING)).tolist()
    devices = dict[tuple[int, int], set[int]]()
    for placed, width, call, behind in zip(plan.by_device, widths, kernel, cached, strict=True):
        if behind:
            devices.setdefault((call, width), set()).add(placed.device)
    taken = task.constraints.pins.keys() | task.constraints.group_of.keys()
    pins = []
    for placed, width, call, behind in zip(plan.by_device, widths, kernel, cached, strict=True):
        name, limits = task.tables[placed.shard.table].name, task.limits[placed.shard.table]
        if behind and plan.layouts[placed.shard.table].free and name not in taken:
            alike = sorted(devices[call, width].intersection(limits.devices))
            pins.append(PinnedShard(name, placed.shard.dim, tuple(alike)))
    constraints = replace(task.constraints, pinned=(*task.constraints.pinned, *pins))
    return replace(plan, task=replace(task, constraints=constraints))


def improve_tiers(plan: Plan, options: TierOptions, model: ComputeModel) -> Plan:
    """Choose the cheapest tiers again for tables that are on one device alone, within their and free memory."""
    task, assignments = plan.task, list(plan.tier_assignments)
    devices: dict[int, list[int]] = {}
    for placed in plan.placements:
        devices.setdefault(placed.shard.table, []).append(placed.device)
    hosts = task.topology.host_bytes - np.array(plan.host_bytes)
    for device in range(task.topology.num_devices):
        own = np.array([table for table, its in devices.items() if set(its) == {device}], dtype=np.int64)
        if not len(own):
            continue
        now = np.array([options.tier_assignments.index(assignments[table]) for table in own.tolist()])
        its, rows = options.of_tables(own), np.arange(len(own))
        host = device // task.topology.host_size
        on_host = int(its.host_bytes[rows, now].sum())
        chosen = _cheaper_options(_Own(plan, device, own, now, its, model), int(hosts[host]) + on_host)
        if chosen is None:
            continue
        hosts[host] -= int(its.host_bytes[rows, chosen].sum()) - on_host
        for table, option in zip(own.tolist(), chosen.tolist(), strict=True):
            assignments[table] = options.tier_assignments[option]
    return reassign_tiers(plan, task, tuple(assignments))


class _Own(NamedTuple):
    """The tables that are on one device alone and may have other tier assignments.

    Attributes:
        plan: the plan that has the device.
        device: its number.
        tables: (t,) indices of the tables.
        now: (t,) the option that each table has now.
        options: the options of these tables.
        model: costs the options.
    """

    plan: Plan
    device: int
    tables: IntArray
    now: IntArray
    options: TierOptions
    model: ComputeModel

    @property
    def others_bytes(self) -> int:
        """Bytes of the device's memory that all other shards on the device take by themselves."""
        here = self.plan.device_loads.take(np.array([self.device])).loads
        of_others = ~np.isin([placed.shard.table for placed in self._placed], self.tables)
        its = LoadSets(here.take(np.flatnonzero(of_others)), np.array([int(of_others.sum())]))
        return int(self.plan.task.memory.bytes_with_caches(its).sum())

    @property
    def _placed(self) -> list[Placement]:
        return [placed for placed in self.plan.by_device if placed.device == self.device]

    def device_bytes(self, chosen: IntArray) -> int:
        """Compute the bytes of the device with tier options `chosen` (t,) for its own tables."""
        assignments = list(self.plan.tier_assignments)
        for table, option in zip(self.tables.tolist(), chosen.tolist(), strict=True):
            assignments[table] = self.options.tier_assignments[option]
        here = self.plan.device_loads.take(np.array([self.device]))
        there = LoadSets(here.loads.at([assignments[placed.shard.table] for placed in self._placed]), here.counts)
        return int(self.plan.task.memory.bytes_with_caches(there).sum())

    def narrow(self) -> Iterator[TierOptions]:
        """Yield the options with caches of each width that only tables up to that width may have."""
        task = self.plan.task
        tables = tuple(task.tables[table] for table in self.tables.tolist())
        dims = np.array([table.dim for table in tables])
        alone = Task(tables, task.topology, task.batch_size, task.memory)
        for width in np.unique(dims)[::-1].tolist() if task.memory.shares_caches else ():
            parts = (dims <= width).astype(np.int64)
            yield self.options.charged(alone, np.full(len(dims), float(width)), parts, self.model)


def _cheaper_options(own: _Own, host_bytes: int) -> IntArray | None:
    """Choose tier options (t,) for the tables of one device that cost less than the present ones; None if none do.

    The first choice is made as if no table widened the caches of other tables; if the device lacks memory for this
    choice, further choices have caches of one width.
    """
    rows, memory = np.arange(len(own.tables)), int(device_memory(own.plan.task)[own.device])
    room = memory - own.others_bytes

    def cheaper(options: TierOptions) -> IntArray | None:
        """Choose tier options that cost less than the present ones and fit."""
        chosen = options.cheapest(room, host_bytes)
        if chosen is None or options.cost_ms[rows, chosen].sum() >= own.options.cost_ms[rows, own.now].sum():
            return None
        return chosen

    chosen = cheaper(own.options)
    if chosen is None or own.device_bytes(chosen) <= memory:
        return chosen
    narrow = [its for options in own.narrow() if (its := cheaper(options)) is not None]
    fitting = [its for its in narrow if own.device_bytes(its) <= memory]
    return min(fitting, key=lambda its: float(own.options.cost_ms[rows, its].sum()), default=None)


def grow_caches(plan: Plan, options: TierOptions, simulator: Simulator) -> Plan:
    """Grow the caches of tables that are on several devices, or move the tables to device memory, if there is room.

    The most expensive tables go first, each to the cheapest option that fits and lowers the predicted cost.
    """
    now = np.array([options.tier_assignments.index(assignment) for assignment in plan.tier_assignments])
    cost_ms = options.cost_ms[np.arange(len(now)), now]
    spread = [t for t in np.argsort(-cost_ms, kind="stable").tolist() if len(plan.by_table[t]) > 1 and now[t] > 0]
    best_ms = simulator.cost(plan.task, plan).total_ms
    for table in spread[: SETTINGS.grown_caches]:
        for option in np.argsort(options.cost_ms[table], kind="stable").tolist():
            if options.cost_ms[table, option] >= options.cost_ms[table, now[table]]:
                break
            assignments = list(plan.tier_assignments)
            assignments[table] = options.tier_assignments[option]
            larger = reassign_tiers(plan, plan.task, tuple(assignments))
            if larger.fits and (ms := simulator.cost(plan.task, larger).total_ms) < best_ms:
                plan, best_ms = larger, ms
                break
    return plan


def unify_tiers(plan: Plan, options: TierOptions, simulator: Simulator) -> Plan:
    """Give the tables that are on one device alone the tier option of one of them, where that lowers the plan cost.

    A device makes a kernel call for every tier in use, and a call has a cost of its own.
    """
    best_ms = simulator.cost(plan.task, plan).total_ms
    for device in range(plan.task.topology.num_devices):
        own = [t for t, placed in enumerate(plan.by_table) if {one.device for one in placed} == {device}]
        present = dict.fromkeys(plan.tier_assignments[table] for table in own)
        for assignment in present if len(present) > 1 else ():
            option, assignments = options.tier_assignments.index(assignment), list(plan.tier_assignments)
            for table in own:
                if np.isfinite(options.cost_ms[table, option]):
                    assignments[table] = assignment
            unified = reassign_tiers(plan, plan.task, tuple(assignments))
            if unified.fits and (ms := simulator.cost(plan.task, unified).total_ms) < best_ms:
                plan, best_ms = unified, ms
    return plan
