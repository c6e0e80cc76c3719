"""What compute costs at least, as a sum over shards: a price for each, whatever else lies beside it."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from neuroshard.models import ReluHead
from neuroshard.plumbing.arrays import FloatArray, IntArray
from neuroshard.plumbing.schema import DIM_MULTIPLE
from neuroshard.stages.search.space.catalog import Catalog

_ROUNDING = 1e-6  # of the terms of a sum in single precision


@dataclass(frozen=True, eq=False)
class Prices:
    """A device that holds anything computes no less than `base_ms` and the prices of its shards, in any plan.

    Every number of a head's hidden layer, relu(v + bias) * weight, is bounded by a straight line in v. Where its weight
    is positive, by its tangent at the mean device's v; where it is negative, by its chord from the least v that any
    device may have to the most. So the score is no less than the sum of these lines, and a line of a sum of vectors is
    a sum over shards.

    Attributes:
        catalog: whose entries have prices.
        base_ms: of a device; may be negative.
        price_ms: (N,) of the entries, 0 for empty shards; some are negative if the model isn't monotone.
    """

    catalog: Catalog
    base_ms: float
    price_ms: FloatArray

    @classmethod
    def of(cls, catalog: Catalog, head: ReluHead) -> "Prices":
        """The prices of every shard of a catalog that was made with a model of this head."""
        vectors, first = catalog.vectors.astype(np.float64), catalog.first
        least, most = (bound.reduceat(vectors, first).sum(axis=0) for bound in (np.minimum, np.maximum))
        mean = vectors[catalog.whole].sum(axis=0) / catalog.items.task.topology.num_devices
        bias, weight = head.bias.astype(np.float64), head.weight.astype(np.float64)
        ends = np.maximum(np.stack([least, most]) + bias, 0) * weight
        chord = np.divide(ends[1] - ends[0], most - least, out=np.zeros_like(weight), where=most > least)
        slope = np.where(weight < 0, chord, weight * (mean + bias > 0))
        at = np.where(weight < 0, least, mean)
        base = float((np.maximum(at + bias, 0) * weight - slope * at).sum()) + head.offset
        rounding = _ROUNDING * float((np.abs(slope) * np.maximum(-least, most)).sum())
        return cls(catalog, (base - rounding) * head.scale_ms, vectors @ slope * head.scale_ms)

    @cached_property
    def discount_ms(self) -> float:
        """What shards beside another one lower a device's cost by at most; 0 if no price is negative."""
        return -float(np.minimum(np.minimum.reduceat(self._shards_ms, self.catalog.first), 0).sum())

    def least_total_ms(self, most_ms: float) -> float:
        """What the prices of all shards of a plan add up to at least, if none is above `most_ms`; infinity if one must.

        Of their limits items keep only whether they may be split at all.
        """
        cut = np.logical_or.reduceat(self.price_ms > most_ms, self.catalog.first)
        return float(self._least_ms[~cut].sum() + self._cheapest(np.flatnonzero(cut), most_ms).sum())

    def of_columns_ms(self, columns: FloatArray) -> FloatArray:
        """(J,) what the prices of one device's shards add up to at least, if it gives a sample so many columns or more.

        As if any part of an item could be had at its lowest price per column, the cheapest items first.
        """
        catalog = self.catalog
        given, whole = catalog.given, catalog.given[catalog.whole]
        per_unit = np.minimum.reduceat(self._shards_ms / np.where(given > 0, given, 1), catalog.first)
        order = np.argsort(per_unit)
        filled = np.concatenate([[0], whole[order].cumsum()])
        spent = np.concatenate([[0], (per_unit * whole)[order].cumsum()])
        spent = np.minimum.accumulate(spent[::-1])[::-1]  # more columns may be cheaper where prices are negative
        least: FloatArray = np.interp(columns / DIM_MULTIPLE, filled, spent)
        return least

    @cached_property
    def _shards_ms(self) -> FloatArray:
        """(N,) the prices of entries that may be shards; infinity for the others."""
        catalog = self.catalog
        splits = np.repeat(catalog.items.limits.max_shards > 1, catalog.full_width + 1)
        splits[catalog.whole] = True
        splits[catalog.first] = False
        return np.where(splits, self.price_ms, np.inf)

    @cached_property
    def _least_ms(self) -> FloatArray:
        """(I,) of each item, however dear its shards may be."""
        return self._cheapest(np.arange(self.catalog.num_items), np.inf)

    def _cheapest(self, items: IntArray, most_ms: float) -> FloatArray:
        """(n,) the least sum of prices, none above `most_ms`, of shards that make up each of n items."""
        catalog, found = self.catalog, np.zeros(len(items))
        for width in np.unique(catalog.full_width[items]).tolist():
            same = catalog.full_width[items] == width
            entry = catalog.first[items[same]][:, None] + np.arange(width + 1)
            price_ms = self._shards_ms[entry]
            found[same] = _cheapest_cuts(np.where(price_ms <= most_ms, price_ms, np.inf))
        return found


def _cheapest_cuts(price_ms: FloatArray) -> FloatArray:
    """(n,) the least sum of prices of shards that make up a width w, from the prices (n, w + 1) of every width."""
    least = price_ms.copy()
    for width in range(2, price_ms.shape[1]):
        cut = (least[:, 1:width] + price_ms[:, width - 1 : 0 : -1]).min(axis=1)
        least[:, width] = np.minimum(least[:, width], cut)
    cheapest: FloatArray = least[:, -1]
    return cheapest
