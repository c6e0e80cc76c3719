"""Greedy placement of many layouts under many caps, compiled: the inner loop of the search."""

import numpy as np
from numba import njit

from neuroshard.arrays import BoolArray, Float32Array, FloatArray, IntArray
from neuroshard.stages.search.space.items import Limits


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def place_greedily(  # noqa: PLR0912, PLR0915  # one compiled loop nest
    item: IntArray,
    width: IntArray,
    slot: IntArray,
    num_slots: int,
    caps: IntArray,
    memory_bytes: IntArray,
    limits: Limits,
    first: IntArray,
    size_bytes: IntArray,
    vectors: Float32Array,
    bias: Float32Array,
    weight: Float32Array,
    floor: float,
    devices: IntArray,
    score: FloatArray,
    units: IntArray,
    state: BoolArray,
) -> None:
    """Place S shards of each of P layouts, in order, under each of M caps, on D devices; fills the outputs.

    A shard goes to the device whose compute cost ends lowest, among those where its columns stay under the cap and
    its bytes in memory, and its item's limits allow it; the first among equals. Shards of one item that meet on a
    device become one shard. A device holding vectors that sum to v scores sum(relu(v + bias) * weight), at least
    `floor`, below which costs are 0.

    Args:
        item, width: (P, S) the shards, in order.
        slot: (P, S) for shards of a split item, its number among the layout's split items; else -1.
        num_slots: at least the number of split items in any layout.
        caps: (M,) units of 4 columns on a device at most.
        memory_bytes: (D,).
        limits: the items'; shards of an item that needs several devices get a device each.
        first, size_bytes, vectors: the catalog's.
        bias, weight: (H,) of the head.
        floor: the score from which on a device costs nothing.
        devices: (P, M, S) the device of each shard; -1 from the first that has no place on.
        score: (P, M, D) the sum above; 0 for an empty device.
        units: (P, M, D) units of 4 columns.
        state: (P, M, 2) whether every shard has a place, and whether the placement equals the previous cap's.
    """
    num_layouts, num_shards = item.shape
    num_devices, hidden = len(memory_bytes), len(bias)
    sums = np.empty((num_devices, hidden), np.float32)
    used = np.empty(num_devices, np.int64)
    held = np.empty((num_slots, num_devices), np.int64)
    present = np.zeros(limits.allowed.shape if len(limits.rivals) else (0, 0), np.bool_)
    for p in range(num_layouts):
        for m in range(len(caps)):
            for d in range(num_devices):
                sums[d] = bias
            used[:] = 0
            held[:] = 0
            present[:] = False
            devices[p, m] = -1
            state[p, m, 0] = True
            for s in range(num_shards):
                i, w, k = item[p, s], width[p, s], slot[p, s]
                best = -1
                best_score = np.inf
                for d in range(num_devices):
                    before = first[i] + (held[k, d] if k >= 0 else 0)
                    after = before + w
                    if units[p, m, d] + w > caps[m] or not limits.allowed[i, d]:
                        continue
                    if limits.min_shards[i] > 1 and k >= 0 and held[k, d] > 0:
                        continue
                    if used[d] + size_bytes[after] - size_bytes[before] > memory_bytes[d]:
                        continue
                    crossed = False
                    for r in range(limits.rival_first[i], limits.rival_first[i + 1]):
                        crossed = crossed or present[limits.rivals[r], d]
                    if crossed:
                        continue
                    total = np.float32(0)
                    for h in range(hidden):
                        total += max(sums[d, h] + vectors[after, h] - vectors[before, h], np.float32(0)) * weight[h]
                    device_score = max(np.float64(total), floor)
                    if device_score < best_score:
                        best, best_score = d, device_score
                if best < 0:
                    state[p, m, 0] = False
                    break
                before = first[i] + (held[k, best] if k >= 0 else 0)
                after = before + w
                for h in range(hidden):
                    sums[best, h] += vectors[after, h] - vectors[before, h]
                used[best] += size_bytes[after] - size_bytes[before]
                units[p, m, best] += w
                score[p, m, best] = best_score
                devices[p, m, s] = best
                if k >= 0:
                    held[k, best] += w
                if len(limits.rivals):
                    present[i, best] = True
            if m > 0 and state[p, m, 0] and state[p, m - 1, 0]:
                same = True
                for s in range(num_shards):
                    if devices[p, m, s] != devices[p, m - 1, s]:
                        same = False
                        break
                state[p, m, 1] = same
