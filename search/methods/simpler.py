"""Plans with fewer shards than one that was found, at next to no cost: fewer kernel calls, and less to go wrong."""

from collections.abc import Collection

import numpy as np

from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import IntArray
from neuroshard.stages.search.kernels.steps import ITEM_OUT, TARGET
from neuroshard.stages.search.local.local_search import CostedPlan, applied
from neuroshard.stages.search.local.plain import LocalSteps, local_steps
from neuroshard.stages.search.methods.form_changes import FormChanges
from neuroshard.stages.search.space.base import Base
from neuroshard.stages.search.space.catalog import Catalog
from neuroshard.stages.search.space.homes import settled
from neuroshard.words.form import Call


def simpler(plan: Plan, simulator: Simulator, calls: Collection[Call], tolerance: float) -> Plan:
    """A plan of the same task and limits with fewer shards that costs at most `tolerance` more, relative.

    Tables in rows and copies go back to columns, then shards of a table join each other: what costs least first, by
    prediction. Tables lie in the same memories, and in forms that there are `calls` of. The plan as it is where nothing
    of that is within the tolerance.
    """
    if not tolerance:
        return plan
    start = settled(plan)
    before = simulator.cost(start.task, start)
    most_ms = before.total_ms * (1 + tolerance)
    changes = FormChanges.of(start, simulator, calls) if not start.in_columns else None
    found = start if changes is None else changes.in_columns(most_ms)
    found = _with_fewer_shards(found, simulator, most_ms)
    if len(found.placements) >= len(start.placements):
        return plan
    found = found if found.task is plan.task else Plan(plan.task, found.placements)
    after = simulator.cost(plan.task, found)
    within = after.total_ms <= most_ms and after.likely_ms <= before.likely_ms * (1 + tolerance)
    return found if within and not found.violations else plan


def _with_fewer_shards(plan: Plan, simulator: Simulator, most_ms: float) -> Plan:
    """Merge shards of tables in columns while the plan costs no more than `most_ms`."""
    base = Base.of_plan(plan, simulator.models_for(plan.task).compute)
    in_columns = set(base.in_columns.tolist())
    if sum(placed.shard.table in in_columns for placed in plan.placements) == len(in_columns):
        return plan
    catalog = Catalog.checked(base, simulator)
    held = catalog.items.held(plan)
    local = local_steps(catalog, held, None)
    return catalog.items.plan(_merged(catalog, local, local.costed(held), most_ms).held)


def _merged(catalog: Catalog, local: LocalSteps, plan: CostedPlan, most_ms: float) -> CostedPlan:
    """The plan with fewer shards, the cheapest merges first, as long as it costs no more than `most_ms`.

    Every item's narrowest shard may join any other of it. The plan itself if none may.
    """
    while len(steps := _merges(catalog, plan.held)):
        total_ms = local.totals_ms(plan, steps)
        order = np.argsort(total_ms, kind="stable")
        likely = _independent(steps[order[total_ms[order] <= most_ms]])
        fewer = _most_at_once(local, plan, likely, most_ms)
        if fewer is None:
            break
        plan = fewer
    return plan


def _most_at_once(local: LocalSteps, plan: CostedPlan, steps: IntArray, most_ms: float) -> CostedPlan | None:
    """The plan after the first of some independent steps (K, 5): after all, or half of them, or a quarter, ..."""
    count = len(steps)
    while count:
        held = plan.held
        for step in steps[:count]:
            held = applied(held, step)
        if (after := local.costed(held)).cost_ms <= most_ms:
            return after
        count //= 2
    return None


def _independent(steps: IntArray) -> IntArray:
    """(k, 5) those of some steps (K, 5) whose items and whose targets no earlier one has: all may be taken at once."""
    items, targets, kept = set[int](), set[int](), list[bool]()
    for item, target in steps[:, [ITEM_OUT, TARGET]].tolist():
        kept.append(item not in items and target not in targets)
        if kept[-1]:
            items.add(item)
            targets.add(target)
    independent: IntArray = steps[np.array(kept, dtype=np.bool_)]
    return independent


def _merges(catalog: Catalog, held: IntArray) -> IntArray:
    """(K, 5) steps that move all of an item's narrowest shard to a device that holds another and has room for both."""
    first, size_bytes = catalog.first[:, None], catalog.size_bytes
    free = catalog.items.free_bytes - size_bytes[first + held].sum(axis=0)
    item = np.flatnonzero((held > 0).sum(axis=1) > np.maximum(catalog.items.limits.min_shards, 1))
    source = np.where(held[item] > 0, held[item], np.iinfo(np.int64).max).argmin(axis=1)
    units = held[item, source]
    more = np.minimum(held[item] + units[:, None], catalog.full_width[item][:, None])
    grows = size_bytes[first[item] + more] - size_bytes[first[item] + held[item]]
    may = (held[item] > 0) & (np.arange(held.shape[1]) != source[:, None]) & (grows <= free)
    which, target = may.nonzero()
    none = np.full(len(which), -1)
    return np.stack([source[which], target, item[which], units[which], none], axis=1)
