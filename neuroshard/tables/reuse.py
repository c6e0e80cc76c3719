"""Reuse histograms: how often the rows that a batch touches are touched, of whole tables and of ranges of their rows.

A histogram holds the share of the *unique* rows in 17 bins: (0,1], (1,2], (2,4], ..., (16384,32768], >32768.
"""

from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Annotated

import numpy as np
from msgspec import Meta

from neuroshard.plumbing.arrays import FloatArray, IntArray
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import MAX_ROWS, Positive, Rows
from neuroshard.tables.table import NUM_REUSE_BINS, Table

BIN_TOPS = 2 ** np.arange(NUM_REUSE_BINS - 1)  # the last bin has no top
BOTTOMS = np.concatenate([[0], BIN_TOPS])
TOPS = np.concatenate([BIN_TOPS, [2 * BIN_TOPS[-1]]])  # counts in the open last bin are taken up to twice its bottom
MEAN_COUNTS: FloatArray = (BOTTOMS + 1 + TOPS) / 2  # (17,) of the rows in each bin, taken as uniform
TOUCHED_ONCE = (1.0, *(0.0,) * (NUM_REUSE_BINS - 1))  # the histogram of rows that a batch touches once each, if at all
ZIPF_EXPONENT = 1.05  # of tables of which no more is known
Exponent = Annotated[float, Meta(ge=0, le=10)]
_Shift = Annotated[float, Meta(ge=0, le=MAX_ROWS)]
_MOST_POINTS = 64  # counts that stand for those of a bin
_STEEPEST, _HALVINGS = 20.0, 40  # powers that are searched, and how finely
_RANK_GROUPS = 256  # ranks of a Zipf law are summed in this many geometric groups
_TABLES_KEPT = 4096  # whose histograms are remembered


def histogram(counts: IntArray) -> tuple[float, ...]:
    """Compute the reuse histogram, (17,), of rows that are touched `counts` (U,) times; zeros are ignored."""
    touched = counts[counts > 0]
    if not len(touched):
        raise UserError(
            "reuse-no-lookups",
            "all lookup counts are 0",
            limit="a reuse histogram needs at least one lookup",
            remedy="Count a batch that looks up at least one row",
        )
    bins = np.searchsorted(BIN_TOPS, touched, side="left")
    shares = np.bincount(bins, minlength=NUM_REUSE_BINS) / len(touched)
    return tuple(float(share) for share in shares)


@checked
def zipf_reuse(
    rows: Rows, lookups: Positive, exponent: Exponent = ZIPF_EXPONENT, shift: _Shift = 0.0
) -> tuple[float, ...]:
    """Estimate the reuse histogram of a table whose lookups are unknown, by a Zipf law.

    Args:
        rows: number of rows of the table.
        lookups: number of lookups in a global batch: global batch size x pooling factor.
        exponent: the row of rank r = 1, 2, ... is looked up with probability proportional to (r + shift) ** -exponent;
            0 makes all rows equally hot, 1.05 is assumed for tables without a histogram.
        shift: shift of ranks; a larger shift makes the hottest rows more equal.

    Returns:
        (17,) expected share of the unique rows touched that are touched (0,1], (1,2], (2,4], ..., (16384,32768], >32768
        times: what `Table` takes as `reuse`. Each row's count is taken as Poisson with its expected count as the mean.

    Raises:
        UserError: an argument is out of range.
    """
    return _zipf_reuse(rows, lookups, exponent, shift)


@lru_cache(_TABLES_KEPT)
def _zipf_reuse(rows: int, lookups: float, exponent: float, shift: float) -> tuple[float, ...]:
    """Estimate it in half a millisecond: the same tables are drawn again and again."""
    from scipy.special import pdtr  # slow to import: only where it is used

    edges = np.unique(np.geomspace(1, rows + 1, _RANK_GROUPS + 1).round())
    width = np.diff(edges)
    rank = np.sqrt(edges[:-1] * (edges[1:] - 1)) if rows > 1 else np.ones(1)
    weight = (rank + shift) ** -exponent
    rate = lookups * weight / (weight * width).sum()
    below = pdtr(BOTTOMS[:, None], rate)
    inside = np.diff(np.concatenate([below, np.ones((1, len(rate)))]), axis=0)
    bins = (inside * width).sum(axis=1)
    if not (total := bins.sum()) > 0:
        raise UserError(
            "reuse-too-few-lookups",
            f"a batch has {lookups:g} lookups in a table of {rows} rows",
            limit="these are too few lookups to estimate a reuse histogram",
            remedy="Set a larger pooling factor",
        )
    return tuple(float(share) for share in bins / total)


def reuse_at(reuse: FloatArray, fraction: float) -> FloatArray:
    """Estimate reuse histograms of batches that have a fraction of the samples, from those of the whole batch.

    Args:
        reuse: (..., 17) of the whole batch; counts are taken as uniform within a bin.
        fraction: of the samples, in (0, 1]; every lookup is in the smaller batch with this probability, by itself.

    Returns:
        (..., 17) expected share of the unique rows touched in the smaller batch; rows that it doesn't touch are left
        out.
    """
    bins = reuse @ _thinning(fraction)
    shares: FloatArray = bins / bins.sum(axis=-1, keepdims=True)
    return shares


def asked_by_devices(reuse: FloatArray, devices: int) -> tuple[float, FloatArray]:
    """Compute what is left of a batch's lookups where each device asks for a row once, and its reuse histogram.

    Args:
        reuse: (17,) of the whole batch; counts are taken as uniform within a bin.
        devices: that share the samples; each lookup of a row is on any of them, by itself.

    Returns:
        The share of the lookups that is left, in (0, 1], and (17,) shares of the unique rows, which are as many as
        before: one that was looked up c times is asked for by devices x (1 - (1 - 1 / devices)^c) of them on average.
    """
    asking, moved = _occupied(devices)
    return float(reuse @ asking / (reuse @ MEAN_COUNTS)), reuse @ moved


