"""Greedy placement of many layouts under many caps, compiled: the inner loop of the search."""

from typing import NamedTuple

import numpy as np

from neuroshard.plumbing.arrays import BoolArray, Float32Array, FloatArray, IntArray
from neuroshard.stages.search.kernels.estimates import score_with
from neuroshard.stages.search.space.compiled import kernel, leaf
from neuroshard.stages.search.space.sizes import Room, may_join, takes_bytes


class PlacementGrid(NamedTuple):
    """Placements of P layouts of S shards under each of M caps on D devices.

    Attributes:
        shards: (P, S, 2) item and width, in the order in which they are placed.
        devices: (P, M, S) the device of each shard; -1 from the first that has no place on.
        compute_ms: (P, M, D) compute cost; while they are placed, scores that it rises with.
        units: (P, M, D) of 4 columns, that a sample gets of each device.
        alive: (P, M) whether every shard has a place.
        repeated: (P, M) whether the placement is the previous cap's again.
    """

    shards: IntArray
    devices: IntArray
    compute_ms: FloatArray
    units: FloatArray
    alive: BoolArray
    repeated: BoolArray


class Scores(NamedTuple):
    """What shards are placed by: a device holding vectors that sum to v scores sum(relu(v + bias) * weight).

    Attributes:
        vectors: (N, H) of every shard.
        least: (N,) what each adds to the score of a device that holds nothing of its item, at least.
        bias, weight: (H,).
        counted: the number of leading vector entries that alone count until all shards are placed.
        floor: that no score is below, since costs there are 0; an empty device scores 0.
    """

    vectors: Float32Array
    least: FloatArray
    bias: Float32Array
    weight: Float32Array
    counted: int
    floor: float


class _Alone(NamedTuple):
    """S shards of a layout on devices that hold no other shard of their items: gathered once, since catalogs are large.

    Attributes:
        adds: (S,) to a score, at least.
        gives, takes: (S,) units of 4 columns and bytes.
        vectors: (S, H).
    """

    adds: FloatArray
    gives: FloatArray
    takes: IntArray
    vectors: Float32Array


@kernel
def _alone(room: Room, layout: IntArray, scores: Scores) -> _Alone:
    empty = room.first[layout[:, 0]]
    shard = empty + layout[:, 1]
    takes = room.size_bytes[shard] - room.size_bytes[empty]
    return _Alone(scores.least[shard], room.given[shard], takes, scores.vectors[shard])


