"""What kernels move in a batch: bytes through the device's memory and over the link to the host's."""

import numpy as np

from neuroshard.cost.loads import Loads
from neuroshard.layouts import are
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.tables.misses import cache_misses, touched_rows
from neuroshard.words.collective import ELEMENT_BYTES, INDEX_BYTES
from neuroshard.words.home import TIERS, Tier

SECTOR_BYTES = 32  # memory moves whole ones: a narrower row costs as much


def memory_bytes(loads: Loads) -> FloatArray:
    """(n,) bytes through the device's memory, of rows in sectors of 32 bytes.

    Every lookup's index and row are read going forward, its index and its sample's gradient going backward; outputs are
    written once. The fused update reads and writes every unique row; the dense one writes every unique row's gradient,
    clears and reads the gradient of the whole table, and reads and writes all its weights. Rows that lie in host memory
    without a cache don't come by; behind a cache they are in it by the time that they are read.
    """
    total: FloatArray = np.sum(passes(loads), axis=0)
    return total


def passes(loads: Loads) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
    """(n,) bytes each of `memory_bytes`: looked up; outputs; gradients read; rows updated one by one; dense updates."""
    unique = touched_rows(loads.rows, loads.lookups, loads.reuse)
    row_bytes = np.where(loads.tier == TIERS.index(Tier.HOST), 0, moved_row_bytes(loads))
    gradient_bytes = in_sectors(loads.dim * ELEMENT_BYTES)
    copied = are(loads, lambda layout: layout.dense)
    dense = unique * gradient_bytes + 2 * loads.rows * loads.dim * (loads.bytes_per_element + ELEMENT_BYTES)
    return (
        loads.lookups * (INDEX_BYTES + row_bytes),
        loads.outputs * gradient_bytes,
        loads.lookups * (INDEX_BYTES + gradient_bytes),
        np.where(copied, 0, 2 * unique * row_bytes),
        np.where(copied, dense, 0),
    )


def link_bytes(loads: Loads) -> FloatArray:
    """(n,) bytes over the link to the host, one way: it carries as much the other way at the same time.

    A cache fetches every row that it misses, and writes one back for it: training has changed it. Without a cache every
    lookup's row is read going forward, and every unique row again to be updated, while others are written.
    """
    unique = touched_rows(loads.rows, loads.lookups, loads.reuse)
    rows = np.where(loads.tier == TIERS.index(Tier.HOST), loads.lookups + unique, 0.0)
    moved: FloatArray = rows * moved_row_bytes(loads) + cached_miss_bytes(loads)
    return moved


def cached_miss_bytes(loads: Loads) -> FloatArray:
    """(n,) bytes of the rows that caches miss."""
    missed, behind_cache = np.zeros(len(loads)), np.flatnonzero(loads.tier == TIERS.index(Tier.CACHED))
    if len(behind_cache):
        its = loads.take(behind_cache)
        missed[behind_cache] = cache_misses(its.rows, its.lookups, its.reuse, its.cached)
    moved: FloatArray = missed * moved_row_bytes(loads)
    return moved


def managed_lookups(loads: Loads) -> FloatArray:
    """(n,) lookups that a cache is asked for: all of those that it stands before."""
    return np.where(loads.tier == TIERS.index(Tier.CACHED), loads.lookups, 0.0)


def moved_row_bytes(loads: Loads) -> FloatArray:
    """(n,) bytes that are moved to read a row of weights."""
    return in_sectors(loads.dim * loads.bytes_per_element)


def in_sectors(row_bytes: FloatArray) -> FloatArray:
    """(n,) bytes that are moved to read so many in a row."""
    moved: FloatArray = np.ceil(row_bytes / SECTOR_BYTES) * SECTOR_BYTES
    return moved
