"""What a cache of rows misses: how often rows are looked up, and how many of a batch's have not been lately.

An LRU cache holds the rows that were looked up in the last T batches, where T is such that so many batches touch as
many unique rows as there is room for. A row is missed where the next batch touches it and those T didn't. Rows are
taken to be looked up at random, each at a rate of its own that doesn't change.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np

from neuroshard.plumbing.arrays import FloatArray, IntArray
from neuroshard.tables.reuse import BOTTOMS, MEAN_COUNTS

_RATES: FloatArray = 2.0 ** np.arange(-34, 17, 0.5)  # (G,) lookups of a row in a batch
_SLOPES = (0, 0.25, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 8)  # powers of rates; of a Zipf law, 1 / exponent
_COLDEST = 4  # bins, of rows that are touched 0, 1, 2, and 3 or 4 times, by which a law is chosen
_ROUNDS, _STEPS = 6, 5  # a law is chosen again, and bent towards the histogram
_AGES: FloatArray = np.concatenate([[0.0], 2.0 ** np.arange(-14, 48, 0.25), [np.inf]])  # (A,) batches back
_TINY = 1e-300


def touched_rows(rows: FloatArray, lookups: FloatArray, reuse: FloatArray) -> FloatArray:
    """Compute (n,) unique rows of n tables that a batch touches, by their histograms (n, 17)."""
    unique: FloatArray = np.minimum(lookups / (reuse @ MEAN_COUNTS), rows)
    return unique


def cache_misses(rows: FloatArray, lookups: FloatArray, reuse: FloatArray, cached: FloatArray) -> FloatArray:
    """Compute (n,) unique rows of a batch that miss their table's cache once the cache is warm.

    The number falls with `cached` (n,), from `touched_rows` at 0 to 0 at 1.

    Args:
        rows, lookups, reuse: (n,) or (n, 17) of n tables: rows, lookups of a batch, histograms of that batch.
        cached: (n,) share of the rows that each table's cache has room for.
    """
    told = np.ascontiguousarray(np.column_stack([rows, lookups, reuse]), dtype=np.float64)
    as_bytes = told.view(f"V{told.strides[0]}").ravel()  # which sort fast; searches ask for a table many times
    _, first, which = np.unique(as_bytes, return_index=True, return_inverse=True)
    popularity = Popularity.of(rows[first], lookups[first], reuse[first])
    missed: FloatArray = touched_rows(rows, lookups, reuse) * popularity.take(which).missed_share(cached)
    return missed


@dataclass(frozen=True, eq=False)
class Popularity:
    """How often the rows of n tables are looked up.

    Attributes:
        rows: (n, G) of each table that are looked up at each rate.
        rate: (G,) lookups of a row in a batch, on average; above 0.
    """

    rows: FloatArray
    rate: FloatArray

    @classmethod
    def of(cls, rows: FloatArray, lookups: FloatArray, reuse: FloatArray) -> "Popularity":
        """Estimate how often rows are looked up, from histograms (n, 17) of a batch with so many lookups of each table.

        Histograms say little of rows that are touched seldom, and nothing of those that aren't touched. So rates are
        taken to follow a power law down to a least rate: the one by which the coldest rows are touched 0, 1, 2 times
        and so on as often as they are. It is then bent to the whole histogram (expectation maximisation), and the
        number of rows touched is set right by the number of lookups, which the histogram's bins leave open.
        """
        seen, laws, coldest = _tables()
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
        """Pick the tables at `indices` (m,)."""
        return Popularity(self.rows[indices], self.rate)

    def unique_rows(self, batches: FloatArray) -> FloatArray:
        """Compute (n, A) unique rows that so many batches (A,) touch together."""
        touched: FloatArray = self.rows @ -np.expm1(-np.multiply.outer(self.rate, batches))
        return touched

    def missed_share(self, cached: FloatArray) -> FloatArray:
        """Compute (n,) miss rates, of the unique rows of a batch, of caches for such shares (n,) of all rows."""
        held = self.unique_rows(_AGES)
        missed = self.rows @ (np.exp(-np.multiply.outer(self.rate, _AGES)) * -np.expm1(-self.rate)[:, None])
        return _where(held / np.maximum(held[:, -1:], _TINY), cached, missed / np.maximum(missed[:, :1], _TINY))


def _where(at: FloatArray, wanted: FloatArray, values: FloatArray) -> FloatArray:
    """Interpolate `values` (n, A) to (n,), where `at` (n, A), which rises from 0 to 1, is as `wanted` (n,)."""
    rank = np.clip((at < wanted[:, None]).sum(axis=1), 1, at.shape[1] - 1)
    line = np.arange(len(at))
    low, high = at[line, rank - 1], at[line, rank]
    weight = np.clip(np.divide(wanted - low, high - low, out=np.ones(len(at)), where=high > low), 0, 1)
    between: FloatArray = values[line, rank - 1] * (1 - weight) + values[line, rank] * weight
    return between


@cache
def _tables() -> tuple[FloatArray, FloatArray, FloatArray]:
    """Compute what doesn't hang on any table.

    (G, 18) probability that a row of each rate is touched 0 times, or as often as each bin says; (L, G) power laws, as
    shares of the rows at each rate; (L, 4) logarithms of how often they are in each of the coldest bins.
    """
    from scipy.special import pdtr  # slow to import: only where it is used

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
