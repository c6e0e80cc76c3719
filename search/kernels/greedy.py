"""Greedy placement of many layouts under many caps, compiled: the inner loop of the search."""

from typing import NamedTuple

import numpy as np
from numba import njit

from neuroshard.arrays import BoolArray, Float32Array, FloatArray, IntArray
from neuroshard.stages.search.space.room import Room, may_put, put


class Head(NamedTuple):
    """What devices are scored by.

    A device holding vectors that sum to v scores sum(relu(v + bias) * weight), at least `floor`, below which costs
    are 0; bias and weight are (H,).
    """

    bias: Float32Array
    weight: Float32Array
    floor: float


class GreedyOutcome(NamedTuple):
    """Where S shards of each of P layouts went under each of M caps on D devices; filled by `place_greedily`.

    Attributes:
        devices: (P, M, S) the device of each shard; -1 from the first that has no place on.
        score: (P, M, D) the head's; 0 for an empty device.
        units: (P, M, D) units of 4 columns.
        alive: (P, M) whether every shard has a place.
        repeated: (P, M) whether the placement equals the previous cap's.
    """

    devices: IntArray
    score: FloatArray
    units: IntArray
    alive: BoolArray
    repeated: BoolArray


@njit(cache=True, nogil=True)
def _same(some: IntArray, others: IntArray) -> bool:
    for one, other in zip(some, others):  # noqa: B905  # compiled functions know no `strict`
        if one != other:
            return False
    return True


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def place_greedily(
    shards: IntArray,
    caps: IntArray,
    memory_bytes: IntArray,
    room: Room,
    vectors: Float32Array,
    head: Head,
    outcome: GreedyOutcome,
) -> None:
    """Place S shards of each of P layouts, in order, under each of M caps, on D devices; fills `outcome`.

    A shard goes to the device whose compute cost ends lowest, among those where its columns stay under the cap and
    its bytes in memory, and its item's limits allow it; the first among equals. Shards of one item that meet on a
    device become one shard.

    Args:
        shards: (P, S, 2) item and width, in order.
        caps: (M,) units of 4 columns on a device at most.
        memory_bytes: (D,).
        room: devices that hold nothing, to be filled again and again, and that hold nothing afterwards.
        vectors: the catalog's.
        head: what scores devices.
        outcome: the outputs; scores are 0 before.
    """
    num_layouts, num_shards, _ = shards.shape
    num_devices, hidden = len(memory_bytes), len(head.bias)
    sums = np.empty((num_devices, hidden), np.float32)
    for p in range(num_layouts):
        for m in range(len(caps)):
            for d in range(num_devices):
                sums[d] = head.bias
            room.free_bytes[:] = memory_bytes
            room.free_units[:] = caps[m]
            devices, score = outcome.devices[p, m], outcome.score[p, m]
            devices[:] = -1
            for s in range(num_shards):
                i, w = shards[p, s, 0], shards[p, s, 1]
                best = -1
                best_score = np.inf
                for d in range(num_devices):
                    if not may_put(room, i, w, d):
                        continue
                    before = room.first[i] + room.held[i, d]
                    after = before + w
                    total = np.float32(0)
                    for h in range(hidden):
                        total += (
                            max(sums[d, h] + vectors[after, h] - vectors[before, h], np.float32(0)) * head.weight[h]
                        )
                    device_score = max(np.float64(total), head.floor)
                    if device_score < best_score:
                        best, best_score = d, device_score
                if best < 0:
                    break
                before = room.first[i] + room.held[i, best]
                for h in range(hidden):
                    sums[best, h] += vectors[before + w, h] - vectors[before, h]
                put(room, i, w, best)
                score[best] = best_score
                devices[s] = best
            outcome.units[p, m] = caps[m] - room.free_units
            outcome.alive[p, m] = devices[-1] >= 0
            outcome.repeated[p, m] = m > 0 and outcome.alive[p, m] and _same(devices, outcome.devices[p, m - 1])
            for s in range(num_shards):
                if devices[s] >= 0:
                    room.held[shards[p, s, 0], devices[s]] = 0
