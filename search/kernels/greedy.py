"""Greedy placement of many layouts under many caps, compiled: the inner loop of the search."""

from typing import NamedTuple

import numpy as np
from numba import njit

from neuroshard.arrays import BoolArray, Float32Array, FloatArray, IntArray
from neuroshard.stages.search.space.compiled import leaf
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


@leaf
def _least_loaded(score: FloatArray) -> int:
    """The first device of the lowest score."""
    least = 0
    for d in range(1, len(score)):
        if score[d] < score[least]:
            least = d
    return least


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def place_greedily(  # noqa: PLR0912  # one loop: calls take longer than what they would do
    shards: IntArray,
    caps: IntArray,
    memory_bytes: IntArray,
    room: Room,
    vectors: Float32Array,
    least_score: FloatArray,
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
        vectors, least_score: the catalog's.
        head: what scores devices.
        outcome: the outputs; scores are 0 before.
    """
    bias, weight, floor = head
    first, held = room.first, room.held
    num_layouts, num_shards, _ = shards.shape
    num_devices, hidden = len(memory_bytes), len(bias)
    sums = np.empty((num_devices, hidden), np.float32)
    for p in range(num_layouts):
        for m in range(len(caps)):
            for d in range(num_devices):
                sums[d] = bias
            room.free_bytes[:] = memory_bytes
            room.free_units[:] = caps[m]
            devices, score = outcome.devices[p, m], outcome.score[p, m]
            devices[:] = -1
            for s in range(num_shards):
                i, w = shards[p, s, 0], shards[p, s, 1]
                best, best_score, nothing_there = -1, np.inf, False
                empty, adds = first[i], least_score[first[i] + w]
                likely = _least_loaded(score)  # tried first: it rules most others out
                for attempt in range(-1, num_devices):
                    d = attempt if attempt >= 0 else likely
                    before = empty + held[i, d]
                    known = score[d] if score[d] > floor else 0.0
                    if before == empty and known + adds > best_score:
                        continue
                    if (attempt == likely) or (nothing_there and caps[m] == room.free_units[d]):
                        continue  # of devices that hold nothing, the first stands for all
                    if not may_put(room, i, w, d):
                        continue
                    total = np.float32(0)
                    for h in range(hidden):
                        total += (
                            max(sums[d, h] + vectors[before + w, h] - vectors[before, h], np.float32(0)) * weight[h]
                        )
                    device_score = max(np.float64(total), floor)
                    nothing_there = nothing_there or caps[m] == room.free_units[d]
                    if device_score < best_score or (device_score == best_score and d < best):
                        best, best_score = d, device_score
                if best < 0:
                    break
                before = first[i] + held[i, best]
                for h in range(hidden):
                    sums[best, h] += vectors[before + w, h] - vectors[before, h]
                put(room, i, w, best)
                score[best] = best_score
                devices[s] = best
            outcome.units[p, m] = caps[m] - room.free_units
            outcome.alive[p, m] = devices[-1] >= 0
            outcome.repeated[p, m] = m > 0 and outcome.alive[p, m] and (devices == outcome.devices[p, m - 1]).all()
            for s in range(num_shards):
                if devices[s] >= 0:
                    held[shards[p, s, 0], devices[s]] = 0
