"""Plans that hardware is to decide between: they differ, and are predicted to cost about as little as the one found."""

from collections.abc import Iterable, Sequence
from itertools import islice, zip_longest

import numpy as np

from neuroshard.models.simulator import Simulator
from neuroshard.plans.moves import layout_key
from neuroshard.plans.plan import Plan


def in_turns(plan: Plan, groups: Sequence[Iterable[Plan]], simulator: Simulator, count: int) -> tuple[Plan, ...]:
    """`plan`, then the first of each group, then the second ones, and so on: `count` at most, no two of them alike.

    Those that break their task's limits, or are predicted to cost more than `plan` by more than both margins together,
    are left out.
    """
    found = {layout_key(plan): plan}
    every = (one for turn in zip_longest(*groups) for one in turn if one is not None)
    for one in every:
        if len(found) >= count:
            break
        if layout_key(one) not in found and _in_question(plan, one, simulator):
            found[layout_key(one)] = one
    return tuple(islice(found.values(), count))


def _in_question(plan: Plan, other: Plan, simulator: Simulator) -> bool:
    if other.violations:
        return False
    ours, its = simulator.costs(plan.task, [plan, other])
    known = not np.isnan(its.margin_ms)
    return not known or its.total_ms - ours.total_ms <= ours.margin_ms + its.margin_ms
