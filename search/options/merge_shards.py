"""Simplifies a finished plan by changes that hardly raise its cost. Afterwards the plan has fewer shards, or more free
memory on the fullest device.
"""

from collections.abc import Collection, Iterator

import numpy as np

from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import IntArray
from neuroshard.stages.search.kernels.steps import ITEM_OUT, TARGET
from neuroshard.stages.search.local.local_search import CostedPlan, LocalSearch, applied
from neuroshard.stages.search.options.spread_memory import spread_memory
from neuroshard.stages.search.options.tier_changes import fix_tiers
from neuroshard.stages.search.options.type_changes import TypeChanges
from neuroshard.stages.search.space.costed_space import CostedSpace
from neuroshard.stages.search.space.fixed_load import FixedLoad
from neuroshard.words.form import Call


def merge_shards(
    plan: Plan, simulator: Simulator, calls: Collection[Call], tolerance: float, fewer: Plan | None = None
) -> Plan:
    """Simplify a finished plan: return a plan for the same task that costs hardly more, and has fewer shards or more
    free memory on the fullest device. Return `plan` itself if no such plan is found.

    The plan costs at most `tolerance` more, relative. Row-wise and data-parallel tables become table-wise, or the plan
    `fewer`, which has fewer shards, replaces the plan; then shards of a table are merged, the cheapest merges first;
    then shards leave the fullest device. Tiers stay the same, and tables have sharding types with kernel `calls`. The
    plan itself is returned if nothing is within the tolerance.
    """
    if not tolerance:
        return plan
    start = fix_tiers(plan)
    before = simulator.cost(start.task, start)
    most_ms = before.total_ms * (1 + tolerance)
    found = _fewer_types(start, simulator, calls, most_ms)
    if fewer is not None and fewer is not plan and simulator.cost(fewer.task, fewer).total_ms <= most_ms:
        found = min(found, fix_tiers(fewer), key=lambda candidate: len(candidate.placements))
    found_ms = before.total_ms if found is start else simulator.cost(found.task, found).total_ms
    for changed in _changed_columns(found, simulator, most_ms - found_ms):
        other = changed if changed.task is plan.task else Plan(plan.task, changed.placements)
        after = simulator.cost(plan.task, other)
        within = after.total_ms <= most_ms and after.likely_ms <= before.likely_ms * (1 + tolerance)
        if within and not other.violations:
            return plan if other == plan else other
    return plan


def _fewer_types(start: Plan, simulator: Simulator, calls: Collection[Call], most_ms: float) -> Plan:
    """Change as many row-wise and data-parallel tables of the plan `start` to table-wise as possible, and return the
    new plan. The new plan costs at most `most_ms`.
    """
    changes = TypeChanges.of(start, simulator, calls) if not start.all_column_wise else None
    return start if changes is None else changes.in_columns(most_ms)


def _changed_columns(plan: Plan, simulator: Simulator, extra_ms: float) -> Iterator[Plan]:
    """Yield plans that are made from `plan` by merging column-wise shards and then moving shards away from the fullest
    device. The plan with the most free memory on the fullest device comes first, and `plan` itself comes last. Each
    plan costs at most `extra_ms` more than `plan`.
    """
    fixed = FixedLoad.of_plan(plan, simulator.compute_for(plan.task))
    if len(fixed.column_wise):
        space = CostedSpace.checked(fixed, simulator)
        widths = space.widths(plan)
        local = LocalSearch(space, widths)
        begun = local.costed(widths)
        most_ms = begun.cost_ms + extra_ms  # of the parts of a step that local search knows
        merged = _merged(space, local, begun, most_ms)
        spread = spread_memory(space, local, merged, most_ms)
        yield from (space.plan(one.widths) for one in reversed(spread))
    yield plan


def _merged(space: CostedSpace, local: LocalSearch, plan: CostedPlan, most_ms: float) -> CostedPlan:
    """Merge column-wise shards of the same table, the cheapest merges first, as long as the plan costs at most
    `most_ms`. Return the plan after these merges.

    The narrowest shard of an item may join any other shard of the item. The plan itself is returned if no merge is
    possible.
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
    """Apply several merges of shards to `plan` together, and return the new plan, which costs at most `most_ms`. Each
    of K rows of `steps` is a merge. The function tries all K merges, then only the first K / 2, the first K / 4, and so
    on, until the new plan is cheap enough. Return None if even the first merge alone costs too much.

    The steps are independent: no two of them concern the same item or the same target device.
    """
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
    """Return the merges of `steps` (K, 5) that can be applied together, as k rows, (k, 5). Each row is a merge, as
    `_merges` returns it. The function selects merges from the first row to the last. A merge is left out if an already
    selected merge has the same item (such as a table) or the same target device.
    """
    items, targets, kept = set[int](), set[int](), list[bool]()
    for item, target in steps[:, [ITEM_OUT, TARGET]].tolist():
        kept.append(item not in items and target not in targets)
        if kept[-1]:
            items.add(item)
            targets.add(target)
    return steps[np.array(kept, dtype=np.bool_)]


def _merges(space: CostedSpace, widths: IntArray) -> IntArray:
    """Return all K possible merges of shards as rows, (K, 5). A merge moves the narrowest shard of an item (such as a
    table) to another device, where the shard joins another shard of the item. This device must have enough free memory.
    A row is (source device, target device, item, moved units of 4 columns, -1); -1 says that no item moves back.

    Rows have the same form as the steps of local search.
    """
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
