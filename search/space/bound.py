"""What no plan of a task is predicted to cost less than: how far a plan may be from the best there is.

A plan's cost is R + T: R is when the last device starts forward communication, T the longest transfer that is left
then. Whatever the plan is, let its widest device, the one with the most columns, give out w bytes. Then

- R is no less than the mean, over the devices that hold anything, of backward communication and compute. Compute is no
  less than prices that add up over shards (`Prices`), and over all devices no less than the prices of every item's
  cheapest shards; of those alone that a device can compute before R. Backward communication is no less than a function
  of a device's bytes, and the bytes of all devices are those of the tables.
- T is no less than the widest device's transfer. Waiting shortens it (`Outline`), but the mean of the waits is R less
  the mean of the starts, of which we know what it is at least.

The bound is the least of R + T over all R and w, in small steps: of each step, R at its beginning, T at its end.
What other parts of a step take on every device alike, whole tables at least, comes on top. Memory and most constraints
are left out: they only make the best plan dearer.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from neuroshard.cost.loads import LoadSets, Traffic, calls_of
from neuroshard.models import CommModel, ReluHead, SumModel
from neuroshard.models.interface import Outline
from neuroshard.plumbing.arrays import FloatArray, IntArray
from neuroshard.plumbing.schema import DIM_MULTIPLE
from neuroshard.stages.search.space.catalog import Catalog
from neuroshard.stages.search.space.exchange_bounds import OneDevice, least_outline
from neuroshard.tasks.task import Task
from neuroshard.words.form import CALLS

_STEPS = 1000
_HALVINGS = 40
_LEAST_MS = 1e-6
_ROUNDING, _SUM_ROUNDING = 1e-5, 1e-6  # of single precision; of the terms of a sum in it
_WIDEST, _BELOW = 96, 64  # ranges of bytes that are told apart: above the mean device's, and below
_LONGEST = 16  # ranges of the longest wait


def lower_bound_ms(catalog: Catalog, steps: int = _STEPS) -> float | None:
    """Compute what no plan that keeps the task's constraints is predicted to cost less than, ms.

    None for compute models that are no sums over tables (`SumModel`). For sums it always holds; it is close where the
    models keep to physics, as installed ones and rooflines do, and may be 0 where they don't. With fewer steps it is
    lower, by about one step, and takes less time.
    """
    models, model, num_devices = catalog.simulator.models, catalog.model, catalog.items.task.topology.num_devices
    if not isinstance(models.compute, SumModel):
        return None
    widest = Widest.of(catalog.items.task)
    forward, waits = least_outline(models.forward, widest.itself), longest_waits(num_devices)
    mean_ms, any_ms = widest.least_backward_ms(models.backward)
    prices = Prices.of(catalog, model.head, float(any_ms.min()))
    widest_ms = any_ms + np.maximum(0, prices.base_ms + prices.of_columns_ms(widest.columns))
    first_ms = max(_first_ms(prices, float(mean_ms.min())), float(widest_ms.min()))
    step_ms = max(first_ms + float((forward.segments_ms[:, 0] @ forward.share).max()), _LEAST_MS) / steps
    least_ms, begin_ms = np.inf, first_ms
    while begin_ms < least_ms:
        end_ms = begin_ms + step_ms
        total_ms = prices.least_total_ms(end_ms)
        possible = np.maximum(prices.busy_ms(total_ms) + mean_ms, widest_ms) <= end_ms
        wait_ms = end_ms - (prices.mean_ms(total_ms) + mean_ms)
        left_ms = least_left_ms(forward, np.maximum(wait_ms, 0), waits)
        least_ms = min(least_ms, begin_ms + float(np.where(possible, left_ms, np.inf).min()))
        begin_ms = end_ms
    return _with_other_parts(catalog, least_ms * (1 - _ROUNDING))


def _with_other_parts(catalog: Catalog, least_ms: float) -> float:
    """Add what other parts of a step take on every device, ms, with whole tables: cuts only add to that."""
    base, simulator = catalog.items.base, catalog.simulator
    loads = base.task.loads.take(base.in_columns)
    counts = simulator.counts_of(LoadSets.alone(loads)).sum(axis=0, keepdims=True) / base.task.topology.num_devices
    kernels = np.eye(len(CALLS))[calls_of(np.unique(loads.kernel))].sum(axis=0, keepdims=True)
    work = kernels, counts, np.zeros(1)
    ready_ms = least_ms + simulator.shared_ms(base.task, *work)
    return float((ready_ms + simulator.waited_ms(base.task, ready_ms, *work))[0])


def _first_ms(prices: "Prices", backward_ms: float) -> float:
    """Find the least R, where backward communication takes `backward_ms` on average."""

    def possible(last_ms: float) -> bool:
        """Tell whether the devices can compute all shards until then."""
        return prices.busy_ms(prices.least_total_ms(last_ms)) + backward_ms <= last_ms

    low = high = prices.busy_ms(prices.least_total_ms(np.inf)) + backward_ms
    while not possible(high):
        high = 2 * high + _LEAST_MS
    for _ in range(_HALVINGS if high > low else 0):
        middle = (low + high) / 2
        low, high = (low, middle) if possible(middle) else (middle, high)
    return low


@dataclass(frozen=True, eq=False)
class Prices:
    """Prices of shards: a device that holds anything computes no less than `base_ms` and theirs, in any plan.

    Every number of a head's hidden layer, relu(v + bias) * weight, is bounded by a straight line in v. Where its weight
    is positive, by its tangent at the mean device's v; where it is negative, by its chord from the least v that any
    device may have to the most. So the score is no less than the sum of these lines, and a line of a sum of vectors is
    a sum over shards. Where a number with a negative weight has no bias, relu of a sum is at most the sum of each
    shard's own relu: that is as good where one shard can undo what all others save.

    Attributes:
        catalog: whose entries have prices.
        base_ms: of a device; may be negative.
        price_ms: (N,) of the entries, 0 for empty shards; some are negative if the model isn't monotone.
        backward_ms: backward communication of any device, at least.
    """

    catalog: Catalog
    base_ms: float
    price_ms: FloatArray
    backward_ms: float

    @classmethod
    def of(cls, catalog: Catalog, head: ReluHead, backward_ms: float) -> "Prices":
        """Price every shard of a catalog that was made with a model of this head."""
        vectors, first = catalog.vectors.astype(np.float64), catalog.first
        least, most = (bound.reduceat(vectors, first).sum(axis=0) for bound in (np.minimum, np.maximum))
        mean = vectors[catalog.whole].sum(axis=0) / catalog.items.task.topology.num_devices
        bias, weight = head.bias.astype(np.float64), head.weight.astype(np.float64)
        ends = np.maximum(np.stack([least, most]) + bias, 0) * weight
        chord = np.divide(ends[1] - ends[0], most - least, out=np.zeros_like(weight), where=most > least)
        apart = (weight < 0) & (bias == 0)
        slope = np.where(apart, 0.0, np.where(weight < 0, chord, weight * (mean + bias > 0)))
        at = np.where(weight < 0, least, mean)
        base = float((np.maximum(at + bias, 0) * weight - slope * at)[~apart].sum()) + head.offset
        rounding = _SUM_ROUNDING * float((np.abs(slope) * np.maximum(-least, most)).sum())
        prices = vectors @ slope + np.maximum(vectors[:, apart], 0) @ weight[apart]
        return cls(catalog, (base - rounding) * head.scale_ms, prices * head.scale_ms, backward_ms)

    @cached_property
    def discount_ms(self) -> float:
        """What shards beside another one lower a device's cost by at most; 0 if no price is negative."""
        return -float(np.minimum(np.minimum.reduceat(self._shards_ms, self.catalog.first), 0).sum())

    def least_total_ms(self, last_ms: float) -> float:
        """Compute what prices of a plan's shards sum to at least, where R is `last_ms`; infinite if that is too soon.

        No price is above what a device can compute until then. Of their limits items keep only whether they may be
        split at all.
        """
        most_ms = last_ms - self.backward_ms - self.base_ms + self.discount_ms
        cut = np.logical_or.reduceat(self.price_ms > most_ms, self.catalog.first)
        return float(self._least_ms[~cut].sum() + self._cheapest(np.flatnonzero(cut), most_ms).sum())

    def busy_ms(self, total_ms: float) -> float:
        """Bound the mean compute of the devices that hold anything from below, where prices add up to `total_ms`."""
        return max(0.0, self.base_ms + total_ms / self.catalog.items.task.topology.num_devices)

    def mean_ms(self, total_ms: float) -> float:
        """Bound the mean compute of all devices from below: some may hold nothing, but not all."""
        devices = self.catalog.items.task.topology.num_devices
        return max(0.0, (min(devices * self.base_ms, self.base_ms) + total_ms) / devices)

    def of_columns_ms(self, columns: FloatArray) -> FloatArray:
        """Compute what prices of a device's shards sum to at least, (J,), if it gives a sample so many columns or more.

        As if any share of an item could be had at its lowest price per column, the cheapest items first.
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
        """The prices of entries that may be shards, (N,); infinity for the others."""
        catalog = self.catalog
        splits = np.repeat(catalog.items.limits.max_shards > 1, catalog.full_width + 1)
        splits[catalog.whole] = True
        splits[catalog.first] = False
        return np.where(splits, self.price_ms, np.inf)

    @cached_property
    def _least_ms(self) -> FloatArray:
        """The least sum of prices of each item's shards, (I,), however dear they may be."""
        return self._cheapest(np.arange(self.catalog.num_items), np.inf)

    def _cheapest(self, items: IntArray, most_ms: float) -> FloatArray:
        """Find the least sum of prices, none above `most_ms`, of shards that make up each of n items, (n,)."""
        catalog, least_ms = self.catalog, np.zeros(len(items))
        for width in np.unique(catalog.full_width[items]).tolist():
            same = catalog.full_width[items] == width
            entry = catalog.first[items[same]][:, None] + np.arange(width + 1)
            price_ms = self._shards_ms[entry]
            least_ms[same] = _cheapest_cuts(np.where(price_ms <= most_ms, price_ms, np.inf))
        return least_ms


