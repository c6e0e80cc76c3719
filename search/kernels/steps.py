"""The best steps of the local search away from one device, by estimates: compiled."""

from typing import NamedTuple

import numpy as np

from neuroshard.arrays import Float32Array, FloatArray, IntArray
from neuroshard.stages.search.kernels.estimates import (
    AllShards,
    Contents,
    Costs,
    after_ms,
    others_of,
    ready_all,
    ready_ms,
    score_with,
)
from neuroshard.stages.search.kernels.exchanges import step_ms
from neuroshard.stages.search.space.compiled import fast_leaf, kernel, leaf
from neuroshard.stages.search.space.limits import Limits, may_lie
from neuroshard.stages.search.space.moved import arriving_bytes

# Columns of a step: source, target, item that goes, units of it, item that comes back (-1: none).
SOURCE, TARGET, ITEM_OUT, UNITS_OUT, ITEM_BACK = range(5)


class Bounds(NamedTuple):
    """What no step may go beyond.

    Attributes:
        memory_bytes: (D,).
        before: (I, D) units that were there before anything moved.
        bytes_left: may be moved besides those that were.
    """

    memory_bytes: IntArray
    before: IntArray
    bytes_left: int


class Steps(NamedTuple):
    """Where the best steps are written: (K, 5) the columns above, and (K,) what each leads to, estimated."""

    steps: IntArray
    estimate: FloatArray