@leaf
def _settle(heap: IntArray, size: int, node: int, score: FloatArray) -> None:
    """Move the device at a node of a heap, lowest score on top, to where its score belongs."""
    device = heap[node]
    while node > 0 and score[heap[(node - 1) // 2]] > score[device]:
        heap[node] = heap[(node - 1) // 2]
        node = (node - 1) // 2
    while 2 * node + 1 < size:
        child = 2 * node + 1
        if child + 1 < size and score[heap[child + 1]] < score[heap[child]]:
            child += 1
        if score[heap[child]] >= score[device]:
            break
        heap[node] = heap[child]
        node = child
    heap[node] = device


@leaf
def _least_given(gives: FloatArray, least: FloatArray) -> None:
    """Write down the units that each shard, or any after it, gives out at least, (S,), of what each gives (S,)."""
    for s in range(len(gives) - 1, -1, -1):
        least[s] = gives[s] if s + 1 == len(gives) else min(gives[s], least[s + 1])


@kernel
def _remembered(room: Room, layout: IntArray) -> BoolArray:
    """Return which items (I,) of a layout (S, 2) may meet their own shards or rivals.

    What is held matters for these alone: that matrix is large, and to write to it takes longer than all else.
    """
    has_rivals = room.limits.rival_first[1:] > room.limits.rival_first[:-1]
    several: BoolArray = np.bincount(layout[:, 0], minlength=len(has_rivals)) > 1
    return several | has_rivals


@leaf
def _without_full(heap: IntArray, size: int, room: Room, least: float, score: FloatArray) -> int:
    """Take devices that may not give out `least` units more out of a heap; count those that stay."""
    kept = 0
    for node in range(size):
        if room.free_units[heap[node]] >= least:
            heap[kept] = heap[node]
            kept += 1
            _settle(heap, kept, kept - 1, score)
    return kept


@kernel
def place_greedily(  # noqa: PLR0912, PLR0915  # one loop: calls take longer than what they would do
    outcome: PlacementGrid,
    caps: IntArray,
    memory_bytes: IntArray,
    base_score: FloatArray,
    room: Room,
    scores: Scores,
) -> None:
    """Place S shards of each of P layouts, in order, under each of M caps, on D devices: all but the shards is output.

    A shard goes to the device whose compute cost ends lowest, among those where what is given out stays under the cap
    and its bytes in memory, and its item's limits allow it; the first among equals. Shards of one item that meet on a
    device become one shard. Devices are looked at from the lowest score on, as long as what the shard adds at least
    could make them the best. Those that the cap closes to all shards to come are left out from then on.

    Args:
        outcome: the shards, and room for where they go.
        caps: (M,) units of 4 columns that a device gives out at most, ascending.
        memory_bytes: (D,).
        base_score: (D,) of tables that are there already; zeros if it is alike on all devices.
        room: devices that hold nothing, to be filled again and again, and that hold nothing afterwards.
        scores: the shards'.
    """
    shards, first, held = outcome.shards, room.first, room.held
    num_layouts, num_shards, _ = shards.shape
    num_devices = len(memory_bytes)
    vectors, _, bias, weight, counted, floor = scores
    sums = np.empty((num_devices, len(bias)), np.float32)
    heap, branches = np.empty(num_devices, np.int64), np.empty(num_devices, np.int64)
    spread, least = np.zeros(len(held), np.int64), np.empty(num_shards)  # devices that hold each item; `_least_given`
    idle_score, by_base = max(0.0, floor), np.argsort(base_score)
    started = num_devices if base_score.any() else 0  # devices that are no longer all alike
    nothing, counting = np.zeros(len(bias), np.float32), weight[:counted]
    for p in range(num_layouts):
        alone, remembered = _alone(room, shards[p], scores), _remembered(room, shards[p])
        _least_given(alone.gives, least)
        for m in range(len(caps)):
            for d in range(num_devices):
                sums[d] = bias
            room.free_bytes[:] = memory_bytes
            room.free_units[:] = caps[m]
            devices, score = outcome.devices[p, m], outcome.compute_ms[p, m]
            devices[:] = -1
            heap[:], score[:] = by_base, base_score + idle_score
            in_use, first_idle, capped = started, started, False
            for s in range(num_shards):
                i, w = shards[p, s, 0], shards[p, s, 1]
                best, best_score, best_node = -1, np.inf, -1
                adds, gives = alone.adds[s], alone.gives[s]
                waiting = min(in_use, 1)
                branches[0] = 0
                while waiting:
                    waiting -= 1
                    node = branches[waiting]
                    d = heap[node]
                    beyond = score[d] + adds > best_score
                    if beyond and spread[i] == 0:
                        continue  # so are the devices below it
                    for child in range(2 * node + 1, min(2 * node + 3, in_use)):
                        branches[waiting] = child
                        waiting += 1
                    there = held[i, d] if spread[i] else 0
                    if beyond and there == 0:
                        continue
                    capped |= gives > room.free_units[d]
                    takes = alone.takes[s] if there == 0 else takes_bytes(room, i, w, there)
                    if may_join(room, i, d, there, gives, takes):
                        if there == 0:
                            total = max(score_with(sums[d], alone.vectors[s], nothing, counting), floor)
                        else:
                            before = first[i] + there
                            total = max(score_with(sums[d], vectors[before + w], vectors[before], counting), floor)
                        total += base_score[d]
                        if total < best_score or (total == best_score and d < best):
                            best, best_score, best_node = d, total, node
                for d in range(first_idle, num_devices):
                    if idle_score + adds > best_score:
                        break
                    if room.free_units[d] < caps[m]:
                        first_idle += d == first_idle
                        continue
                    capped |= gives > room.free_units[d]
                    if may_join(room, i, d, 0, gives, alone.takes[s]):
                        total = max(score_with(sums[d], alone.vectors[s], nothing, counting), floor)
                        if total < best_score or (total == best_score and d < best):
                            best, best_score, best_node = d, total, in_use
                        break  # of devices that hold nothing, the first stands for all
                if best < 0:
                    break
                there = held[i, best] if spread[i] else 0
                before = first[i] + there
                for h in range(len(bias)):
                    sums[best, h] += vectors[before + w, h] - vectors[before, h] if there else alone.vectors[s, h]
                room.free_bytes[best] -= takes_bytes(room, i, w, there) if there else alone.takes[s]
                room.free_units[best] -= gives
                if remembered[i]:
                    spread[i] += there == 0
                    held[i, best] += w
                score[best] = best_score
                devices[s] = best
                if best_node == in_use:
                    heap[in_use] = best
                    in_use += 1
                if s + 1 < num_shards and room.free_units[best] < least[s + 1]:  # full
                    in_use, capped = in_use - 1, True
                    heap[best_node] = heap[in_use]
                if best_node < in_use:
                    _settle(heap, in_use, best_node, score)
                if s + 1 < num_shards and least[s] < least[s + 1]:
                    before = in_use
                    in_use = _without_full(heap, in_use, room, least[s + 1], score)
                    capped |= in_use < before
            for d in range(num_devices):
                score[d] = max(score_with(sums[d], nothing, nothing, weight), floor)
            outcome.units[p, m] = caps[m] - room.free_units
            outcome.alive[p, m] = devices[-1] >= 0
            outcome.repeated[p, m] = m > 0 and outcome.alive[p, m] and (devices == outcome.devices[p, m - 1]).all()
            for s in range(num_shards):
                if devices[s] >= 0 and remembered[shards[p, s, 0]]:
                    held[shards[p, s, 0], devices[s]] = 0
                    spread[shards[p, s, 0]] = 0
            if not capped:  # nor would any higher cap be felt
                for higher in range(m + 1, len(caps)):
                    outcome.devices[p, higher] = devices
                    outcome.compute_ms[p, higher] = score
                    outcome.units[p, higher] = outcome.units[p, m]
                    outcome.alive[p, higher] = outcome.repeated[p, higher] = outcome.alive[p, m]
                break
