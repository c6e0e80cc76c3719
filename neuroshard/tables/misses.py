"""Estimates for tables in host memory: how often each row is looked up, and the share of a batch's rows that a cache
misses.

An LRU cache with room for C rows contains the rows of the last T batches, where T is the number of batches that touch C
unique rows: U(T) = C. The next batch misses a row if it touches the row and these T batches did not, so it misses
U(T + 1) - U(T) rows. Each row is assumed to be looked up at random, with a constant rate of its own.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np

from neuroshard.plumbing.arrays import FloatArray, IntArray
from neuroshard.tables.reuse import BOTTOMS, MEAN_COUNTS

_RATES: FloatArray = 2.0 ** np.arange(-34, 17, 0.5)  # (G,) mean lookups of a row in a batch
_SLOPES = (0, 0.25, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 8)  # powers of the rate; 1 / exponent in a Zipf law
_COLDEST = 4  # number of bins that choose a law: rows that are touched 0, 1, 2, and 3 or 4 times
_ROUNDS, _STEPS = 6, 5  # rounds that choose a law, and steps in each round that fit it to the histogram
_AGES: FloatArray = np.concatenate([[0.0], 2.0 ** np.arange(-14, 48, 0.25), [np.inf]])  # (A,) numbers of batches T
_TINY = 1e-300


def touched_rows(rows: FloatArray, lookups: FloatArray, reuse: FloatArray) -> FloatArray:
    """Return the number of unique rows that a batch looks up in each of n tables, (n,).

    Args:
        rows: (n,) rows of each table, which are the maximum.
        lookups: (n,) lookups of the batch in each table.
        reuse: (n, 17) reuse histograms of the batch.
    """
    unique: FloatArray = np.minimum(lookups / (reuse @ MEAN_COUNTS), rows)
    return unique


def cache_misses(rows: FloatArray, lookups: FloatArray, reuse: FloatArray, cached: FloatArray) -> FloatArray:
    """Return how many of a batch's unique rows are missing from the warm cache of each of n tables, (n,).

    The number falls as `cached` rises: it is `touched_rows` at 0, and 0 at 1.

    Args:
        rows: (n,) rows of each table.
        lookups: (n,) lookups of a batch in each table.
        reuse: (n, 17) reuse histograms of the batch.
        cached: (n,) share of each table's rows that fit in its cache.
    """
    inputs = np.ascontiguousarray(np.column_stack([rows, lookups, reuse]), dtype=np.float64)
    # Searches ask for the same table many times, so equal inputs are computed once. Bytes sort faster than rows.
    as_bytes = inputs.view(f"V{inputs.strides[0]}").ravel()
    _, first, which = np.unique(as_bytes, return_index=True, return_inverse=True)
    popularity = Popularity.of(rows[first], lookups[first], reuse[first])
    missed: FloatArray = touched_rows(rows, lookups, reuse) * popularity.take(which).missed_share(cached)
    return missed


@dataclass(frozen=True, eq=False)
class Popularity:
    """The popularity of rows: for each of n embedding tables, the number of rows at each of G lookup rates.
    A lookup rate is the mean number of lookups of a row in a batch. For example, 1,000 rows of a table may each have
    the lookup rate 0.5.

    Attributes:
        rows: (n, G) number of rows of each table that are looked up at each rate.
        rate: (G,) mean lookups of a row in a batch, above 0.
    """

    rows: FloatArray
    rate: FloatArray

    @classmethod
    def of(cls, rows: FloatArray, lookups: FloatArray, reuse: FloatArray) -> "Popularity":
        """Estimate from reuse histograms how often the rows of n tables are looked up: for each table, how many rows
        have which lookup rate. Return the estimate as a `Popularity`.

        A histogram says little about rows that are rarely touched, and nothing about untouched rows. So the rates are
        assumed to follow a power law above a minimum rate. Each round of the fit has three steps:

        1. Choose the law and minimum rate that best explain how many rows are touched 0, 1, 2, and 3 or 4 times.
        2. Change this law to fit the whole histogram, by expectation maximisation.
        3. Set the number of touched rows to the number of lookups divided by the fitted mean lookups per touched row,
           because the bins of the histogram do not determine this mean exactly.

        Args:
            rows: (n,) rows of each table.
            lookups: (n,) lookups of a batch in each table.
            reuse: (n, 17) reuse histograms of the batch.
        """
        seen, laws, coldest = _fit_constants()
        unique = touched_rows(rows, lookups, reuse)
        spread = np.zeros((len(rows), len(_RATES)))
        for _ in range(_ROUNDS):
            touched = np.column_stack([rows - unique, unique[:, None] * reuse])
            likeliest = (touched[:, :_COLDEST] @ coldest.T).argmax(axis=1)
            spread = laws[likeliest] * rows[:, None]
            for _ in range(_STEPS):
                spread = spread * ((touched / np.maximum(spread @ seen, _TINY)) @ seen.T)
            expected_unique = np.maximum(spread @ -np.expm1(-_RATES), _TINY)
            unique = np.minimum(lookups * expected_unique / np.maximum(spread @ _RATES, _TINY), rows)
        return cls(spread, _RATES)

    def take(self, indices: IntArray) -> "Popularity":
        """Return a `Popularity` with only the m tables at the given `indices` (m,), in this order."""
        return Popularity(self.rows[indices], self.rate)

    def unique_rows(self, batches: FloatArray) -> FloatArray:
        """Estimate how many unique rows of each of n tables are looked up in T batches together. `batches` (A,) has A
        values of T, and the result (n, A) has a column for each value. For example, if `batches` is [1, 10], the first
        column is for 1 batch, and the second column is for 10 batches.
        """
        touched: FloatArray = self.rows @ -np.expm1(-np.multiply.outer(self.rate, batches))
        return touched

    def missed_share(self, cached: FloatArray) -> FloatArray:
        """Return the share of a batch's unique rows that are missing from the cache of each of n tables, (n,).
        `cached` (n,) is the size of each cache, as a share of the table's rows.

        For each T of the grid, U(T) / U(inf) is the share of the rows in a cache that contains T batches, and
        (U(T + 1) - U(T)) / U(1) is the share that this cache misses. The result is interpolated at U(T) / U(inf) =
        `cached`.
        """
        in_cache = self.unique_rows(_AGES)
        missed = self.rows @ (np.exp(-np.multiply.outer(self.rate, _AGES)) * -np.expm1(-self.rate)[:, None])
        cached_share = in_cache / np.maximum(in_cache[:, -1:], _TINY)
        return _interpolated(cached_share, cached, missed / np.maximum(missed[:, :1], _TINY))


def _interpolated(at: FloatArray, wanted: FloatArray, values: FloatArray) -> FloatArray:
    """Evaluate each of n piecewise linear functions at one point, and return the n values, (n,).
    Function i has the values `values[i]` (A,) at the A points `at[i]` (A,), and is evaluated at the point `wanted[i]`.

    Each row of `at` rises from 0 to 1.
    """
    rank = np.clip((at < wanted[:, None]).sum(axis=1), 1, at.shape[1] - 1)
    line = np.arange(len(at))
    low, high = at[line, rank - 1], at[line, rank]
    weight = np.clip(np.divide(wanted - low, high - low, out=np.ones(len(at)), where=high > low), 0, 1)
    between: FloatArray = values[line, rank - 1] * (1 - weight) + values[line, rank] * weight
    return between


@cache
def _fit_constants() -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return three constant arrays that `Popularity.of` uses: probabilities of lookup counts; power laws of lookup
    rates; and, for each power law, logarithms of the shares of rows with low lookup counts.

    There are G lookup rates, and L power laws, from which `Popularity.of` chooses one for each table. The arrays are
    the same for all tables, and are computed only once.

    Returns:
        (G, 18) probability that a row of each rate is touched 0 times, or a number of times in each bin; (L, G) power
        laws, as shares of the rows at each rate; and (L, 4) logarithms of the share of each law's rows in each of the
        four coldest bins.
    """
    from scipy.special import pdtr  # slow to import: not with this module

    at_most = pdtr(BOTTOMS[:, None].astype(np.float64), _RATES)
    bounds = np.vstack([np.zeros(len(_RATES)), at_most, np.ones(len(_RATES))])
    seen = np.diff(bounds, axis=0).T
    least = _RATES[BOTTOMS[_COLDEST] > _RATES, None, None]
    laws = np.where(least <= _RATES, (np.maximum(_RATES, least) / least) ** -np.array(_SLOPES)[:, None], 0.0)
    laws = laws.reshape(-1, len(_RATES))
    laws /= laws.sum(axis=1, keepdims=True)
    coldest = laws @ seen[:, :_COLDEST]
    coldest /= coldest.sum(axis=1, keepdims=True)
    return seen, laws, np.log(np.maximum(coldest, _TINY))
