"""Plans shaken and made better, many from one: compiled, by estimates alone."""

import numpy as np

from neuroshard.plumbing.arrays import FloatArray, IntArray
from neuroshard.stages.search.kernels.estimates import (
    AllShards,
    Contents,
    Costs,
    estimate_ms,
    fill,
    ready_all,
    score_with,
)
from neuroshard.stages.search.kernels.steps import Bounds, Steps, best_steps, may_move, moved_by
from neuroshard.stages.search.space.compiled import kernel
from neuroshard.stages.search.space.limits import Limits

_LEAST_GAIN = 1e-6  # relative
_TRIES = 64  # to draw a step that is allowed
_MOST_STEPS = 10_000  # float32's noise must not keep a descent going for ever


@kernel
def explore(
    start: Contents, all_shards: AllShards, bounds: Bounds, costs: Costs, shake_steps: int, seeds: IntArray,
    found: Contents, estimate: FloatArray,
) -> int:  # fmt: skip
    """Make K plans of one, each shaken by random steps, then improved by the best step until none helps.

    Args:
        start: the plan.
        bounds: with what may still be moved from `start` on.
        shake_steps: random steps in a shake.
        seeds: (K,) one for every plan; equal seeds give equal plans.
        found: the K plans, an axis in front of every array; filled.
        estimate: (K,) of their costs, ms; filled.

    Returns:
        how many plans were looked at.
    """
    looked = 0
    for k in range(len(seeds)):
        plan = Contents(found.held[k], found.sums[k], found.size_bytes[k], found.units[k], found.score[k])
        plan.held[:], plan.sums[:], plan.size_bytes[:] = start.held, start.sums, start.size_bytes
        plan.units[:], plan.score[:] = start.units, start.score
        left = bounds.bytes_left
        np.random.seed(seeds[k])
        for _ in range(shake_steps):
            left -= _shake(plan, all_shards, Bounds(bounds.memory_bytes, bounds.before, left), costs)
        looked += _descend(plan, all_shards, Bounds(bounds.memory_bytes, bounds.before, left), costs)
        fill(plan, all_shards, costs)  # what single precision added up on the way is gone
        estimate[k] = estimate_ms(plan, costs)
    return looked


@kernel
def _shake(plan: Contents, all_shards: AllShards, bounds: Bounds, costs: Costs) -> int:
    """One random step that is allowed, if some are drawn before long; bytes more that it moves."""
    held = plan.held
    limits, first, size_bytes = all_shards.limits, all_shards.first, all_shards.size_bytes
    for _ in range(_TRIES):
        source, target = np.random.randint(held.shape[1]), np.random.randint(held.shape[1])
        here, there = np.flatnonzero(held[:, source]), np.flatnonzero(held[:, target])
        if source == target or not len(here):
            continue
        out = here[np.random.randint(len(here))]
        back, back_units, portion = -1, 0, held[out, source]
        if len(there) and np.random.randint(2):
            back = there[np.random.randint(len(there))]
            back_units = held[back, target]
        else:
            while portion > 1 and np.random.randint(2):
                portion //= 2
        step = (source, target, out, portion, back)
        if back == out or not _allowed(held, limits, step, back_units):
            continue
        more = _bytes_at(size_bytes, first, held, out, target, portion)
        less = _bytes_at(size_bytes, first, held, out, source, -portion)
        if back >= 0:
            more += _bytes_at(size_bytes, first, held, back, target, -back_units)
            less += _bytes_at(size_bytes, first, held, back, source, back_units)
        room = bounds.memory_bytes - plan.size_bytes
        moved = _moved(plan, all_shards, bounds, step)
        if more <= room[target] and less <= room[source] and moved <= bounds.bytes_left:
            _apply(plan, all_shards, step, costs)
            return moved
    return 0


