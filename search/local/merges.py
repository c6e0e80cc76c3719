"""Plans with fewer column shards: a shard joins another of its item, where that costs next to nothing."""

import numpy as np

from neuroshard.plumbing.arrays import IntArray
from neuroshard.stages.search.kernels.steps import ITEM_OUT, TARGET
from neuroshard.stages.search.local.local_search import CostedPlan, applied
from neuroshard.stages.search.local.local_steps import LocalSteps
from neuroshard.stages.search.space.catalog import Catalog


def merged(catalog: Catalog, local: LocalSteps, plan: CostedPlan, most_ms: float) -> CostedPlan:
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
