"""A table with a row for every shard that the search may use; and column splits, which are lists of these rows.

A column split is S rows of the shard table, (S,), ascending: the shards into which all items are cut before the shards
are placed. P column splits with S shards each are (P, S). Widths are counted in units of 4 columns (FBGEMM's rule).
"""

from typing import NamedTuple, Protocol

import numpy as np

from neuroshard.plumbing.arrays import BoolArray, Float32Array, FloatArray, IntArray
from neuroshard.plumbing.schema import DIM_MULTIPLE, MAX_SHARD_DIM

_ROUNDING = 1e-5  # relative, of single precision


class ComputeHead(Protocol):
    """The last layer of the compute model, which turns the summed vectors of a device into compute time.

    A device whose shards have vectors that sum to v has the score relu(v + bias) @ weight, and takes `finish(score)`.
    """

    @property
    def bias(self) -> Float32Array:
        """The bias, (H,), added to the sum of the vectors of a device's shards."""
        ...

    @property
    def weight(self) -> Float32Array:
        """The weights (H,) in the score of a device: relu(v + bias) @ weight, where v is the sum of shard vectors."""
        ...

    @property
    def offset(self) -> float:
        """The offset that is added to the score of a device."""
        ...

    @property
    def scale_ms(self) -> float:
        """The compute time that a score of 1 stands for, in ms."""
        ...

    def finish(self, score: FloatArray) -> FloatArray:
        """Return the compute time max(score + offset, 0) * scale_ms of every score (...,), in ms."""
        ...


class PlacementRules(NamedTuple):
    """Rules for I items (usually tables): on which devices each item may be placed, and how each item may be split.

    Attributes:
        allowed: (I, D) True if a device may hold the item.
        min_shards, max_shards: (I,) number of devices that the item is spread over.
        min_width: (I,) smallest number of units on each of these devices.
        rival_first, rivals: (I + 1,) and (R,); the items `rivals[rival_first[i] : rival_first[i + 1]]` may not share a
            device with item i.
    """

    allowed: BoolArray
    min_shards: IntArray
    max_shards: IntArray
    min_width: IntArray
    rival_first: IntArray
    rivals: IntArray

    def rivals_of(self, item: int) -> IntArray:
        """Return the indices of the r items that may not be on the same device as `item`, (r,)."""
        rivals: IntArray = self.rivals[self.rival_first[item] : self.rival_first[item + 1]]
        return rivals

    @property
    def confined(self) -> BoolArray:
        """A mask (I,): True if rules exclude the item from a device, or from devices that have a certain other item."""
        confined: BoolArray = ~self.allowed.all(axis=1) | (np.diff(self.rival_first) > 0)
        return confined


class ShardTable(NamedTuple):
    """A table of all shards of I items (as a rule embedding tables): a row for each width of each item, N rows in all.

    An item is split and placed as one. As a rule it is a table; constraints may make it a part of one, or several.
    The shard of item i that is w units of 4 columns wide is row `first[i] + w`, and row `first[i]` is the empty shard.

    Attributes:
        rules: where the items may be placed.
        first: (I,) first row of each item.
        size_bytes: (N,) memory on a device.
        state_bytes: (N,) weights and optimizer state, which move with the shard; no buffers.
        sent_units: (N,) units that a device sends for each sample because of the shard: width times outputs of
            the table. Multiples of 1/1024, so that sums are exact in any order.
        vectors: (N, H) embedding by the compute model; a device's vector is the sum over its shards. H is 0 if no model
            was asked.
        cost_ms: (N,) predicted compute time of a device that holds only this shard; 0 for empty shards.
        least_score: (N,) lower bound of the score that the shard adds to a device without other shards of the item;
            minus infinity if there is no bound.
    """

    rules: PlacementRules
    first: IntArray
    size_bytes: IntArray
    state_bytes: IntArray
    sent_units: FloatArray
    vectors: Float32Array
    cost_ms: FloatArray
    least_score: FloatArray

    @property
    def num_items(self) -> int:
        """The number of items (as a rule embedding tables), I."""
        return len(self.first)

    @property
    def full_width(self) -> IntArray:
        """The width of each whole item, (I,) units of 4 columns."""
        widths: IntArray = np.append(self.first[1:], len(self.size_bytes)) - self.first - 1
        return widths

    @property
    def whole(self) -> IntArray:
        """The row of each item's widest shard, which is the whole item (as a rule an embedding table), (I,)."""
        return self.first + self.full_width

    @property
    def item(self) -> IntArray:
        """The item (as a rule an embedding table) to which each row of this shard table belongs, (N,)."""
        return np.repeat(np.arange(self.num_items), self.full_width + 1)

    def item_of(self, rows: IntArray) -> IntArray:
        """Return the item (as a rule an embedding table) of each of the `rows` (...,) of this shard table."""
        item: IntArray = np.searchsorted(self.first, rows, side="right") - 1
        return item

    @property
    def total_sent_units(self) -> float:
        """The size of the embeddings that all devices together send for each sample, in units of 4 columns."""
        return float(self.sent_units[self.whole].sum())

    def device_bytes(self, widths: IntArray) -> IntArray:
        """Return the memory that shards of `widths` (I, D) take on each device, (D,) bytes."""
        size_bytes: IntArray = self.size_bytes[self.first[:, None] + widths].sum(axis=0)
        return size_bytes

    def device_units(self, widths: IntArray) -> FloatArray:
        """Return the units of 4 columns that a device sends per sample, (D,); `widths` (I, D) has the shard widths."""
        units: FloatArray = self.sent_units[self.first + widths.T].sum(axis=-1)
        return units


