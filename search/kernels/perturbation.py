"""Perturb a plan by random steps and improve it by local search, many times: compiled, by estimates alone."""

from typing import NamedTuple

import numpy as np

from neuroshard.plumbing.arrays import BoolArray, FloatArray, IntArray
from neuroshard.stages.search.kernels.estimates import (
    AllShards,
    Contents,
    Costs,
    Lists,
    copied,
    estimate_ms,
    fill,
    on_device,
    ready_all,
    relisted,
    rescore,
)
from neuroshard.stages.search.kernels.steps import Bounds, Steps, after_moving, best_steps, may_move, moved_by
from neuroshard.stages.search.space.compiled import kernel
from neuroshard.stages.search.space.items import Limits

_LEAST_GAIN = 1e-6  # relative
_TRIES = 64  # to draw a step that is allowed
_MOST_STEPS = 10_000  # float32's noise must not keep a local search going for ever


class _Touched(NamedTuple):
    """The items (I,) and the devices (D,) that steps have changed."""

    items: BoolArray
    devices: BoolArray


@kernel
def explore(
    start: Contents, all_shards: AllShards, bounds: Bounds, costs: Costs, perturbation_steps: int, seeds: IntArray,
    estimate: FloatArray,
) -> tuple[int, IntArray]:  # fmt: skip
    """Perturb a plan K times by random steps, and improve each result by the best step until none helps.

    Args:
        start: the plan.
        bounds: with what may still be moved from `start` on.
        perturbation_steps: random steps per perturbation.
        seeds: (K,) one for every plan; equal seeds give equal plans.
        estimate: (K,) of their costs, ms; filled.

    Returns:
        how many plans were looked at, and (n, 4) what is held otherwise than in `start`: plan, item, device, units.
    """
    looked, changes = 0, np.empty((0, 4), np.int64)
    mine = Contents(
        start.held.copy(), start.lists, start.sums.copy(), start.size_bytes.copy(), start.units.copy(),
        start.score.copy(),
    )  # fmt: skip
    for k in range(len(seeds)):
        plan, left = _with_lists(mine, copied(start.lists)), bounds
        touched = _Touched(np.zeros(plan.held.shape[0], np.bool_), np.zeros(plan.held.shape[1], np.bool_))
        np.random.seed(seeds[k])
        for _ in range(perturbation_steps):
            plan, left = _perturb(plan, touched, all_shards, left, costs)
        plan, seen = _local_search(plan, touched, all_shards, left, costs)
        looked += seen
        for d in np.flatnonzero(touched.devices):
            fill(plan, int(d), all_shards, costs)  # what single precision added up on the way is gone
        estimate[k] = estimate_ms(plan, costs)
        changes = np.concatenate((changes, _undone(plan, start, touched, k)))
    return looked, changes


@kernel
def _with_lists(plan: Contents, lists: Lists) -> Contents:
    return Contents(plan.held, lists, plan.sums, plan.size_bytes, plan.units, plan.score)


@kernel
def _undone(plan: Contents, start: Contents, touched: _Touched, number: int) -> IntArray:
    """List what plan `number` holds otherwise than the start, (n, 4), and make its arrays the start's again."""
    items, devices, count = np.flatnonzero(touched.items), np.flatnonzero(touched.devices), 0
    changes = np.empty((len(items) * len(devices), 4), np.int64)
    for d in devices:
        for i in items:
            if plan.held[i, d] != start.held[i, d]:
                changes[count] = np.array([number, i, d, plan.held[i, d]])
                plan.held[i, d] = start.held[i, d]
                count += 1
        plan.sums[d], plan.size_bytes[d] = start.sums[d], start.size_bytes[d]
        plan.units[d], plan.score[d] = start.units[d], start.score[d]
    return changes[:count]


@kernel
def _perturb(
    plan: Contents, touched: _Touched, all_shards: AllShards, bounds: Bounds, costs: Costs
) -> tuple[Contents, Bounds]:
    """Take one random step that is allowed, if one is drawn before long; return the limits after it, too."""
    held = plan.held
    limits, first, size_bytes = all_shards.limits, all_shards.first, all_shards.size_bytes
    for _ in range(_TRIES):
        source, target = np.random.randint(held.shape[1]), np.random.randint(held.shape[1])
        here, there = on_device(plan.lists, source), on_device(plan.lists, target)
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
        if back == out or not _allowed(plan, limits, step, back_units):
            continue
        more = _bytes_at(size_bytes, first, held, out, target, portion)
        less = _bytes_at(size_bytes, first, held, out, source, -portion)
        if back >= 0:
            more += _bytes_at(size_bytes, first, held, back, target, -back_units)
            less += _bytes_at(size_bytes, first, held, back, source, back_units)
        room = bounds.memory_bytes - plan.size_bytes
        moved = _moved(plan, all_shards, bounds, step)
        if more <= room[target] and less <= room[source] and moved <= bounds.bytes_left:
            return _apply(plan, touched, all_shards, step, costs)[0], after_moving(bounds, moved)
    return plan, bounds