@kernel
def _allowed(held: IntArray, limits: Limits, step: tuple[int, int, int, int, int], back_units: int) -> bool:
    source, target, out, portion, back = step
    shards = int(np.count_nonzero(held[out]))
    if not may_move(limits, held, shards, out, portion, (source, target), back):
        return False
    if back < 0:
        return True
    return bool(may_move(limits, held, int(np.count_nonzero(held[back])), back, back_units, (target, source), out))


@kernel
def _bytes_at(size_bytes: IntArray, first: IntArray, held: IntArray, item: int, device: int, more: int) -> int:
    """Bytes that `more` units of an item add on a device."""
    before = first[item] + held[item, device]
    return int(size_bytes[before + more] - size_bytes[before])


@kernel
def _moved(plan: Contents, all_shards: AllShards, bounds: Bounds, step: tuple[int, int, int, int, int]) -> int:
    """Bytes more that have to be moved after a step."""
    source, target, out, portion, back = step
    moved = moved_by(all_shards, plan.held, bounds.before, out, portion, (source, target))
    if back >= 0:
        moved += moved_by(all_shards, plan.held, bounds.before, back, plan.held[back, target], (target, source))
    return int(moved)


@kernel
def _apply(plan: Contents, all_shards: AllShards, step: tuple[int, int, int, int, int], costs: Costs) -> int:
    """Take a step; how many units of the item that comes back moved."""
    source, target, out, portion, back = step
    back_units = plan.held[back, target] if back >= 0 else 0
    _put(plan, all_shards, out, source, -portion)
    _put(plan, all_shards, out, target, portion)
    if back >= 0:
        _put(plan, all_shards, back, target, -back_units)
        _put(plan, all_shards, back, source, back_units)
    for device in (source, target):
        nothing = all_shards.vectors[all_shards.first[out]]
        plan.score[device] = score_with(plan.sums[device], nothing, nothing, costs.weight)
        if plan.units[device] == 0:
            plan.score[device] = 0.0
    return int(back_units)


@kernel
def _take_back(held: IntArray, step: tuple[int, int, int, int, int], back_units: int) -> None:
    """What was held before a step."""
    source, target, out, portion, back = step
    held[out, source] += portion
    held[out, target] -= portion
    if back >= 0:
        held[back, target] += back_units
        held[back, source] -= back_units


@kernel
def _put(plan: Contents, all_shards: AllShards, item: int, device: int, units: int) -> None:
    """Put so many units more (or less) of an item on a device; its score is left alone."""
    before = all_shards.first[item] + plan.held[item, device]
    plan.sums[device] += all_shards.vectors[before + units] - all_shards.vectors[before]
    plan.size_bytes[device] += all_shards.size_bytes[before + units] - all_shards.size_bytes[before]
    plan.units[device] += all_shards.given[before + units] - all_shards.given[before]
    plan.held[item, device] += units


@kernel
def _descend(plan: Contents, all_shards: AllShards, bounds: Bounds, costs: Costs) -> int:
    """The best step from the most loaded devices until none helps; how many were looked at."""
    best = Steps(np.empty((1, 5), np.int64), np.empty(1))
    left, looked = bounds.bytes_left, 0
    for _ in range(_MOST_STEPS):
        sources = np.argmax(ready_all(plan, costs)), np.argmax(plan.units)
        least = worth = estimate_ms(plan, costs) * (1 - _LEAST_GAIN)
        chosen = (-1, -1, -1, -1, -1)
        limited = Bounds(bounds.memory_bytes, bounds.before, left)
        for number in range(1 + (sources[1] != sources[0])):
            count, seen = best_steps(plan, int(sources[number]), all_shards, limited, costs, worth, best)
            looked += seen
            if count:
                worth = best.estimate[0]
                step = best.steps[0]
                chosen = (step[0], step[1], step[2], step[3], step[4])
        if chosen[0] < 0:
            break
        more = _moved(plan, all_shards, limited, chosen)
        back_units = _apply(plan, all_shards, chosen, costs)
        if estimate_ms(plan, costs) >= least:  # a step's estimate is rougher than a plan's
            _take_back(plan.held, chosen, back_units)
            break
        left -= more
    return looked
