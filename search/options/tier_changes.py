"""Changes of the tiers of a plan's tables (device memory, cached host memory or host memory); all shards
stay on the same devices.
"""

from dataclasses import replace

import numpy as np

from neuroshard.models.simulator import Simulator
from neuroshard.plans.caches import of_mixed_widths, shared_caches
from neuroshard.plans.plan import Plan
from neuroshard.stages.search.options.settings import SETTINGS
from neuroshard.stages.search.options.tiers import TierOptions
from neuroshard.stages.search.space.fixed_load import FixedLoad, device_memory, placed_bytes
from neuroshard.stages.search.space.search_space import SearchSpace
from neuroshard.tasks.constraints import PinnedShard, TableRule
from neuroshard.tasks.task import Task
from neuroshard.words.placement import TIERS, Tier, TierAssignment


def assign_tiers(task: Task, assignments: tuple[TierAssignment, ...]) -> Task:
    """Return the task with rules that fix the tier of every table to `assignments` (T,), so that
    searches keep these tiers.
    """
    rules = [replace(rule, tiers=None, cache_load_factor=None) for rule in task.constraints.rules]
    rules += [
        TableRule.keeping(table.name, assignment) for table, assignment in zip(task.tables, assignments, strict=True)
    ]
    return replace(task, constraints=replace(task.constraints, rules=tuple(rules)))


def fix_tiers(plan: Plan) -> Plan:
    """Return the plan with a changed task, whose constraints keep every table in the memory tier that the table has in
    the plan. Searches for the changed task then keep these tiers. No such constraints are added if
    `Task.tier_assignments` already has the tiers of the plan.

    A search may count more bytes for caches than the plan takes (`within_bounds`). If devices do not have this much
    memory, cached shards are also pinned to devices (`pin_to_caches`), so that a search counts the plan's own bytes.
    """
    kept = (
        plan
        if plan.tier_assignments == plan.task.tier_assignments
        else replace(plan, task=assign_tiers(plan.task, plan.tier_assignments))
    )
    return kept if within_bounds(kept) else pin_to_caches(kept)


def reassign_tiers(plan: Plan, task: Task, assignments: tuple[TierAssignment, ...]) -> Plan:
    """Return a plan of `task` with the shards of `plan` on the same devices, but with other tiers. `assignments` (T,)
    has the new tier assignment of each of T tables. `task` must have the same tables as the task of `plan`.
    """
    placements = (replace(placed, tier_assignment=assignments[placed.shard.table]) for placed in plan.placements)
    return Plan(task, tuple(placements))


def within_bounds(plan: Plan) -> bool:
    """Return True if the bytes that a search counts for the plan fit in device memory. A search may count more bytes
    than the plan takes, so the result may be False for a plan that fits. The function assumes that the bytes of the
    plan itself fit.

    FBGEMM keeps the rows of cached tables in one kernel call as wide as the widest of the tables. The search counts
    this width for every cached table that may share a call with a wider table, even if the plan puts the wider table
    on another device.
    """
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
    """Return the plan with a changed task, whose constraints pin cached column-wise shards to devices. With these
    constraints, searches keep the caches as narrow as in the plan. The allowed devices of a shard are the devices on
    which the plan has a cache of the same width for the same kernel.

    Tables that the constraints of the task already pin or keep together stay as they are.
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


def grow_caches(plan: Plan, options: TierOptions, simulator: Simulator) -> Plan:
    """Return the plan with larger caches, or with tables moved from host to device memory, if there is room.

    The most expensive tables go first, each to the cheapest option that fits and lowers the predicted cost.
    """
    now = np.array([options.tier_assignments.index(assignment) for assignment in plan.tier_assignments])
    cost_ms = options.cost_ms[np.arange(len(now)), now]
    on_hosts = [table for table in np.argsort(-cost_ms, kind="stable").tolist() if now[table] > 0]
    best_ms = simulator.cost(plan.task, plan).total_ms
    for table in on_hosts[: SETTINGS.grown_caches]:
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
    """Move all tables on a device to the same memory tier if this lowers the predicted cost of the plan, and return the
    new plan. Each device is tried in turn, with each tier that tables on the device have. A table stays in the current
    tier if the table may not have the new tier, or if other devices have shards of the table too.

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