def _cheapest_cuts(price_ms: FloatArray) -> FloatArray:
    """Find the least sum of prices of shards that make up a width w, (n,), from prices (n, w + 1) of every width."""
    least = price_ms.copy()
    for width in range(2, price_ms.shape[1]):
        cut = (least[:, 1:width] + price_ms[:, width - 1 : 0 : -1]).min(axis=1)
        least[:, width] = np.minimum(least[:, width], cut)
    return least[:, -1]


@dataclass(frozen=True, eq=False)
class Widest:
    """The device that gives out the most bytes, in J ranges of them, and any device beside it.

    Attributes:
        itself: (J,) ranges, from the mean device's bytes to all there are.
        beside: (J K,) of any device, for each of those, in K ranges: from nothing to the mean, and to all.
    """

    itself: OneDevice
    beside: OneDevice

    @property
    def columns(self) -> FloatArray:
        """Columns that a sample gets of the widest device, at least, (J,)."""
        size_bytes = self.itself.given[0][:, None, None]
        return Traffic(size_bytes, np.full(len(size_bytes), self.itself.batch_size)).columns[:, 0]

    @classmethod
    def of(cls, task: Task) -> "Widest":
        """Cover the bytes that the widest device may give out, in ranges, for any plan of a task."""
        columns = np.array([[task.output_columns]])
        total = float(Traffic.of_columns(columns, task.batch_size).size_bytes.sum())
        exchange = (total, task.topology.num_devices, task.batch_size, task.topology.fast_links)
        above = np.geomspace(total / task.topology.num_devices, total, _WIDEST + 1)
        edges = np.concatenate([np.linspace(0, above[0], _BELOW + 1), above[1:]])
        widest, own = (np.stack([ends[:-1], ends[1:]]) for ends in (above, edges))
        beside = OneDevice(np.tile(own, _WIDEST), np.repeat(widest, own.shape[1], axis=1), *exchange)
        return cls(OneDevice(widest, widest, *exchange), beside)

    def least_backward_ms(self, model: CommModel) -> tuple[FloatArray, FloatArray]:
        """Bound backward communication from below, (J,) each: the mean, of all devices or those in use; any device's.

        What a device takes is no less than a function of its bytes that never falls; the mean, no less than a mixture
        of two of its values that gives out the mean device's bytes.
        """
        outline = least_outline(model, self.beside)
        least_ms = (outline.segments_ms[:, 0] @ outline.share).reshape(_WIDEST, -1)
        ends = self.beside.given[1, : least_ms.shape[1]]
        least_ms = np.where(ends <= self.itself.given[1][:, None], least_ms, np.inf)
        rising = np.minimum.accumulate(least_ms[:, ::-1], axis=1)[:, ::-1]
        low, high = np.concatenate([[0], ends[:_BELOW]]), ends[_BELOW - 1 :]  # both to and from the mean
        low_ms = np.concatenate([rising[:, :1], rising[:, :_BELOW]], axis=1)[:, :, None]
        high_ms = rising[:, None, _BELOW - 1 :]
        apart = high - low[:, None]
        share = np.divide(self.itself.given[0, 0] - low[:, None], apart, out=np.zeros(apart.shape), where=apart > 0)
        share = np.clip(share, 0, 1)  # of `high`; 0 where both are alike
        mixed = low_ms * (1 - share) + np.where(share > 0, high_ms, 0) * share
        return mixed.min(axis=(1, 2)), least_ms.min(axis=1)


