"""All steps of the local search away from one device, estimated: compiled."""

import numpy as np
from numba import njit

from neuroshard.arrays import Float32Array, FloatArray, IntArray
from neuroshard.stages.search.space.items import Limits

# Columns of a step: source, target, item that goes, units of it, item that comes back (-1: none).
SOURCE, TARGET, ITEM_OUT, UNITS_OUT, ITEM_BACK = range(5)


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
    held: IntArray, shards: int, limits: Limits, item: int, portion: int, source: int, target: int, leaving: int
) -> bool:
    """Whether `portion` units of an item may go from source to target while the item `leaving` goes the other way.

    The item is on `shards` devices now.
    """
    if not limits.allowed[item, target]:
        return False
    after = shards - (portion == held[item, source]) + (held[item, target] == 0)
    if not limits.min_shards[item] <= after <= limits.max_shards[item]:
        return False
    if 0 < held[item, source] - portion < limits.min_width[item]:
        return False
    if held[item, target] + portion < limits.min_width[item]:
        return False
    for r in range(limits.rival_first[item], limits.rival_first[item + 1]):
        if limits.rivals[r] != leaving and held[limits.rivals[r], target] > 0:
            return False
    return True


@njit(cache=True, nogil=True)
def _moved(now: int, then: int, was: int, first: int, state_bytes: IntArray) -> int:
    """Bytes more that have to be moved to a device where `now` units of an item become `then`; once there `was`."""
    more = max(state_bytes[first + then] - state_bytes[first + was], 0)
    return int(more - max(state_bytes[first + now] - state_bytes[first + was], 0))


@njit(cache=True, nogil=True)
def _moved_by(
    held: IntArray,
    before: IntArray,
    first: IntArray,
    state_bytes: IntArray,
    item: int,
    portion: int,
    ends: tuple[int, int],
) -> int:
    """Bytes more that have to be moved when `portion` units of an item go from one of the two `ends` to the other."""
    source, target = ends
    gone = held[item, source] - portion
    come = held[item, target] + portion
    return _moved(held[item, source], gone, before[item, source], first[item], state_bytes) + _moved(
        held[item, target], come, before[item, target], first[item], state_bytes
    )


@njit(cache=True, nogil=True)
def estimate_steps(  # one compiled loop nest
    held: IntArray,
    source: int,
    sums: Float32Array,
    size: IntArray,
    units: IntArray,
    score: FloatArray,
    memory_bytes: IntArray,
    limits: Limits,
    before: IntArray,
    may_move: int,
    first: IntArray,
    size_bytes: IntArray,
    state_bytes: IntArray,
    vectors: Float32Array,
    weight: Float32Array,
    unit_score: float,
    steps: IntArray,
    estimate: FloatArray,
) -> int:
    """Fill `steps` (K, 5) and `estimate` (K,) with every step from `source` that is allowed; returns how many.

    A step moves a shard of the source, or a half, quarter, ... of it, to another device, or swaps it for a shard
    there. Its estimate is the largest score of a device plus `unit_score` times the widest device's units after it.

    Args:
        held: (I, D) units of each item on each device.
        sums: (D, H) of the vectors on each device, bias included.
        size, units: (D,) bytes and units on each device.
        score: (D,) sum(relu(sums) * weight); 0 for an empty device.
        memory_bytes: (D,).
        limits: the items'.
        before: (I, D) units that were there before anything moved; `may_move` more bytes may be moved than are now.
        first, size_bytes, state_bytes, vectors: the catalog's.
        weight: (H,).
        unit_score: what a unit on the widest device adds, on the scale of the scores.
    """
    num_devices = held.shape[1]
    shards, start, items = _contents(held)
    out_items = items[start[source] : start[source + 1]]
    found = 0
    for target in range(num_devices):
        if target == source:
            continue
        other_score, other_units = 0.0, 0
        for d in range(num_devices):
            if d not in (source, target):
                other_score = max(other_score, score[d])
                other_units = max(other_units, units[d])
        back_items = items[start[target] : start[target + 1]]
        for i in out_items:
            portion = held[i, source]
            while portion > 0:
                whole = portion == held[i, source]
                bytes_out = _moved_by(held, before, first, state_bytes, i, portion, (source, target))
                out0, out1 = first[i] + held[i, source], first[i] + held[i, source] - portion
                in0, in1 = first[i] + held[i, target], first[i] + held[i, target] + portion
                for k in range(-1, len(back_items) if whole else 0):
                    b0 = b1 = c0 = c1 = first[i]  # an empty shard: nothing comes back
                    back = back_items[k] if k >= 0 else -1
                    back_units = held[back, target] if k >= 0 else 0
                    if back == i or not _may_move(held, shards[i], limits, i, portion, source, target, back):
                        continue
                    bytes_moved = bytes_out
                    if k >= 0:
                        if not _may_move(held, shards[back], limits, back, back_units, target, source, i):
                            continue
                        b0, b1 = first[back] + held[back, source], first[back] + held[back, source] + back_units
                        c0, c1 = first[back] + back_units, first[back]
                        bytes_moved += _moved_by(held, before, first, state_bytes, back, back_units, (target, source))
                    source_size = size[source] + size_bytes[out1] - size_bytes[out0] + size_bytes[b1] - size_bytes[b0]
                    target_size = size[target] + size_bytes[in1] - size_bytes[in0] + size_bytes[c1] - size_bytes[c0]
                    too_big = source_size > memory_bytes[source] or target_size > memory_bytes[target]
                    if too_big or bytes_moved > may_move:
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
                    steps[found] = source, target, i, portion, back
                    widest = max(other_units, source_units, units[target] + portion - back_units)
                    estimate[found] = worst + unit_score * widest
                    found += 1
                portion //= 2
    return found
