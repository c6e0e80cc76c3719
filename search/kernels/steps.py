"""Compiled search for the best steps of the local search: the steps that move load away from one device and lead to the
lowest estimated costs.
"""

from typing import NamedTuple

import numpy as np

from neuroshard.plumbing.arrays import Float32Array, FloatArray, IntArray
from neuroshard.stages.search.jit import jit, jit_inline_fast, jit_paste
from neuroshard.stages.search.kernels.estimates import (
    Contents,
    Costs,
    Others,
    after_ms,
    backward_ms,
    others_of,
    ready_all,
    ready_ms,
    step_ms,
)
from neuroshard.stages.search.published.device_room import may_hold, score_with
from neuroshard.stages.search.published.shard_table import PlacementRules, ShardTable

# Columns of a step: source, target, item that moves to the target, units that move, item that moves back (-1: none).
SOURCE, TARGET, ITEM_OUT, UNITS_OUT, ITEM_BACK = range(5)

_FAR = 2  # if the widest device has more than this many times the mean units, a step away from it may shorten the
# backward exchange of all devices a lot, and bounds must allow for that


class Bounds(NamedTuple):
    """Limits on memory and on moved bytes, which every step of the local search must keep.

    Attributes:
        memory_bytes: (D,) bytes that the shards on each device may take.
        before: (I, D) units of each item on each device in the previous plan, from which moved bytes are counted.
        bytes_left: bytes of weights and optimizer state that may still move between devices.
    """

    memory_bytes: IntArray
    before: IntArray
    bytes_left: int


@jit_paste
def after_moving(bounds: Bounds, moved: int) -> Bounds:
    """Return the limits that remain after a step has moved `moved` bytes between devices: `bytes_left` falls by
    `moved`, and the other limits stay the same.
    """
    return Bounds(bounds.memory_bytes, bounds.before, bounds.bytes_left - moved)


class Steps(NamedTuple):
    """The K best steps of the local search, (K, 5), and the estimated cost in ms of the plan after each step, (K,). The
    five numbers of a step are a source device, a target device, an item (such as a table), the moved units (of 4
    columns), and an item that moves back (-1 if no item moves back).
    """

    steps: IntArray
    estimate: FloatArray


@jit_paste
def may_move(
    rules: PlacementRules, widths: IntArray, shards: int, item: int, portion: int, ends: tuple[int, int], leaving: int
) -> bool:
    """Return True if the placement rules allow that `portion` units (of 4 columns) of an item move from the device
    `ends[0]` to the device `ends[1]`.

    `shards` is the number of devices with the item before the step. Item `leaving` moves in the opposite direction, so
    it does not count as a rival on the target; -1 if none moves.
    """
    source, target = ends
    after = shards - (portion == widths[item, source]) + (widths[item, target] == 0)
    if not rules.min_shards[item] <= after <= rules.max_shards[item]:
        return False
    if 0 < widths[item, source] - portion < rules.min_width[item]:
        return False
    if widths[item, target] + portion < rules.min_width[item]:
        return False
    return bool(may_hold(rules, widths, item, target, leaving))


@jit_paste
def _more_moved(all_shards: ShardTable, item: int, was: int, now: int, then: int) -> int:
    """Return the change of the bytes that a device must receive if the new plan gives the device `then` units (of 4
    columns) of an item, instead of `now` units. In the previous plan, the device has `was` units of the item. The
    change is negative if the device must receive fewer bytes.

    To get from `was` units to `units` units, a device receives state_bytes(units) - state_bytes(was) bytes, and never
    less than 0.
    """
    first, state_bytes = all_shards.first[item], all_shards.state_bytes
    there = state_bytes[first + was]
    return int(max(state_bytes[first + then] - there, 0) - max(state_bytes[first + now] - there, 0))


