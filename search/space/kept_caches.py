"""Plans whose caches fit, though the bounds that searches add up do not: their cached shards are pinned."""

from dataclasses import replace

import numpy as np

from neuroshard.plans.caches import of_mixed_widths, shared_caches
from neuroshard.plans.plan import Plan
from neuroshard.stages.search.space.fixed_load import FixedLoad, device_memory, placed_bytes
from neuroshard.stages.search.space.search_space import SearchSpace
from neuroshard.tasks.constraints import PinnedShard
from neuroshard.words.placement import TIERS, Tier


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


def pinned_in_caches(plan: Plan) -> Plan:
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
