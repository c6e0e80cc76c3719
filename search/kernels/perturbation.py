"""Compiled iterated local search: many times, perturb a plan by random steps, and then improve the result step by step.

All costs are estimates (`estimates.py`); the caller costs the best plans with the models.
"""

from typing import NamedTuple

import numpy as np

from neuroshard.plumbing.arrays import BoolArray, FloatArray, IntArray
from neuroshard.stages.search.jit import jit, jit_inline
from neuroshard.stages.search.kernels.estimates import (
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
from neuroshard.stages.search.published.shard_table import PlacementRules, ShardTable

_LEAST_GAIN = 1e-6  # relative
_TRIES = 64  # random draws, before a perturbation gives up finding an allowed step
_MOST_STEPS = 10_000  # float32's noise must not keep a local search going for ever


class _Touched(NamedTuple):
    """Masks of the items (such as tables), (I,), and of the devices, (D,), that one round has changed: True if the item
    or device was changed. A round makes one new plan by random steps and local search. After the round, only the
    changed items and devices are set back to the starting plan.
    """

    items: BoolArray
    devices: BoolArray


@jit
def explore(
    start: Contents, all_shards: ShardTable, bounds: Bounds, costs: Costs, perturbation_steps: int, seeds: IntArray,
    estimate: FloatArray,
) -> tuple[int, IntArray]:  # fmt: skip
    """Make K new plans from the plan `start`. Each new plan is `start` after a few random steps, improved by the best
    step again and again until no step lowers the estimated cost.

    Every round starts from the plan `start`: P random allowed steps, then local search down to a local optimum. All
    rounds share one set of arrays. A round marks the items and devices that it changes; `_undone` then reads the
    differences from `start` in these rows and columns alone, and restores them for the next round.

    Args:
        start: the plan to perturb; not changed.
        all_shards: all shards of the items, with their costs.
        bounds: the limits that plans must keep, with the bytes that may still move after `start`.
        costs: numbers from the cost models.
        perturbation_steps: P, random steps per round.
        seeds: (K,) seed of each round; equal seeds give equal plans.
        estimate: (K,) array that is filled with the estimated costs of the K plans, ms.

    Returns:
        the number of steps that were examined, and the differences of the plans from `start`, (n, 4): number of the
        plan, item, device, and the item's units on the device in that plan.
    """
    looked, changes = 0, np.empty((0, 4), np.int64)
    mine = Contents(
        start.widths.copy(), start.lists, start.sums.copy(), start.size_bytes.copy(), start.units.copy(),
        start.score.copy(),
    )  # fmt: skip
    for k in range(len(seeds)):
        plan, left = _with_lists(mine, copied(start.lists)), bounds
        touched = _Touched(np.zeros(plan.widths.shape[0], np.bool_), np.zeros(plan.widths.shape[1], np.bool_))
        np.random.seed(seeds[k])
        for _ in range(perturbation_steps):
            plan, left = _perturb(plan, touched, all_shards, left, costs)
        plan, seen = _local_search(plan, touched, all_shards, left, costs)
        looked += seen
        for d in np.flatnonzero(touched.devices):
            fill(plan, int(d), all_shards, costs)  # remove rounding errors that single precision accumulated
        estimate[k] = estimate_ms(plan, costs)
        changes = np.concatenate((changes, _undone(plan, start, touched, k)))
    return looked, changes


@jit
def _with_lists(plan: Contents, lists: Lists) -> Contents:
    return Contents(plan.widths, lists, plan.sums, plan.size_bytes, plan.units, plan.score)


@jit
def _undone(plan: Contents, start: Contents, touched: _Touched, number: int) -> IntArray:
    """Return the widths in which `plan` differs from the plan `start`, and set `plan` back to `start` in place. The
    result (n, 4) has a row for each of n different widths, with four values: `number`, which is the number of `plan`;
    the item (such as a table); the device; and the width that the item had on the device in `plan`.

    The width is in units of 4 columns. Only touched items and devices can differ. The sums,
    bytes, units and scores of a touched device are copied from `start`, so that no rounding error remains. The caller
    discards the lists of `plan`, which are not restored.
    """
    items, devices, count = np.flatnonzero(touched.items), np.flatnonzero(touched.devices), 0
    changes = np.empty((len(items) * len(devices), 4), np.int64)
    for d in devices:
        for i in items:
            if plan.widths[i, d] != start.widths[i, d]:
                changes[count] = np.array([number, i, d, plan.widths[i, d]])
                plan.widths[i, d] = start.widths[i, d]
                count += 1
        plan.sums[d], plan.size_bytes[d] = start.sums[d], start.size_bytes[d]
        plan.units[d], plan.score[d] = start.units[d], start.score[d]
    return changes[:count]


@jit
def _perturb(
    plan: Contents, touched: _Touched, all_shards: ShardTable, bounds: Bounds, costs: Costs
) -> tuple[Contents, Bounds]:
    """Change a plan by one random allowed step. Return two values: the changed plan, and the limits on memory and on
    moved bytes that remain for further steps.

    A step moves a random shard of a random device to another device. With probability 1/2, a random shard of the target
    moves back; otherwise the shard may be halved, again and again with probability 1/2. If no allowed step is drawn in
    `_TRIES` draws, the plan and the limits stay as they are.
    """
    widths = plan.widths
    rules, first, size_bytes = all_shards.rules, all_shards.first, all_shards.size_bytes
    for _ in range(_TRIES):
        source, target = np.random.randint(widths.shape[1]), np.random.randint(widths.shape[1])
        here, there = on_device(plan.lists, source), on_device(plan.lists, target)
        if source == target or not len(here):
            continue
        out = here[np.random.randint(len(here))]
        back, back_units, portion = -1, 0, widths[out, source]
        if len(there) and np.random.randint(2):
            back = there[np.random.randint(len(there))]
            back_units = widths[back, target]
        else:
            while portion > 1 and np.random.randint(2):
                portion //= 2
        step = (source, target, out, portion, back)
        if back == out or not _allowed(plan, rules, step, back_units):
            continue
        more = _bytes_at(size_bytes, first, widths, out, target, portion)
        less = _bytes_at(size_bytes, first, widths, out, source, -portion)
        if back >= 0:
            more += _bytes_at(size_bytes, first, widths, back, target, -back_units)
            less += _bytes_at(size_bytes, first, widths, back, source, back_units)
        room = bounds.memory_bytes - plan.size_bytes
        moved = _moved(plan, all_shards, bounds, step)
        if more <= room[target] and less <= room[source] and moved <= bounds.bytes_left:
            return _apply(plan, touched, all_shards, step, costs)[0], after_moving(bounds, moved)
    return plan, bounds


@jit
def _allowed(plan: Contents, rules: PlacementRules, step: tuple[int, int, int, int, int], back_units: int) -> bool:
    source, target, out, portion, back = step
    widths, shards = plan.widths, plan.lists.shards
    if not may_move(rules, widths, shards[out], out, portion, (source, target), back):
        return False
    return back < 0 or bool(may_move(rules, widths, shards[back], back, back_units, (target, source), out))


@jit
def _bytes_at(size_bytes: IntArray, first: IntArray, widths: IntArray, item: int, device: int, more: int) -> int:
    """Return the change of the memory in use on a device, in bytes, if the device gets `more` further units (of 4
    columns) of an item. If `more` is negative, units are removed.
    """
    before = first[item] + widths[item, device]
    return int(size_bytes[before + more] - size_bytes[before])


@jit_inline
def _moved(plan: Contents, all_shards: ShardTable, bounds: Bounds, step: tuple[int, int, int, int, int]) -> int:
    """Return the change of the moved bytes if a step is applied to `plan`. The moved bytes are the weights and
    optimizer state that devices must receive to get from the previous plan to the new plan.
    """
    source, target, out, portion, back = step
    moved = moved_by(all_shards, plan.widths, bounds.before, out, portion, (source, target))
    if back >= 0:
        moved += moved_by(all_shards, plan.widths, bounds.before, back, plan.widths[back, target], (target, source))
    return int(moved)


@jit
def _apply(
    plan: Contents, touched: _Touched, all_shards: ShardTable, step: tuple[int, int, int, int, int], costs: Costs
) -> tuple[Contents, int]:
    """Apply a step to the plan in place. A step moves an item (such as a table), and another item may move back in
    exchange. Return two values: the plan after the step, and the number of units (of 4 columns) of the other item that
    moved back (0 if no item moved back).
    """
    source, target, out, portion, back = step
    back_units = plan.widths[back, target] if back >= 0 else 0
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


@jit
def _take_back(plan: Contents, step: tuple[int, int, int, int, int], back_units: int) -> Contents:
    """Undo a step: return the plan with the widths and the lists of shards from before the step.
    If a shard moved back to the source device in the step, `back_units` is the width of this shard in units of 4
    columns. Otherwise, `back_units` is 0.

    The bytes, sent units, sums and scores of the devices are not restored; `explore` computes them again.
    """
    source, target, out, portion, back = step
    plan.widths[out, source] += portion
    plan.widths[out, target] -= portion
    if back >= 0:
        plan.widths[back, target] += back_units
        plan.widths[back, source] -= back_units
    return _relisted(plan, step)


@jit
def _relisted(plan: Contents, step: tuple[int, int, int, int, int]) -> Contents:
    """Return the plan with new lists of the shards on each device, after a step has changed the widths of the plan. The
    lists change only for the items and the devices of the step.
    """
    source, target, out, _, back = step
    lists = plan.lists
    for item in (out, back):
        if item >= 0:
            lists = relisted(relisted(lists, plan.widths, item, source), plan.widths, item, target)
    return _with_lists(plan, lists)


@jit_inline
def _put(plan: Contents, all_shards: ShardTable, item: int, device: int, units: int) -> None:
    """Change the width of an item (such as a table) on a device by `units` units of 4 columns, in place; a negative
    number removes columns. Totals over all shards of the device are updated too: the sum of the vectors, the bytes, and
    the sent units.

    `rescore` must compute the score again.
    """
    before = all_shards.first[item] + plan.widths[item, device]
    plan.sums[device] += all_shards.vectors[before + units] - all_shards.vectors[before]
    plan.size_bytes[device] += all_shards.size_bytes[before + units] - all_shards.size_bytes[before]
    plan.units[device] += all_shards.sent_units[before + units] - all_shards.sent_units[before]
    plan.widths[item, device] += units


@jit
def _local_search(
    plan: Contents, touched: _Touched, all_shards: ShardTable, bounds: Bounds, costs: Costs
) -> tuple[Contents, int]:
    """Improve a plan by the best step again and again, until no step helps; return the plan, and the number of steps
    that were examined.

    Each step takes load from the device that is ready last, or from the device that sends the most units.
    """
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