@jit_paste
def moved_by(
    all_shards: ShardTable, widths: IntArray, before: IntArray, item: int, portion: int, ends: tuple[int, int]
) -> int:
    """Return the change of the moved bytes if a step moves `portion` units (of 4 columns) of an item (such as a table)
    from the device `ends[0]` to the device `ends[1]`. The moved bytes are the weights and optimizer state that must
    move between devices to get from the previous plan to the current plan.

    `before` (I, D) is the previous plan, and `widths` (I, D) is the current plan before the step: the units of each of
    I items on each of D devices.

    Fewer bytes move (a negative number) if the step takes back an earlier move.
    """
    source, target = ends
    now_source, now_target = widths[item, source], widths[item, target]
    less = _more_moved(all_shards, item, before[item, source], now_source, now_source - portion)
    more = _more_moved(all_shards, item, before[item, target], now_target, now_target + portion)
    return int(less + more)


@jit_paste
def _keep(best: Steps, count: int, step: tuple[int, int, int, int, int], value: float) -> int:
    """Add a step with the estimated cost `value` (ms) to `best`, which already has `count` steps. Return the number of
    steps that `best` then has. If `best` is full, the new step replaces the step with the highest estimated cost.
    """
    place = count
    if count == len(best.estimate):
        place = int(np.argmax(best.estimate))
    for column in range(5):
        best.steps[place, column] = step[column]
    best.estimate[place] = value
    return min(count + 1, len(best.estimate))


@jit_paste
def _too_late(
    costs: Costs, device: int, score: float, units: float, widest: float, left_ms: float, worth: float
) -> bool:
    """Return True if one device alone takes at least `worth` ms after a step of the local search. The search then skips
    the step without a full estimate of the cost, because a plan costs at least the time of every single device.

    The time of the device is the ready time (`ready_ms`) for `score` and `units`, plus `left_ms` of transfer. `score`
    and `units` are estimates or bounds for the device after the step; `widest` is the units of the widest device, or a
    lower bound of these units.
    """
    return bool(ready_ms(costs, device, score, units, widest) + left_ms >= worth)


@jit_paste
def _last_but(order: IntArray, ready: FloatArray, source: int, target: int) -> float:
    """Return the latest time, in ms, at which any device except `source` and `target` is ready. Return -inf if there
    are no other devices.

    `ready` (D,) are the ms at which each device is ready, `order` (D,) the devices in ascending order of these ms.
    """
    for place in range(len(order) - 1, -1, -1):
        if order[place] not in (source, target):
            return float(ready[order[place]])
    return -np.inf


@jit_paste
def _widest_but(units: FloatArray, source: int) -> float:
    """Return a lower bound of the most units (of 4 columns) that any device sends after a step of the local search. The
    step moves a shard, or columns of a shard, away from the device `source`, and no shard moves back.

    The bound is the larger of the mean of `units` (D,), and of the most units of any device except `source`.
    """
    widest = units.mean()
    for d in range(len(units)):
        if d != source:
            widest = max(widest, units[d])
    return float(widest)