def longest_waits(num_devices: int) -> FloatArray:
    """Compute what the `device_waits` of a device are at most, (2 M, W), where the mean of the waits is 1.

    In M ranges of the longest wait, m times the mean: as the last device to start has none, the shortest wait of the
    others is at most (D - m) / (D - 2). In each for the last device, and for another one.
    """
    edges = np.linspace(num_devices / max(num_devices - 1, 1), num_devices, _LONGEST + 1)
    longest, ones, none = edges[1:], np.ones(_LONGEST), np.zeros(_LONGEST)
    next_to_last = np.minimum(longest, (num_devices - edges[:-1]) / (num_devices - 2)) if num_devices > 2 else longest
    last = np.stack([none, next_to_last, ones, longest, next_to_last], axis=1)
    other = np.stack([longest, next_to_last, ones, longest, none], axis=1)
    return np.concatenate([last, other])


def least_left_ms(forward: Outline, mean_wait_ms: FloatArray, longest: FloatArray) -> FloatArray:
    """Find the least transfer of an outline, (J,), where devices' waits are `mean_wait_ms` (J,) on average at most."""
    done = mean_wait_ms[:, None, None] * (longest @ forward.lead.T)
    left: FloatArray = np.maximum(forward.segments_ms - done, 0) @ forward.share
    least: FloatArray = left.min(axis=1)
    return least