@kernel
def _contents(held: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """(I,) shards of each item; and which items each device holds, ascending: items[start[d] : start[d + 1]]."""
    num_items, num_devices = held.shape
    shards = np.zeros(num_items, np.int64)
    start = np.zeros(num_devices + 1, np.int64)
    for i in range(num_items):
        for d in range(num_devices):
            if held[i, d] > 0:
                shards[i] += 1
                start[d + 1] += 1
    start = start.cumsum()
    items = np.empty(start[-1], np.int64)
    filled = start[:-1].copy()
    for i in range(num_items):
        if shards[i]:
            for d in range(num_devices):
                if held[i, d] > 0:
                    items[filled[d]] = i
                    filled[d] += 1
    return shards, start, items


@leaf
def may_move(
    limits: Limits, held: IntArray, shards: int, item: int, portion: int, ends: tuple[int, int], leaving: int
) -> bool:
    """Whether `portion` units of an item may go from one of the `ends` to the other, while `leaving` goes back.

    The item is on `shards` devices now.
    """
    source, target = ends
    after = shards - (portion == held[item, source]) + (held[item, target] == 0)
    if not limits.min_shards[item] <= after <= limits.max_shards[item]:
        return False
    if 0 < held[item, source] - portion < limits.min_width[item]:
        return False
    if held[item, target] + portion < limits.min_width[item]:
        return False
    return bool(may_lie(limits, held, item, target, leaving))


@leaf
def _more_moved(all_shards: AllShards, item: int, was: int, now: int, then: int) -> int:
    """Bytes more that have to be moved to a device where `now` units of an item become `then`; once there `was`."""
    first, state_bytes = all_shards.first[item], all_shards.state_bytes
    return int(arriving_bytes(state_bytes, first, was, then) - arriving_bytes(state_bytes, first, was, now))


@kernel
def moved_by(
    all_shards: AllShards, held: IntArray, before: IntArray, item: int, portion: int, ends: tuple[int, int]
) -> int:
    """Bytes more that have to be moved when `portion` units of an item go from one of the `ends` to the other."""
    source, target = ends
    now_source, now_target = held[item, source], held[item, target]
    less = _more_moved(all_shards, item, before[item, source], now_source, now_source - portion)
    more = _more_moved(all_shards, item, before[item, target], now_target, now_target + portion)
    return int(less + more)


@kernel
def _keep(best: Steps, count: int, step: tuple[int, int, int, int, int], value: float) -> int:
    """Write a step down, in place of the worst if there is no room; how many there are then."""
    place = count
    if count == len(best.estimate):
        place = int(np.argmax(best.estimate))
    for column in range(5):
        best.steps[place, column] = step[column]
    best.estimate[place] = value
    return min(count + 1, len(best.estimate))


@kernel
def best_steps(  # noqa: PLR0912, PLR0915  # one loop: calls take longer than what they would do
    contents: Contents, source: int, all_shards: AllShards, bounds: Bounds, costs: Costs, worth: float, best: Steps
) -> tuple[int, int]:
    """Fill `best` with the best steps from `source` that are allowed and estimated below `worth`, ms.

    A step moves a shard of the source, or a half, quarter, ... of it, to another device, or swaps it for a shard
    there. Most are ruled out by what a shard adds to a score at least.

    Returns:
        how many there are, in no order, and how many were looked at.
    """
    held, sums, size, units, score = contents
    limits, first, size_bytes, _, given, vectors, least = all_shards
    weight, num_devices = costs.weight, held.shape[1]
    shards, start, items = _contents(held)
    ready = ready_all(contents, costs)
    now = (units.max(), float(int(units.mean())))
    transfer = step_ms(costs.exchanges, ready, units) - ready.max()  # is left after the last start, about
    without = np.empty(len(items))  # score of each shard's device without it
    joining = np.empty(len(items))  # what each shard would add to the source's score
    gives = np.empty(len(items))  # units of each shard
    for d in range(num_devices):
        for p in range(start[d], start[d + 1]):
            here = first[items[p]]
            without[p] = score_with(sums[d], vectors[here], vectors[here + held[items[p], d]], weight)
            gives[p] = given[here + held[items[p], d]]
    for p in range(len(items)):
        joining[p] = np.nan  # not known yet
    out, count, looked = np.empty_like(sums[source]), 0, 0
    for target in np.argsort(ready):  # from the most promising on: the better a step is, the more it rules out
        if target == source:
            continue
        others = others_of(ready, units, source, target)
        floor = others.last + transfer  # no step with this target costs less, about
        for p_out in range(start[source], start[source + 1]):
            i = items[p_out]
            portion = held[i, source]
            while portion > 0 and floor < worth:
                whole = portion == held[i, source]
                out0, out1 = first[i] + held[i, source], first[i] + held[i, source] - portion
                gone = given[first[i] + portion]
                left = units[source] - gone
                left_score = without[p_out] if whole else score_with(sums[source], vectors[out1], vectors[out0], weight)
                in0, in1 = first[i] + held[i, target], first[i] + held[i, target] + portion
                adds = least[in1] if in0 == first[i] else -np.inf
                none_back = ready_ms(costs, left_score, left, now[0]) + transfer >= worth
                hopeless = none_back and least[first[i]] == 0  # whatever came back would only add to it
                arriving = 0.0  # what the shard would add to the target's score
                if whole:
                    out[:] = sums[source] - vectors[out0]
                    arriving = score_with(sums[target], vectors[in1], vectors[in0], weight) - score[target]
                swaps = start[target + 1] if whole and not hopeless else start[target]
                for p in range(start[target] - 1 + none_back, swaps):
                    if floor >= worth:
                        break
                    back = items[p] if p >= start[target] else -1
                    looked += 1
                    back_units = held[back, target] if back >= 0 else 0
                    there = score[target] if back < 0 else without[p]
                    returning = gives[p] if back >= 0 else 0.0
                    arrived = units[target] + gone - returning
                    if back == i or ready_ms(costs, there + adds, arrived, now[0]) + transfer >= worth:
                        continue
                    moved, returned, c0 = 0, left_score, first[i]  # an empty shard: nothing comes back
                    source_size = size[source] + size_bytes[out1] - size_bytes[out0]
                    target_size = size[target] + size_bytes[in1] - size_bytes[in0]
                    if back >= 0:
                        b0 = first[back] + held[back, source]
                        b1, c0 = b0 + back_units, first[back] + back_units
                        brings = least[b1] if b0 == first[back] else -np.inf
                        if ready_ms(costs, left_score + brings, left + returning, now[0]) + transfer >= worth:
                            continue
                        if np.isnan(joining[p]):
                            joining[p] = score_with(sums[source], vectors[b1], vectors[b0], weight) - score[source]
                        about = max(
                            ready_ms(costs, left_score + joining[p], left + returning, now[0]),
                            ready_ms(costs, there + arriving, arrived, now[0]),
                        )
                        if about + transfer >= worth:
                            continue
                        if not may_move(limits, held, shards[back], back, back_units, (target, source), i):
                            continue
                        source_size += size_bytes[b1] - size_bytes[b0]
                        target_size -= size_bytes[c0] - size_bytes[first[back]]
                        moved = moved_by(all_shards, held, bounds.before, back, back_units, (target, source))
                        returned = score_with(out, vectors[b1], vectors[b0], weight)
                    if source_size > bounds.memory_bytes[source] or target_size > bounds.memory_bytes[target]:
                        continue
                    if not may_move(limits, held, shards[i], i, portion, (source, target), back):
                        continue
                    moved += moved_by(all_shards, held, bounds.before, i, portion, (source, target))
                    if moved > bounds.bytes_left:
                        continue
                    there = _score_after_swap(sums[target], vectors[in1], vectors[in0], vectors[c0], weight)
                    ends = (returned, left + returning), (there, arrived)
                    value = after_ms(costs, others, num_devices, ends, now)
                    if value < worth:
                        count = _keep(best, count, (source, target, i, portion, back), value)
                        if count == len(best.estimate):
                            worth = best.estimate.max()
                portion //= 2
    return count, looked


@fast_leaf
def _score_after_swap(
    base: Float32Array, plus: Float32Array, minus: Float32Array, gone: Float32Array, weight: Float32Array
) -> float:
    """As `score_with`, with another vector gone."""
    total = np.float32(0)
    for h in range(len(weight)):
        total += max(base[h] + plus[h] - minus[h] - gone[h], np.float32(0)) * weight[h]
    return float(total)