def reuse_of_mean(reuse: FloatArray, mean_count: FloatArray) -> FloatArray:
    """Bend reuse histograms (n, 17) to those of rows that are looked up more or less often than others.

    Args:
        reuse: (n, 17) of all rows that are touched.
        mean_count: (n,) lookups of each of the rows that are asked for, on average.

    Returns:
        (n, 17) shares that are changed by a power of the count, so that the mean count is as asked; as near to it as
        counts between the histogram's least and most allow.
    """
    low, high = np.full(len(reuse), -_STEEPEST), np.full(len(reuse), _STEEPEST)
    for _ in range(_HALVINGS):
        power = (low + high) / 2
        too_low = _bent(reuse, power) @ MEAN_COUNTS < mean_count
        low, high = np.where(too_low, power, low), np.where(too_low, high, power)
    return _bent(reuse, (low + high) / 2)


def _bent(reuse: FloatArray, power: FloatArray) -> FloatArray:
    """Multiply shares (n, 17) by counts to the power (n,), and normalise; the largest exponent is taken out first."""
    exponent = np.where(reuse > 0, power[:, None] * np.log(MEAN_COUNTS), -np.inf)
    bins = reuse * np.exp(exponent - exponent.max(axis=1, keepdims=True))
    shares: FloatArray = bins / bins.sum(axis=1, keepdims=True)
    return shares


@cache
def _thinning(fraction: float) -> FloatArray:
    """Compute the probability, (17, 17), that thinning moves a row from a bin to another; what is left is untouched."""
    from scipy.special import bdtr  # slow to import: only where it is used

    moved = np.empty((NUM_REUSE_BINS, NUM_REUSE_BINS))
    for index, counts in enumerate(_counts_in_bins()):
        at_most = np.where(BOTTOMS[:, None] < counts, bdtr(np.minimum(BOTTOMS[:, None], counts), counts, fraction), 1.0)
        moved[index] = np.diff(np.vstack([at_most, np.ones(len(counts))]), axis=0).mean(axis=1)
    return moved


@cache
def _occupied(devices: int) -> tuple[FloatArray, FloatArray]:
    """Count the devices that ask for a row of each bin, (17,) on average, and (17, 17) the bins of how many do.

    A mean between two whole numbers is taken as that many of the rows with the one and with the other.
    """
    asking, moved = np.empty(NUM_REUSE_BINS), np.zeros((NUM_REUSE_BINS, NUM_REUSE_BINS))
    for index, counts in enumerate(_counts_in_bins()):
        mean = devices * (1 - (1 - 1 / devices) ** counts)
        fewer = np.floor(mean)
        for number, share in ((fewer, fewer + 1 - mean), (fewer + 1, mean - fewer)):
            np.add.at(moved[index], np.searchsorted(BIN_TOPS, number), share / len(counts))
        asking[index] = mean.mean()
    return asking, moved


def _counts_in_bins() -> Iterator[IntArray]:
    """Yield counts that stand for those of each bin: all of them where they are few."""
    for bottom, top in zip(BOTTOMS, TOPS, strict=True):
        points = min(int(top - bottom), _MOST_POINTS)
        yield bottom + np.ceil((np.arange(points) + 0.5) * (top - bottom) / points).astype(np.int64)


def lookup_share(table: Table, first: IntArray, rows: IntArray) -> FloatArray:
    """Compute the share of the lookups, (m,), that are of `rows` (m,) rows from `first` (m,) on.

    By `row_lookups`, within one of its blocks by rows; without it, all by rows.
    """
    share = np.array(table.row_lookups or (1.0,))
    return _inside(share / share.sum(), table.rows, first, rows)


def range_reuse(table: Table, lookups: float, first: IntArray, rows: IntArray) -> FloatArray:
    """Estimate the reuse histogram, (m, 17), of `rows` (m,) rows from `first` (m,) on, in a batch of so many lookups.

    Lookups that are spread evenly have the table's histogram everywhere. Else rows are looked up the more often the
    hotter their block is: of the unique rows that the table's histogram tells of, each block of `row_lookups` has a
    share in proportion to the rows that its lookups would touch if they were spread evenly inside it, and the histogram
    is bent to the lookups of a unique row that this leaves. Where rows are sorted by how hot they are, and blocks are
    fine enough, that is within some percent of counting.
    """
    reuse = np.tile(np.array(table.reuse), (len(first), 1))
    if not table.row_lookups:
        return reuse
    share, size = np.array(table.row_lookups), table.rows / len(table.row_lookups)
    touched = -size * np.expm1(-lookups * share / size)
    unique = touched * (lookups / float(reuse[0] @ MEAN_COUNTS) / touched.sum())
    range_lookups, inside = lookups * lookup_share(table, first, rows), _inside(unique, table.rows, first, rows)
    return reuse_of_mean(reuse, np.divide(range_lookups, inside, out=np.ones(len(first)), where=inside > 0))


def _inside(blocks: FloatArray, table_rows: int, first: IntArray, rows: IntArray) -> FloatArray:
    """Compute (m,) amounts in ranges of a table's rows, from the amounts (K,) in K equal blocks of rows."""
    before = np.concatenate([[0.0], blocks.cumsum()])
    ends = np.stack([first, first + rows]) / table_rows * len(blocks)
    start, end = np.interp(ends, np.arange(len(before)), before)
    inside: FloatArray = end - start
    return inside
