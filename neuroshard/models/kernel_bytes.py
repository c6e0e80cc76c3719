"""What kernels move in a batch: bytes through the device's memory and over the link to the host's."""

import numpy as np

from neuroshard.cost.loads import Loads
from neuroshard.layouts import are
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.tables.misses import cache_misses, touched_rows
from neuroshard.words.collective import ELEMENT_BYTES, INDEX_BYTES
from neuroshard.words.home import TIERS, Tier

_SECTOR_BYTES = 32  # memory moves whole ones: a narrower row costs as much


def memory_bytes(loads: Loads) -> FloatArray:
    """(n,) bytes through the device's memory, of rows in sectors of 32 bytes.

    Every lookup's index and row are read going forward, its index and its sample's gradient going backward; outputs are
    written once. The fused update reads and writes every unique row; the dense one writes every unique row's gradient,
    clears and reads the gradient of the whole table, and reads and writes all its weights. Rows that lie in host memory
    without a cache don't come by; behind a cache they are in it by the time that they are read.
    """
    unique = touched_rows(loads.rows, loads.lookups, loads.reuse)
    row_bytes = np.where(loads.tier == TIERS.index(Tier.HOST), 0, _row_bytes(loads))
    gradient_bytes = _in_sectors(loads.dim * ELEMENT_BYTES)
    moved = loads.lookups * (2 * INDEX_BYTES + row_bytes + gradient_bytes) + loads.outputs * gradient_bytes
    fused = 2 * unique * row_bytes
    dense = unique * gradient_bytes + 2 * loads.rows * loads.dim * (loads.bytes_per_element + ELEMENT_BYTES)
    total: FloatArray = moved + np.where(are(loads, lambda layout: layout.dense), dense, fused)
    return total


def link_bytes(loads: Loads) -> FloatArray:
    """(n,) bytes over the link to the host, one way: it carries as much the other way at the same time.

    A cache fetches every row that it misses, and writes one back for it: training has changed it. Without a cache every
    lookup's row is read going forward, and every unique row again to be updated, while others are written.
    """
    unique = touched_rows(loads.rows, loads.lookups, loads.reuse)
    rows = np.where(loads.tier == TIERS.index(Tier.HOST), loads.lookups + unique, 0.0)
    behind_cache = np.flatnonzero(loads.tier == TIERS.index(Tier.CACHED))
    if len(behind_cache):
        its = loads.take(behind_cache)
        rows[behind_cache] = cache_misses(its.rows, its.lookups, its.reuse, its.cached)
    moved: FloatArray = rows * _row_bytes(loads)
    return moved


def managed_lookups(loads: Loads) -> FloatArray:
    """(n,) lookups that a cache is asked for: all of those that it stands before."""
    return np.where(loads.tier == TIERS.index(Tier.CACHED), loads.lookups, 0.0)


def _row_bytes(loads: Loads) -> FloatArray:
    return _in_sectors(loads.dim * loads.bytes_per_element)


def _in_sectors(row_bytes: FloatArray) -> FloatArray:
    """(n,) bytes that are moved to read so many in a row."""
    moved: FloatArray = np.ceil(row_bytes / _SECTOR_BYTES) * _SECTOR_BYTES
    return moved
