"""Reuse histograms of tables and of ranges of rows: how often a batch looks up each row that the batch touches.

A batch touches a row if it looks up the row at least once. A histogram has 17 bins of touch counts: (0,1], (1,2],
(2,4], ..., (16384,32768], >32768. The value of a bin is the share of the *unique* touched rows with such a count.
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
TOPS = np.concatenate([BIN_TOPS, [2 * BIN_TOPS[-1]]])  # the open last bin is assumed to end at twice its bottom
MEAN_COUNTS: FloatArray = (BOTTOMS + 1 + TOPS) / 2  # (17,) mean count in each bin, with counts assumed uniform
TOUCHED_ONCE = (1.0, *(0.0,) * (NUM_REUSE_BINS - 1))  # the histogram if a batch touches no row more than once
ZIPF_EXPONENT = 1.05  # assumed for tables without known statistics
Exponent = Annotated[float, Meta(ge=0, le=10)]
_Shift = Annotated[float, Meta(ge=0, le=MAX_ROWS)]
_MOST_POINTS = 64  # maximum number of counts that represent a bin
_STEEPEST, _HALVINGS = 20.0, 40  # range of powers for bisection, from -20 to 20, and number of its steps
_RANK_GROUPS = 256  # number of geometric groups in which ranks of a Zipf law are summed
_TABLES_KEPT = 4096  # number of tables whose histograms are cached


def histogram(counts: IntArray) -> tuple[float, ...]:
    """Return the reuse histogram of a batch: the shares of rows that are looked up once, twice, 3 or 4 times, ...
    The histogram has 17 bins of lookup counts. `counts` (U,) has the number of lookups of each of U rows of a table.

    Rows with the count 0 are ignored.

    Raises:
        UserError: all counts are 0.
    """
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
    """Estimate the reuse histogram of a table if no batch of lookups is known.
    The histogram describes how often a batch looks up the same rows. The lookups are assumed to follow a Zipf law.

    Args:
        rows: number of rows of the table.
        lookups: number of lookups in a global batch: global batch size x pooling factor.
        exponent: the row of rank r = 1, 2, ... is looked up with probability proportional to (r + shift) ** -exponent;
            0 makes all rows equally hot; NeuroShard assumes 1.05 for tables without a histogram.
        shift: shift of ranks; a larger shift makes the hottest rows more equal.

    Returns:
        (17,) expected share of the unique touched rows that are touched (0,1], (1,2], (2,4], ..., (16384,32768], >32768
        times, the value for `Table.reuse`. The count of a row is assumed to follow a Poisson distribution around the
        expected count of the row.

    Raises:
        UserError: an argument is out of range.
    """
    return _zipf_reuse(rows, lookups, exponent, shift)


@lru_cache(_TABLES_KEPT)
def _zipf_reuse(rows: int, lookups: float, exponent: float, shift: float) -> tuple[float, ...]:
    """Return the estimated reuse histogram of a table, (17,), if the lookups in the table follow a Zipf law.
    The function `zipf_reuse` checks the arguments and then calls this function.

    Results are cached, because a call takes 0.5 ms and the same tables are drawn many times.
    """
    from scipy.special import pdtr  # slow to import: not with this module

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
    """Estimate the reuse histogram of a batch with fewer samples from the histogram of a larger batch.
    The smaller batch has the share `fraction` of the samples of the larger batch.

    Args:
        reuse: (..., 17) histograms of the larger batch; counts are assumed to be uniform within a bin.
        fraction: fraction of the samples, in (0, 1]; each lookup is assumed to be in the smaller batch with this
            probability, independently of other lookups.

    Returns:
        (..., 17) expected shares of the unique rows that the smaller batch touches.
    """
    bins = reuse @ _thinning(fraction)
    shares: FloatArray = bins / bins.sum(axis=-1, keepdims=True)
    return shares


def asked_by_devices(reuse: FloatArray, devices: int) -> tuple[float, FloatArray]:
    """Estimate the effect of deduplication: each device requests a row at most once per batch. Return two values: the
    share of the lookups that remain, and the reuse histogram of the remaining lookups, (17,).

    The number of unique rows stays the same. A row with c lookups is requested by
    devices x (1 - (1 - 1 / devices)^c) devices on average.

    Args:
        reuse: (17,) histogram of the whole batch; counts are assumed to be uniform within a bin.
        devices: number of devices that share the samples; each lookup is assumed to be on a random device,
            independently of other lookups.

    Returns:
        The share of the lookups that remains, in (0, 1], and the histogram of the remaining lookups, (17,).
    """
    requests, moved = _requesting_devices(devices)
    return float(reuse @ requests / (reuse @ MEAN_COUNTS)), reuse @ moved


def reuse_of_mean(reuse: FloatArray, mean_count: FloatArray) -> FloatArray:
    """Change n reuse histograms so that histogram i has the mean `mean_count[i]`, and return the changed histograms,
    (n, 17). The mean of a histogram is the mean number of lookups per unique row. If the histogram cannot be changed to
    this mean, the histogram gets the nearest possible mean.

    The share of each bin is multiplied by (mean count of the bin) ** p and the shares are normalised; bisection finds
    the power p between -20 and 20.

    Args:
        reuse: (n, 17) histograms of all touched rows.
        mean_count: (n,) wanted mean lookups per touched row.

    Returns:
        (n, 17) histograms with this mean, or the nearest mean that the non-empty bins of the histogram allow.
    """
    low, high = np.full(len(reuse), -_STEEPEST), np.full(len(reuse), _STEEPEST)
    for _ in range(_HALVINGS):
        power = (low + high) / 2
        too_low = _reweighted(reuse, power) @ MEAN_COUNTS < mean_count
        low, high = np.where(too_low, power, low), np.where(too_low, high, power)
    return _reweighted(reuse, (low + high) / 2)


def _reweighted(reuse: FloatArray, power: FloatArray) -> FloatArray:
    """Multiply the shares in n reuse histograms by powers of the lookup counts, and return the new histograms, (n, 17).
    The share of a bin is multiplied by c ** p. Here, c is the mean lookup count of the bin, and p is the histogram's
    exponent in `power` (n,). Then each histogram is normalised, so that the sum of the shares is 1.

    The largest exponent is subtracted before `exp`, so that it cannot overflow.
    """
    exponent = np.where(reuse > 0, power[:, None] * np.log(MEAN_COUNTS), -np.inf)
    bins = reuse * np.exp(exponent - exponent.max(axis=1, keepdims=True))
    shares: FloatArray = bins / bins.sum(axis=1, keepdims=True)
    return shares


@cache
def _thinning(fraction: float) -> FloatArray:
    """Return how rows move between the bins of a reuse histogram if only some lookups are kept, as a matrix (17, 17).
    Each lookup is kept with the probability `fraction`. Element [i, j] is the probability that a row of bin i before
    the removal is in bin j after the removal.

    Each bin has the rows with similar numbers of lookups. The probabilities of bin i add up to at most 1. The rest is
    the probability that no lookup of a row is kept.
    """
    from scipy.special import bdtr  # slow to import: not with this module

    moved = np.empty((NUM_REUSE_BINS, NUM_REUSE_BINS))
    for index, counts in enumerate(_counts_in_bins()):
        at_most = np.where(BOTTOMS[:, None] < counts, bdtr(np.minimum(BOTTOMS[:, None], counts), counts, fraction), 1.0)
        moved[index] = np.diff(np.vstack([at_most, np.ones(len(counts))]), axis=0).mean(axis=1)
    return moved


@cache
def _requesting_devices(devices: int) -> tuple[FloatArray, FloatArray]:
    """Return two arrays that describe how a reuse histogram changes if each device requests a row only once per batch.
    Element [i] of the first array, (17,), is the mean number of devices that request a row of bin i. Element [i, j] of
    the second array, (17, 17), is the share of the rows of bin i that are then in bin j.

    A row with c lookups has the mean m = devices x (1 - (1 - 1 / devices)^c) requests. Of these rows, the share
    floor(m) + 1 - m is given floor(m) requests, and the others floor(m) + 1, so that the mean is m.
    """
    requests, moved = np.empty(NUM_REUSE_BINS), np.zeros((NUM_REUSE_BINS, NUM_REUSE_BINS))
    for index, counts in enumerate(_counts_in_bins()):
        mean = devices * (1 - (1 - 1 / devices) ** counts)
        fewer = np.floor(mean)
        for number, share in ((fewer, fewer + 1 - mean), (fewer + 1, mean - fewer)):
            np.add.at(moved[index], np.searchsorted(BIN_TOPS, number), share / len(counts))
        requests[index] = mean.mean()
    return requests, moved


def _counts_in_bins() -> Iterator[IntArray]:
    """Yield, for each bin of the reuse histogram, an array of lookup counts that represent the bin.
    An array has all counts of the bin if there are at most 64, and 64 evenly spread counts otherwise.
    """
    for bottom, top in zip(BOTTOMS, TOPS, strict=True):
        points = min(int(top - bottom), _MOST_POINTS)
        yield bottom + np.ceil((np.arange(points) + 0.5) * (top - bottom) / points).astype(np.int64)


def lookup_share(table: Table, first: IntArray, rows: IntArray) -> FloatArray:
    """Return the share of a table's lookups that go to each of m ranges of rows, (m,).
    Each range has `rows` (m,) rows, from row `first` (m,) on.

    `table.row_lookups` gives the share of each block of rows; within a block, and in tables without `row_lookups`, the
    lookups are assumed to be spread evenly over the rows.
    """
    share = np.array(table.row_lookups or (1.0,))
    return _in_ranges(share / share.sum(), table.rows, first, rows)


def range_reuse(table: Table, lookups: float, first: IntArray, rows: IntArray) -> FloatArray:
    """Estimate the reuse histogram of each of m ranges of a table's rows, and return the histograms, (m, 17).

    Each range has `rows` (m,) rows from row `first` (m,) on; `lookups` is the number of lookups in the whole table in a
    batch. Without `row_lookups`, every range has the table's histogram. With it, rows in hot blocks are looked up more
    often:

    1. The table's histogram gives the number of unique rows that the batch touches. Each block gets a part of this
       number, in proportion to the rows that its lookups would touch if they were spread evenly in the block.
    2. The lookups of a range divided by its unique rows are the mean count of the range, and `reuse_of_mean` changes
       the table's histogram to have this mean.

    If rows are sorted by popularity and the blocks are fine enough, the result is within some percent of counting.
    """
    reuse = np.tile(np.array(table.reuse), (len(first), 1))
    if not table.row_lookups:
        return reuse
    share, size = np.array(table.row_lookups), table.rows / len(table.row_lookups)
    touched = -size * np.expm1(-lookups * share / size)
    unique = touched * (lookups / float(reuse[0] @ MEAN_COUNTS) / touched.sum())
    range_lookups, inside = lookups * lookup_share(table, first, rows), _in_ranges(unique, table.rows, first, rows)
    return reuse_of_mean(reuse, np.divide(range_lookups, inside, out=np.ones(len(first)), where=inside > 0))


def _in_ranges(blocks: FloatArray, table_rows: int, first: IntArray, rows: IntArray) -> FloatArray:
    """Estimate an amount, such as the number of lookups, in each of m ranges of a table's rows, (m,).
    The table has `table_rows` rows in K equal blocks; `blocks` (K,) has the known amount in each block. Range i has
    `rows[i]` rows, and begins with row `first[i]`. Within a block, the amount is assumed to be spread evenly.
    """
    before = np.concatenate([[0.0], blocks.cumsum()])
    ends = np.stack([first, first + rows]) / table_rows * len(blocks)
    start, end = np.interp(ends, np.arange(len(before)), before)
    inside: FloatArray = end - start
    return inside
