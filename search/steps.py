"""All steps of the local search away from one device, estimated: compiled."""

import numpy as np
from numba import njit

from neuroshard.arrays import Float32Array, FloatArray, IntArray

# Columns of a step: source, target, table that goes, units of it, table that comes back (-1: none).
SOURCE, TARGET, TABLE_OUT, UNITS_OUT, TABLE_BACK = range(5)


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
def estimate_steps(
    held: IntArray,
    source: int,
    sums: Float32Array,
    size: IntArray,
    units: IntArray,
    score: FloatArray,
    memory_bytes: IntArray,
    first: IntArray,
    size_bytes: IntArray,
    vectors: Float32Array,
    weight: Float32Array,
    unit_score: float,
    steps: IntArray,
    estimate: FloatArray,
) -> int:
    """Fill `steps` (K, 5) and `estimate` (K,) with every step from `source` that fits in memory; returns how many.

    A step moves a shard of the source, or a half, quarter, ... of it, to another device, or swaps it for a shard
    there. Its estimate is the largest score of a device plus `unit_score` times the widest device's units after it.

    Args:
        held: (T, D) units of each table on each device.
        sums: (D, H) of the vectors on each device, bias included.
        size, units: (D,) bytes and units on each device.
        score: (D,) sum(relu(sums) * weight); 0 for an empty device.
        memory_bytes: (D,).
        first, size_bytes, vectors: the catalog's.
        weight: (H,).
        unit_score: what a unit on the widest device adds, on the scale of the scores.
    """
    num_tables, num_devices = held.shape
    found = 0
    for target in range(num_devices):
        if target == source:
            continue
        other_score, other_units = 0.0, 0
        for d in range(num_devices):
            if d not in (source, target):
                other_score = max(other_score, score[d])
                other_units = max(other_units, units[d])
        back_tables = np.flatnonzero(held[:, target])
        for t in range(num_tables):
            portion = held[t, source]
            while portion > 0:
                out0, out1 = first[t] + held[t, source], first[t] + held[t, source] - portion
                in0, in1 = first[t] + held[t, target], first[t] + held[t, target] + portion
                whole = portion == held[t, source]
                for k in range(-1, len(back_tables) if whole else 0):
                    b0 = b1 = c0 = c1 = first[t]  # an empty shard: nothing comes back
                    back, back_units = -1, 0
                    if k >= 0:
                        back = back_tables[k]
                        if back == t:
                            continue
                        back_units = held[back, target]
                        b0, b1 = first[back] + held[back, source], first[back] + held[back, source] + back_units
                        c0, c1 = first[back] + back_units, first[back]
                    source_size = size[source] + size_bytes[out1] - size_bytes[out0] + size_bytes[b1] - size_bytes[b0]
                    target_size = size[target] + size_bytes[in1] - size_bytes[in0] + size_bytes[c1] - size_bytes[c0]
                    if source_size > memory_bytes[source] or target_size > memory_bytes[target]:
                        continue
                    source_units = units[source] - portion + back_units
                    target_units = units[target] + portion - back_units
                    worst = other_score
                    if source_units > 0:
                        worst = max(
                            worst,
                            _score_with(sums[source], vectors[out1], vectors[out0], vectors[b1], vectors[b0], weight),
                        )
                    worst = max(
                        worst, _score_with(sums[target], vectors[in1], vectors[in0], vectors[c1], vectors[c0], weight)
                    )
                    widest = max(other_units, source_units, target_units)
                    steps[found] = source, target, t, portion, back
                    estimate[found] = worst + unit_score * widest
                    found += 1
                portion //= 2
    return found
