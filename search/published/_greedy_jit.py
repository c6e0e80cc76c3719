"""Places the shards of column splits greedily on devices, once for each limit on sent columns, in compiled code.

This is the inner loop of the search. It places shards as `greedy.place_greedily` does, but visits devices in ascending
score, and stops as soon as the score plus the least that the shard adds (`least_score`) exceeds the best score found.
"""

from typing import NamedTuple

import numpy as np

from neuroshard.plumbing.arrays import BoolArray, Float32Array, FloatArray, IntArray
from neuroshard.stages.search.jit import jit, jit_inline
from neuroshard.stages.search.published.device_room import DeviceRoom, may_join, more_bytes, score_with
from neuroshard.stages.search.published.greedy import DeviceScore, Placements
from neuroshard.stages.search.published.shard_table import ShardTable


class _Alone(NamedTuple):
    """The score, traffic and memory that each of S shards adds to a device that has no other shard of the same item.

    Attributes:
        adds: (S,) lower bound of the score that the shard adds.
        sends: (S,) units of 4 columns that the device sends for each sample.
        takes: (S,) bytes of memory on the device.
        vectors: (S, H) vectors by which the compute model describes the shards.
    """

    adds: FloatArray
    sends: FloatArray
    takes: IntArray
    vectors: Float32Array


@jit
def _alone(shards: ShardTable, placed: IntArray) -> _Alone:
    """Return `_Alone` of S shards; a row of `placed` (S, 2) is a shard: (item, width in units of 4 columns)."""
    empty = shards.first[placed[:, 0]]
    row = empty + placed[:, 1]
    takes = shards.size_bytes[row] - shards.size_bytes[empty]
    return _Alone(shards.least_score[row], shards.sent_units[row], takes, shards.vectors[row])


@jit_inline
def _settle(heap: IntArray, size: int, node: int, score: FloatArray) -> None:
    """Move the device at `node` of a heap up or down until the heap is in order; the lowest score is at the top."""
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


@jit_inline
def _least_to_come(sends: FloatArray, least: FloatArray) -> None:
    """For each shard s, set `least[s]` to the fewest units (4 columns) that s or any later shard sends per sample."""
    for s in range(len(sends) - 1, -1, -1):
        least[s] = sends[s] if s + 1 == len(sends) else min(sends[s], least[s + 1])


@jit
def _remembered(shards: ShardTable, placed: IntArray) -> BoolArray:
    """Return a mask (I,) for I items: True if the greedy loop must record the item's width on each device.

    Such an item has several shards in `placed` (S, 2), or has rivals (`PlacementRules`). Recording all would be slow.
    """
    has_rivals = shards.rules.rival_first[1:] > shards.rules.rival_first[:-1]
    several: BoolArray = np.bincount(placed[:, 0], minlength=len(has_rivals)) > 1
    return several | has_rivals


@jit_inline
def _without_full(heap: IntArray, size: int, room: DeviceRoom, least: float, score: FloatArray) -> int:
    """Remove from the heap each device with fewer than `least` free units (of 4 columns), and return the new size."""
    kept = 0
    for node in range(size):
        if room.free_units[heap[node]] >= least:
            heap[kept] = heap[node]
            kept += 1
            _settle(heap, kept, kept - 1, score)
    return kept


