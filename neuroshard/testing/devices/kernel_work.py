"""What lookups do to caches and bandwidths, in both made-up devices."""

import numpy as np

from neuroshard.cost.loads import Loads
from neuroshard.layouts import are
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.tables.reuse import MEAN_COUNTS
from neuroshard.words.collective import ELEMENT_BYTES

_SHARPNESS = 4.0  # of the change from one bound to another


def unique_rows(loads: Loads) -> FloatArray:
    """Compute (n,) unique rows that a batch looks up."""
    lookups = np.maximum(loads.lookups, 1)
    unique: FloatArray = np.clip(lookups / (loads.reuse @ MEAN_COUNTS), 1, np.minimum(loads.rows, lookups))
    return unique


def rounded_up(size_bytes: FloatArray, piece_bytes: int) -> FloatArray:
    """(n,) bytes moved where memory comes in pieces."""
    whole: FloatArray = np.ceil(size_bytes / piece_bytes) * piece_bytes
    return whole


def hit_share(cache_bytes: float, used_bytes: FloatArray) -> FloatArray:
    """Compute (n,) cache hit rates of repeated lookups: 1 where all fits; else the hottest rows hit."""
    share: FloatArray = np.minimum(1.0, np.sqrt(cache_bytes / np.maximum(used_bytes, 1.0)))
    return share


def bounded_by(*times_ms: FloatArray) -> FloatArray:
    """(n,) about the largest of times (n,) that overlap, ms; those that are near it add to it."""
    largest: FloatArray = sum(time**_SHARPNESS for time in times_ms) ** (1 / _SHARPNESS)
    return largest


def dense_update_bytes(loads: Loads) -> FloatArray:
    """(n,) moved to update every row of copies: gradients cleared and read, weights read and written; else nothing."""
    dense = are(loads, lambda layout: layout.dense)
    moved: FloatArray = 2 * loads.rows * loads.dim * (loads.bytes_per_element + ELEMENT_BYTES) * dense
    return moved