def always_added(vectors: Float32Array, head: ComputeHead) -> tuple[BoolArray, FloatArray]:
    """Return a mask (H,) of the vector entries that relu never clips, and the score that each of N shards adds to any
    device in these entries together, (N,). In each entry of the mask, the bias and all values of `vectors` (N, H) are
    at least 0, and the weight is positive. So the added score is the same on every device.
    """
    adding: BoolArray = (head.bias >= 0) & (head.weight > 0) & (vectors >= 0).all(axis=0)
    pull = (vectors * head.weight)[:, adding]
    return adding, pull.sum(axis=1, dtype=np.float64) * (1 - _ROUNDING)


def least_score(vectors: Float32Array, head: ComputeHead) -> FloatArray:
    """Return a lower bound of the increase in a device's score when a shard is added, for each of N shards, (N,).

    The bounds come from `always_added`. All are minus infinity if an entry in `vectors` (N, H) may lower a score.
    """
    if (vectors * head.weight < 0).any():
        return np.full(len(vectors), -np.inf)
    return always_added(vectors, head)[1]


def fewest_shards(shards: ShardTable) -> IntArray:
    """Split each item evenly into as few shards as rules and kernels allow. Return the rows of all S shards, (S,)."""
    parts = -(-shards.full_width * DIM_MULTIPLE // MAX_SHARD_DIM)
    return evenly_split(shards, np.clip(parts, shards.rules.min_shards, most_shards(shards)))


def most_shards(shards: ShardTable) -> IntArray:
    """Return the largest number of shards into which each item may be split, (I,)."""
    rules = shards.rules
    most: IntArray = np.maximum(np.minimum(rules.max_shards, rules.allowed.sum(axis=1)), rules.min_shards)
    return most


def evenly_split(shards: ShardTable, counts: IntArray) -> IntArray:
    """Cut item i into `counts[i]` shards that differ by at most 4 columns. Return the rows of all S shards, (S,)."""
    item = np.repeat(np.arange(shards.num_items), counts)
    number = np.arange(len(item)) - np.repeat(counts.cumsum() - counts, counts)  # of the shard, within its item
    narrow, wider = np.divmod(shards.full_width, counts)
    widths = narrow[item] + (number >= (counts - wider)[item])
    rows: IntArray = shards.first[item] + widths
    return rows


def splittable(shards: ShardTable, splits: IntArray) -> IntArray:
    """Return the shards in `splits` (S,) that may be halved: distinct rows of the shard table, ascending, (n,)."""
    rows, rules = np.unique(splits), shards.rules
    item, count = shards.item_of(rows), np.bincount(shards.item_of(splits), minlength=shards.num_items)
    may: BoolArray = (rows - shards.first[item] >= 2 * rules.min_width[item]) & (count < rules.max_shards)[item]
    return rows[may]


def split_each(shards: ShardTable, splits: IntArray, rows: IntArray) -> IntArray:
    """Return n copies of the split `splits` (S,), each with one shard halved, (n, S + 1); copy k halves `rows[k]`."""
    first = shards.first[shards.item_of(rows)]
    half = (rows - first) // 2
    after = np.empty((len(rows), len(splits) + 1), dtype=np.int64)
    after[:, :-1] = splits
    after[np.arange(len(rows)), np.searchsorted(splits, rows)] = first + half
    after[:, -1] = rows - half
    after.sort(axis=1)
    return after
