"""All steps of the local search away from one device, estimated: compiled."""

from typing import NamedTuple

import numpy as np
from numba import njit

from neuroshard.arrays import Float32Array, FloatArray, IntArray
from neuroshard.stages.search.space.limits import Limits, may_lie
from neuroshard.stages.search.space.moved import arriving_bytes

# Columns of a step: source, target, item that goes, units of it, item that comes back (-1: none).
SOURCE, TARGET, ITEM_OUT, UNITS_OUT, ITEM_BACK = range(5)


class AllShards(NamedTuple):
    """Every possible shard of I items, as the catalog has them.

    Attributes:
        limits: the items'.
        first: (I,) first entry of each item.
        size_bytes, state_bytes, vectors: (N,), (N,), (N, H) of each entry.
    """

    limits: Limits
    first: IntArray
    size_bytes: IntArray
    state_bytes: IntArray
    vectors: Float32Array


class Contents(NamedTuple):
    """What lies on D devices.

    Attributes:
        held: (I, D) units of each item on each device.
        sums: (D, H) of the vectors on each device, bias included.
        size_bytes, units: (D,) bytes and units on each device.
        score: (D,) sum(relu(sums) * weight); 0 for an empty device.
    """

    held: IntArray
    sums: Float32Array
    size_bytes: IntArray
    units: IntArray
    score: FloatArray


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


class Weights(NamedTuple):
    """What steps are estimated by: `weight` (H,) of the head, and what a unit on the widest device adds to scores."""

    weight: Float32Array
    unit_score: float


class Steps(NamedTuple):
    """Where steps are written: (K, 5) the columns above, and (K,) what each leads to, estimated."""

    steps: IntArray
    estimate: FloatArray


@njit(cache=True, nogil=True)
def count_steps(held: IntArray, source: int) -> int:
    """How many steps there are at most."""
    portions, shards = 0, 0
    for t in range(held.shape[0]):
        units = held[t, source]
        shards += units > 0
        while units > 0:
            portions += 1
            units //= 2
    others = int(np.count_nonzero(held)) - shards
    return int(portions * (held.shape[1] - 1) + shards * others)


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _score_with(
    base: Float32Array,
    plus: Float32Array,
    minus: Float32Array,
    plus_too: Float32Array,
    minus_too: Float32Array,
    weight: Float32Array,
) -> float:
    total = np.float32(0)
    for h in range(len(weight)):
        total += max(base[h] + plus[h] - minus[h] + plus_too[h] - minus_too[h], np.float32(0)) * weight[h]
    return float(total)


@njit(cache=True, nogil=True)
def _may_move(
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


@njit(cache=True, nogil=True)
def _more_moved(all_shards: AllShards, item: int, was: int, now: int, then: int) -> int:
    """Bytes more that have to be moved to a device where `now` units of an item become `then`; once there `was`."""
    first, state_bytes = all_shards.first[item], all_shards.state_bytes
    return int(arriving_bytes(state_bytes, first, was, then) - arriving_bytes(state_bytes, first, was, now))


@njit(cache=True, nogil=True)
def _moved_by(
    all_shards: AllShards, held: IntArray, before: IntArray, item: int, portion: int, ends: tuple[int, int]
) -> int:
    """Bytes more that have to be moved when `portion` units of an item go from one of the `ends` to the other."""
    source, target = ends
    now_source, now_target = held[item, source], held[item, target]
    less = _more_moved(all_shards, item, before[item, source], now_source, now_source - portion)
    more = _more_moved(all_shards, item, before[item, target], now_target, now_target + portion)
    return int(less + more)


@njit(cache=True, nogil=True)
def estimate_steps(
    contents: Contents, source: int, all_shards: AllShards, bounds: Bounds, weights: Weights, found: Steps
) -> int:
    """Fill `found` with every step from `source` that is allowed; returns how many.

    A step moves a shard of the source, or a half, quarter, ... of it, to another device, or swaps it for a shard
    there. Its estimate is the largest score of a device plus `unit_score` times the widest device's units after it.
    `found` needs room for as many as `count_steps` says.
    """
    held, sums, size, units, score = contents
    limits, first, size_bytes, _, vectors = all_shards
    weight = weights.weight
    num_devices = held.shape[1]
    shards, start, items = _contents(held)
    out_items = items[start[source] : start[source + 1]]
    count = 0
    for target in range(num_devices):
        if target == source:
            continue
        other_score, other_units = 0.0, 0
        for d in range(num_devices):
            if d not in (source, target):
                other_score = max(other_score, score[d])
                other_units = max(other_units, units[d])
        back_items = items[start[target] : start[target + 1]]
        there, back_again = (source, target), (target, source)
        for i in out_items:
            portion = held[i, source]
            while portion > 0:
                whole = portion == held[i, source]
                bytes_out = _moved_by(all_shards, held, bounds.before, i, portion, there)
                out0, out1 = first[i] + held[i, source], first[i] + held[i, source] - portion
                in0, in1 = first[i] + held[i, target], first[i] + held[i, target] + portion
                for k in range(-1, len(back_items) if whole else 0):
                    b0 = b1 = c0 = c1 = first[i]  # an empty shard: nothing comes back
                    back = back_items[k] if k >= 0 else -1
                    back_units = held[back, target] if k >= 0 else 0
                    if back == i or not _may_move(limits, held, shards[i], i, portion, there, back):
                        continue
                    bytes_moved = bytes_out
                    if k >= 0:
                        if not _may_move(limits, held, shards[back], back, back_units, back_again, i):
                            continue
                        b0, b1 = first[back] + held[back, source], first[back] + held[back, source] + back_units
                        c0, c1 = first[back] + back_units, first[back]
                        bytes_moved += _moved_by(all_shards, held, bounds.before, back, back_units, back_again)
                    source_size = size[source] + size_bytes[out1] - size_bytes[out0] + size_bytes[b1] - size_bytes[b0]
                    target_size = size[target] + size_bytes[in1] - size_bytes[in0] + size_bytes[c1] - size_bytes[c0]
                    too_big = source_size > bounds.memory_bytes[source] or target_size > bounds.memory_bytes[target]
                    if too_big or bytes_moved > bounds.bytes_left:
                        continue
                    worst = max(
                        other_score,
                        _score_with(sums[target], vectors[in1], vectors[in0], vectors[c1], vectors[c0], weight),
                    )
                    source_units = units[source] - portion + back_units
                    if source_units > 0:
                        worst = max(
                            worst,
                            _score_with(sums[source], vectors[out1], vectors[out0], vectors[b1], vectors[b0], weight),
                        )
                    found.steps[count] = source, target, i, portion, back
                    widest = max(other_units, source_units, units[target] + portion - back_units)
                    found.estimate[count] = worst + weights.unit_score * widest
                    count += 1
                portion //= 2
    return count