@jit
def place_all_greedily(  # noqa: PLR0912, PLR0915  # one loop: calls take longer than their work
    outcome: Placements,
    caps: IntArray,
    memory_bytes: IntArray,
    fixed_score: FloatArray,
    room: DeviceRoom,
    shards: ShardTable,
    device_score: DeviceScore,
) -> None:
    """Fill `outcome` with P * M greedy placements: each of P column splits on D devices, under each of M limits `caps`.

    A shard goes to the device whose score ends lowest, among the devices with memory and units for it where the rules
    allow it; the first among equals. Shards of one item that meet on a device become one shard.

    Devices in use are in a heap by score, `heap[:in_use]`, without those that have fewer units left than any later
    shard sends (`least`). A shard adds at least `adds` to a score, and nodes below a node have no lower scores. So if
    score + adds exceeds the best score found, the whole branch is skipped; unless the item has shards already
    (`spread`), because a shard that joins another shard may add less. Idle devices are alike, so only the first with
    room is tried; with different fixed scores, all devices count as in use from the start (`started`). If the cap has
    excluded no device (`capped`), the placement is the same under all higher caps, and is copied to them.

    Args:
        outcome: the shards; all other arrays are filled.
        caps: (M,) most units that a device sends for each sample, ascending.
        memory_bytes: (D,) memory of each device.
        fixed_score: (D,) score of the tables that are there already; zeros if it is alike on all devices.
        room: empty devices, filled again and again, and with no shards afterwards.
        shards: all shards.
        device_score: the score by which devices are compared.
    """
    rules, first, vectors, widths = shards.rules, shards.first, shards.vectors, room.widths
    placed = outcome.shards
    num_splits, num_shards, _ = placed.shape
    num_devices = len(memory_bytes)
    bias, weight, counted, floor = device_score
    sums = np.empty((num_devices, len(bias)), np.float32)
    heap, branches = np.empty(num_devices, np.int64), np.empty(num_devices, np.int64)
    spread, least = np.zeros(len(widths), np.int64), np.empty(num_shards)  # devices of each item; `_least_to_come`
    by_fixed, started = np.argsort(fixed_score), num_devices if fixed_score.any() else 0  # in use at the start
    nothing, counting = np.zeros(len(bias), np.float32), weight[:counted]
    idle_score = max(score_with(bias, nothing, nothing, counting), floor)  # the bias alone may lower a score below 0
    for p in range(num_splits):
        alone, remembered = _alone(shards, placed[p]), _remembered(shards, placed[p])
        _least_to_come(alone.sends, least)
        for m in range(len(caps)):
            for d in range(num_devices):
                sums[d] = bias
            room.free_bytes[:] = memory_bytes
            room.free_units[:] = caps[m]
            devices, score = outcome.devices[p, m], outcome.compute_ms[p, m]
            devices[:] = -1
            heap[:], score[:] = by_fixed, fixed_score + idle_score
            in_use, first_idle, capped = started, started, False
            for s in range(num_shards):
                i, w = placed[p, s, 0], placed[p, s, 1]
                best, best_score, best_node = -1, np.inf, -1
                adds, sends = alone.adds[s], alone.sends[s]
                waiting = min(in_use, 1)
                branches[0] = 0
                while waiting:
                    waiting -= 1
                    node = branches[waiting]
                    d = heap[node]
                    beyond = score[d] + adds > best_score
                    if beyond and spread[i] == 0:
                        continue  # nodes below have no lower scores
                    for child in range(2 * node + 1, min(2 * node + 3, in_use)):
                        branches[waiting] = child
                        waiting += 1
                    there = widths[i, d] if spread[i] else 0
                    if beyond and there == 0:
                        continue
                    capped |= sends > room.free_units[d]
                    takes = alone.takes[s] if there == 0 else more_bytes(shards, i, w, there)
                    if may_join(rules, room, i, d, there, sends, takes):
                        if there == 0:
                            total = max(score_with(sums[d], alone.vectors[s], nothing, counting), floor)
                        else:
                            before = first[i] + there
                            total = max(score_with(sums[d], vectors[before + w], vectors[before], counting), floor)
                        total += fixed_score[d]
                        if total < best_score or (total == best_score and d < best):
                            best, best_score, best_node = d, total, node
                for d in range(first_idle, num_devices):
                    if idle_score + adds > best_score:
                        break
                    if room.free_units[d] < caps[m]:
                        first_idle += d == first_idle
                        continue
                    capped |= sends > room.free_units[d]
                    if may_join(rules, room, i, d, 0, sends, alone.takes[s]):
                        total = max(score_with(sums[d], alone.vectors[s], nothing, counting), floor)
                        if total < best_score or (total == best_score and d < best):
                            best, best_score, best_node = d, total, in_use
                        break  # idle devices are alike: the first stands for all
                if best < 0:
                    break
                there = widths[i, best] if spread[i] else 0
                before = first[i] + there
                for h in range(len(bias)):
                    sums[best, h] += vectors[before + w, h] - vectors[before, h] if there else alone.vectors[s, h]
                room.free_bytes[best] -= more_bytes(shards, i, w, there) if there else alone.takes[s]
                room.free_units[best] -= sends
                if remembered[i]:
                    spread[i] += there == 0
                    widths[i, best] += w
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
            outcome.sent_units[p, m] = caps[m] - room.free_units
            outcome.fits[p, m] = devices[-1] >= 0
            outcome.repeated[p, m] = m > 0 and outcome.fits[p, m] and (devices == outcome.devices[p, m - 1]).all()
            for s in range(num_shards):
                if devices[s] >= 0 and remembered[placed[p, s, 0]]:
                    widths[placed[p, s, 0], devices[s]] = 0
                    spread[placed[p, s, 0]] = 0
            if not capped:  # the cap excluded nothing, so higher caps give the same placement
                for higher in range(m + 1, len(caps)):
                    outcome.devices[p, higher] = devices
                    outcome.compute_ms[p, higher] = score
                    outcome.sent_units[p, higher] = outcome.sent_units[p, m]
                    outcome.fits[p, higher] = outcome.repeated[p, higher] = outcome.fits[p, m]
                break
