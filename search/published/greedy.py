"""Greedy placement (Zha et al. 2023, section 3.3): each shard goes where the device's new compute time is lowest.

`place_greedily` states the algorithm in NumPy. `_greedy_jit.py` does the same for many column splits under many caps at
once, compiled; a test holds the two equal. `grid.placement_order` orders the shards: by falling cost, `confined` first.
"""

from typing import NamedTuple

import numpy as np

from neuroshard.plumbing.arrays import BoolArray, Float32Array, FloatArray, IntArray
from neuroshard.stages.search.published.shard_table import ShardTable


class DeviceScore(NamedTuple):
    """The score by which greedy placement compares devices; a device with a higher score has more compute time.

    A device whose shards have vectors that sum to v has the score max(relu(v + bias) @ weight, floor).

    Attributes:
        bias, weight: (H,) of the compute model's head.
        counted: only so many leading entries of v count while shards are placed; the final score counts all entries.
        floor: lowest score: below it, compute time is 0.
    """

    bias: Float32Array
    weight: Float32Array
    counted: int
    floor: float

    def of(self, vectors: Float32Array) -> FloatArray:
        """Return the score of each of n devices, (n,); `vectors` (n, H) are the sums of each device's shard vectors."""
        active = np.maximum(vectors[:, : self.counted] + self.bias[: self.counted], 0)
        score: FloatArray = np.maximum((active @ self.weight[: self.counted]).astype(np.float64), self.floor)
        return score


class Placements(NamedTuple):
    """P * M placements on D devices: one for each of P column splits into S shards, under each of M caps on traffic.

    Attributes:
        shards: (P, S, 2) item and width of each shard, in the order in which the shards are placed.
        devices: (P, M, S) device of each shard; -1 from the first shard on that fits nowhere.
        compute_ms: (P, M, D) predicted compute time of the placed shards; scores while they are placed.
        sent_units: (P, M, D) units that each device sends for each sample.
        fits: (P, M) True if every shard has a device.
        repeated: (P, M) True if the placement is that of the previous cap.
    """

    shards: IntArray
    devices: IntArray
    compute_ms: FloatArray
    sent_units: FloatArray
    fits: BoolArray
    repeated: BoolArray


def place_greedily(
    shards: ShardTable,
    rows: IntArray,
    max_units: float,
    memory_bytes: IntArray,
    fixed_score: FloatArray,
    score: DeviceScore,
) -> IntArray | None:
    """Return the device of each shard, (S,). Each shard in turn goes to the device with room whose new score is lowest.

    Args:
        shards: all shards.
        rows: (S,) shards to place, in this order: rows of the table.
        max_units: cap on the units that a device sends for each sample, which bounds the imbalance of the exchanges.
        memory_bytes: (D,) memory of each device.
        fixed_score: (D,) score of the tables that are on the devices already.
        score: the score by which devices are compared; if several scores are equal, the first device is taken.

    Returns:
        (S,) device of each shard, or None if some shard fits nowhere.
    """
    free_bytes, free_units = memory_bytes.copy(), np.full(len(memory_bytes), float(max_units))
    widths = np.zeros((shards.num_items, len(memory_bytes)), dtype=np.int64)
    vectors = np.zeros((len(memory_bytes), shards.vectors.shape[1]), dtype=np.float32)
    devices = np.empty(len(rows), dtype=np.int64)
    for position, (row, item) in enumerate(zip(rows, shards.item_of(rows), strict=True)):
        # Shards of an item on one device become one shard: (D,) rows before and after the new shard joins.
        before = shards.first[item] + widths[item]
        after = before + row - shards.first[item]
        more_bytes = shards.size_bytes[after] - shards.size_bytes[before]
        more_vectors = shards.vectors[after] - shards.vectors[before]
        fits = (more_bytes <= free_bytes) & (shards.sent_units[row] <= free_units) & may_hold(shards, widths, item)
        if not fits.any():
            return None
        device = np.where(fits, score.of(vectors + more_vectors) + fixed_score, np.inf).argmin()
        devices[position] = device
        widths[item, device] += row - shards.first[item]
        vectors[device] += more_vectors[device]
        free_bytes[device] -= more_bytes[device]
        free_units[device] -= shards.sent_units[row]
    return devices


def may_hold(shards: ShardTable, widths: IntArray, item: int) -> BoolArray:
    """Return a mask (D,) of devices that may get a shard of `item`; each of D devices has shards of `widths` (I, D)."""
    rules = shards.rules
    beside_rival = (widths[rules.rivals_of(item)] > 0).any(axis=0)
    must_be_apart = (rules.min_shards[item] > 1) & (widths[item] > 0)
    may: BoolArray = rules.allowed[item] & ~beside_rival & ~must_be_apart
    return may