@kernel
def _allowed(plan: Contents, limits: Limits, step: tuple[int, int, int, int, int], back_units: int) -> bool:
    source, target, out, portion, back = step
    held, shards = plan.held, plan.lists.shards
    if not may_move(limits, held, shards[out], out, portion, (source, target), back):
        return False
    return back < 0 or bool(may_move(limits, held, shards[back], back, back_units, (target, source), out))


@kernel
def _bytes_at(size_bytes: IntArray, first: IntArray, held: IntArray, item: int, device: int, more: int) -> int:
    """Count the bytes that `more` units of an item add on a device."""
    before = first[item] + held[item, device]
    return int(size_bytes[before + more] - size_bytes[before])


@kernel
def _moved(plan: Contents, all_shards: AllShards, bounds: Bounds, step: tuple[int, int, int, int, int]) -> int:
    """Count the bytes more that have to be moved after a step."""
    source, target, out, portion, back = step
    moved = moved_by(all_shards, plan.held, bounds.before, out, portion, (source, target))
    if back >= 0:
        moved += moved_by(all_shards, plan.held, bounds.before, back, plan.held[back, target], (target, source))
    return int(moved)


@kernel
def _apply(
    plan: Contents, touched: _Touched, all_shards: AllShards, step: tuple[int, int, int, int, int], costs: Costs
) -> tuple[Contents, int]:
    """Take a step; return the plan after it, and how many units of the item that comes back moved."""
    source, target, out, portion, back = step
    back_units = plan.held[back, target] if back >= 0 else 0
    _put(plan, all_shards, out, source, -portion)
    _put(plan, all_shards, out, target, portion)
    if back >= 0:
        _put(plan, all_shards, back, target, -back_units)
        _put(plan, all_shards, back, source, back_units)
    plan = _relisted(plan, step)
    for device in (source, target):
        touched.devices[device] = True
        rescore(plan, device, all_shards, costs)
    for item in (out, back):
        if item >= 0:
            touched.items[item] = True
    return plan, int(back_units)


@kernel
def _take_back(plan: Contents, step: tuple[int, int, int, int, int], back_units: int) -> Contents:
    """Restore what was held before a step."""
    source, target, out, portion, back = step
    plan.held[out, source] += portion
    plan.held[out, target] -= portion
    if back >= 0:
        plan.held[back, target] += back_units
        plan.held[back, source] -= back_units
    return _relisted(plan, step)


@kernel
def _relisted(plan: Contents, step: tuple[int, int, int, int, int]) -> Contents:
    """List again what a step's devices hold of its items."""
    source, target, out, _, back = step
    lists = plan.lists
    for item in (out, back):
        if item >= 0:
            lists = relisted(relisted(lists, plan.held, item, source), plan.held, item, target)
    return _with_lists(plan, lists)


@kernel
def _put(plan: Contents, all_shards: AllShards, item: int, device: int, units: int) -> None:
    """Put so many units more (or less) of an item on a device; its score is left alone."""
    before = all_shards.first[item] + plan.held[item, device]
    plan.sums[device] += all_shards.vectors[before + units] - all_shards.vectors[before]
    plan.size_bytes[device] += all_shards.size_bytes[before + units] - all_shards.size_bytes[before]
    plan.units[device] += all_shards.given[before + units] - all_shards.given[before]
    plan.held[item, device] += units


@kernel
def _local_search(
    plan: Contents, touched: _Touched, all_shards: AllShards, bounds: Bounds, costs: Costs
) -> tuple[Contents, int]:
    """Take the best step from the most loaded devices until none helps; count the plans looked at."""
    best = Steps(np.empty((1, 5), np.int64), np.empty(1))
    looked = 0
    for _ in range(_MOST_STEPS):
        sources = np.argmax(ready_all(plan, costs)), np.argmax(plan.units)
        least = worth = estimate_ms(plan, costs) * (1 - _LEAST_GAIN)
        chosen = (-1, -1, -1, -1, -1)
        for number in range(1 + (sources[1] != sources[0])):
            count, seen = best_steps(plan, int(sources[number]), all_shards, bounds, costs, worth, best)
            looked += seen
            if count:
                worth = best.estimate[0]
                step = best.steps[0]
                chosen = (step[0], step[1], step[2], step[3], step[4])
        if chosen[0] < 0:
            break
        after = after_moving(bounds, _moved(plan, all_shards, bounds, chosen))
        plan, back_units = _apply(plan, touched, all_shards, chosen, costs)
        if estimate_ms(plan, costs) >= least:  # a step's estimate is rougher than a plan's
            plan = _take_back(plan, chosen, back_units)
            break
        bounds = after
    return plan, looked
