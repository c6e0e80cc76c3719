"""What compute costs at least, as a sum over shards: a price for each, whatever else lies beside it."""

from dataclasses import dataclass

import numpy as np

from neuroshard.arrays import FloatArray
from neuroshard.models import ReluHead
from neuroshard.stages.search.space.catalog import Catalog

_ROUNDING = 1e-6  # of the terms of a sum in single precision


@dataclass(frozen=True, eq=False)
class Prices:
    """A device that holds anything computes no less than `base_ms` and the prices of its shards, in any plan.

    Every number of a head's hidden layer, relu(v + bias) * weight, is bounded by a straight line in v. Where its weight
    is positive, by its tangent at the mean device's v; where it is negative, by its chord from the least v that any
    device may have to the most. So the sum of these lines is what the score is at least, and a line of a sum of vectors
    is a sum over shards.

    Attributes:
        base_ms: of a device; may be negative.
        price_ms: (N,) of the catalog's entries, 0 for empty shards; negative at times if the model isn't monotone.
    """

    base_ms: float
    price_ms: FloatArray

    @classmethod
    def of(cls, catalog: Catalog, head: ReluHead) -> "Prices":
        """The prices of every shard of a catalog, costed by a model with this head."""
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
        return cls((base - rounding) * head.scale_ms, vectors @ slope * head.scale_ms)


def cheapest_ms(catalog: Catalog, prices: Prices) -> float:
    """Sum over items of what each costs at least, in as many shards as it likes; whole if it may not be split."""
    whole = catalog.items.limits.max_shards == 1
    total = prices.price_ms[catalog.whole[whole]].sum()
    for width in np.unique(catalog.full_width[~whole]).tolist():
        entry = catalog.first[~whole & (catalog.full_width == width)]
        total += _cheapest_cuts(prices.price_ms[entry[:, None] + np.arange(width + 1)]).sum()
    return float(total)


def _cheapest_cuts(price_ms: FloatArray) -> FloatArray:
    """(n,) the least sum of prices of shards that make up a width w, from the prices (n, w + 1) of every width."""
    least = price_ms.copy()
    for width in range(2, price_ms.shape[1]):
        cut = (least[:, 1:width] + price_ms[:, width - 1 : 0 : -1]).min(axis=1)
        least[:, width] = np.minimum(least[:, width], cut)
    cheapest: FloatArray = least[:, -1]
    return cheapest


def largest_ms(catalog: Catalog, prices: Prices) -> float:
    """What some device computes at least: the one with the widest shard of the item that is dearest there."""
    price_ms, first = prices.price_ms, catalog.first
    discount = np.minimum.reduceat(price_ms, first)  # of any shard of an item; 0 where none is below 0
    shards = np.minimum(catalog.items.limits.max_shards, catalog.items.limits.allowed.sum(axis=1))
    found = [
        price_ms[start + _widest(width, count) : start + width + 1].min() - own
        for start, width, count, own in zip(first, catalog.full_width, shards, discount, strict=True)
    ]
    return prices.base_ms + max(found) + float(discount.sum())


def _widest(width: int, count: int) -> int:
    """Units of the widest of so many shards, at least."""
    return -(-width // count)