@jit
def best_steps(  # noqa: PLR0912, PLR0915  # one loop: calls take longer than what they would do
    contents: Contents, source: int, all_shards: ShardTable, bounds: Bounds, costs: Costs, worth: float, best: Steps
) -> tuple[int, int]:
    """Fill `best` with the allowed steps that lead to the lowest estimated costs of the plan. Each step moves load away
    from the device `source`. Only steps after which the estimated cost is below `worth` ms are added.

    A step moves a shard i, or a half, a quarter, ... of a shard, from the source s to a target t. If the step moves a
    whole shard i, it may move a shard b back from t to s: an exchange of two shards.

    The function loops over targets t, shards i, portions of i, and shards b (first: no b). Most steps are ruled out by
    cheap lower bounds of their cost, before the rules, the bytes and the exact score are computed. Notation:

        S(d), u(d)     score and units of device d; S(d + i - b) is the score with i added and b removed
        g(i)           units of a shard
        a(i)           least amount that shard i adds to any score (`least_score`); -inf if the device has a shard of
                       the same item already
        r(S, u)        ms at which a device with score S and u units is ready (`ready_ms`)
        T              about the least transfer time that is left when the last device is ready

    A step costs the maximum of r + T over devices. r and T are computed for the smallest units of the widest device
    that any step from s can leave. The step is ruled out if one of these is `worth` or more, tested in this order:

        floor   max of r(S(d), u(d)) + T over all devices d except s and t: the same for all steps from s to t
        target  r(S(t - b) + a(i), u(t) + g(i) - g(b)) + T
        source  r(S(s - i) + a(b), u(s) - g(i) + g(b)) + T; without b, a(b) = g(b) = 0
        sums    source and target again, with S(s + b) - S(s) instead of a(b), and S(t + i) - S(t) instead of a(i)

    The first three are bounds of the score; "sums" is an estimate, because the score is not additive: b adds another
    amount to s with i than to s without i. `worth` falls to the worst step in `best` as soon as `best` is full, so good
    steps found early rule out more; targets are therefore tried from the earliest ready device on. `joining` holds
    S(s + b) - S(s) by shard b. An entry is NaN until a step needs the value, and is then used for all shards i.

    Returns:
        the number of steps in `best`, which are in no order, and the number of steps that were examined.
    """
    widths, (num_shards, start, items, without), sums, size, units, score = contents
    rules, first, size_bytes = all_shards.rules, all_shards.first, all_shards.size_bytes
    sent, vectors, least = all_shards.sent_units, all_shards.vectors, all_shards.least_score
    weight, num_devices = costs.weight, widths.shape[1]
    ready = ready_all(contents, costs)
    order = np.argsort(ready)
    now = (units.max(), float(int(units.mean())))
    widest = now[0] if now[0] <= _FAR * now[1] else _widest_but(units, source)
    left_ms = step_ms(costs.exchanges, ready, np.minimum(units, widest)) - ready.max()  # T
    earlier_ms = backward_ms(costs.exchanges, now[1], now[0]) - backward_ms(costs.exchanges, now[1], widest)
    joining = np.full(len(items), np.nan)  # S(s + b) - S(s) by shard b; NaN: not yet computed
    rest, count, looked = np.empty_like(sums[source]), 0, 0
    nothing = np.zeros(len(weight), np.float32)
    for target in order:  # earliest ready first: good steps found early rule out more steps
        if target == source:
            continue
        others, summed = Others(0.0, 0.0, 0.0, 0.0, 0.0), False  # computed when the first step needs them
        # `score` is 0 for an empty device, but the bias alone may have another score
        score_before = score[target] if units[target] > 0 else score_with(costs.bias, nothing, nothing, weight)
        floor = _last_but(order, ready, source, target) - earlier_ms + left_ms
        for p_item in range(start[source], start[source + 1]):
            item = items[p_item]
            portion = widths[item, source]
            while portion > 0 and floor < worth:
                whole = portion == widths[item, source]
                # Entries of `all_shards`: the item's shard on each of both devices before and after the step.
                source_old, target_old = first[item] + widths[item, source], first[item] + widths[item, target]
                source_new, target_new = source_old - portion, target_old + portion
                gone = sent[first[item] + portion]
                source_units, source_score = units[source] - gone, without[p_item]  # if no shard b moves back
                if not whole:
                    source_score = score_with(sums[source], vectors[source_new], vectors[source_old], weight)
                target_least = least[target_new] if target_old == first[item] else -np.inf  # a(i)
                needs_back = _too_late(costs, source, source_score, source_units, widest, left_ms, worth)
                hopeless = needs_back and least[first[item]] == 0  # 0: shards never lower a score, so no b can help
                target_gain = 0.0  # S(t + i) - S(t)
                if whole:
                    rest[:] = sums[source] - vectors[source_old]
                    target_gain = score_with(sums[target], vectors[target_new], vectors[target_old], weight)
                    target_gain -= score_before
                last_back = start[target + 1] if whole and not hopeless else start[target]
                for p_back in range(start[target] - 1 + needs_back, last_back):  # start[target] - 1: no shard b
                    if floor >= worth:
                        break
                    back = items[p_back] if p_back >= start[target] else -1
                    looked += 1
                    back_units = widths[back, target] if back >= 0 else 0
                    returning = sent[first[back] + back_units] if back >= 0 else 0.0
                    target_score = score_before if back < 0 else without[p_back]
                    target_units = units[target] + gone - returning
                    if back == item:
                        continue
                    if _too_late(costs, target, target_score + target_least, target_units, widest, left_ms, worth):
                        continue
                    moved, source_after, back_left = 0, source_score, first[item]  # an empty shard: no b
                    source_bytes = size[source] + size_bytes[source_new] - size_bytes[source_old]
                    target_bytes = size[target] + size_bytes[target_new] - size_bytes[target_old]
                    if back >= 0:
                        back_old = first[back] + widths[back, source]
                        back_new, back_left = back_old + back_units, first[back] + back_units
                        source_least = least[back_new] if back_old == first[back] else -np.inf  # a(b)
                        both = source_units + returning
                        if _too_late(costs, source, source_score + source_least, both, widest, left_ms, worth):
                            continue
                        if np.isnan(joining[p_back]):
                            joined = score_with(sums[source], vectors[back_new], vectors[back_old], weight)
                            joining[p_back] = joined - score[source]
                        if _too_late(costs, source, source_score + joining[p_back], both, widest, left_ms, worth):
                            continue
                        if _too_late(costs, target, target_score + target_gain, target_units, widest, left_ms, worth):
                            continue
                        if not may_move(rules, widths, num_shards[back], back, back_units, (target, source), item):
                            continue
                        source_bytes += size_bytes[back_new] - size_bytes[back_old]
                        target_bytes -= size_bytes[back_left] - size_bytes[first[back]]
                        moved = moved_by(all_shards, widths, bounds.before, back, back_units, (target, source))
                        source_after = score_with(rest, vectors[back_new], vectors[back_old], weight)
                    if source_bytes > bounds.memory_bytes[source] or target_bytes > bounds.memory_bytes[target]:
                        continue
                    if not may_move(rules, widths, num_shards[item], item, portion, (source, target), back):
                        continue
                    moved += moved_by(all_shards, widths, bounds.before, item, portion, (source, target))
                    if moved > bounds.bytes_left:
                        continue
                    target_after = _score_after_swap(
                        sums[target], vectors[target_new], vectors[target_old], vectors[back_left], weight
                    )
                    ends = (source_after, source_units + returning), (target_after, target_units)
                    if not summed:
                        others, summed = others_of(ready, units, source, target), True
                    value = after_ms(costs, others, num_devices, (source, target), ends, now)
                    if value < worth:
                        count = _keep(best, count, (source, target, item, portion, back), value)
                        if count == len(best.estimate):
                            worth = best.estimate.max()
                portion //= 2
    return count, looked


@jit_inline_fast
def _score_after_swap(
    base: Float32Array, plus: Float32Array, minus: Float32Array, gone: Float32Array, weight: Float32Array
) -> float:
    """Return the score of a device after a swap of shards with another device. The compute model turns a score into a
    compute time of max(score + offset, 0) * scale_ms.

    The compute model describes each shard by a vector of H numbers. `base` (H,) is the sum of the vectors of the
    device's shards before the swap, plus the bias of the model. The swap adds the shard with the vector `plus`, and
    removes the shards with the vectors `minus` and `gone`. The score is the sum over the H entries of the vectors of
    relu(base + plus - minus - gone) * weight.
    """
    total = np.float32(0)
    for h in range(len(weight)):
        total += max(base[h] + plus[h] - minus[h] - gone[h], np.float32(0)) * weight[h]
    return float(total)
