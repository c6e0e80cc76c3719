"""Greedy grid search (NeuroShard, section 3.3): many layouts, each placed under every cap, the cheapest kept.

Shards are placed in descending cost, each where the device's cost ends lowest, under every cap and in memory.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta

from neuroshard.plumbing.arrays import FloatArray, IntArray
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.schema import MAX_DEVICES
from neuroshard.plumbing.threads import in_threads, useful_threads
from neuroshard.stages.search.kernels.place_greedily import PlacementGrid, Scores, place_greedily
from neuroshard.stages.search.space.catalog import Catalog
from neuroshard.stages.search.space.sizes import Room

# With this many devices or more, shards are placed by the cost that they add on any device: then few devices but those
# with the lowest costs need to be tried. That makes the published search's plans 0.7% cheaper with 64 or 128 devices;
# with 4 to 16 devices it makes them 2% to 4% more expensive.
_MANY = 64
_ALIKE = 1e-3  # of base compute: devices that differ by less, as where blocks do by a row, count as alike
_COSTED_TOGETHER = 64  # placements, at least, in a call of the communication models


@dataclass(frozen=True)
@checked
class GridSettings:
    """Caps on the columns that a sample gets of a device: `points` of them, up to `max_factor` times the mean.

    Without any (0 points) shards are placed by compute cost alone.

    Attributes:
        points: number of upper limits on the columns per device that greedy placement tries, from the mean over devices
            to max_factor times the mean; larger values take longer, and 0 places shards without a limit.
        max_factor: loosest upper limit on the columns per device that greedy placement tries, as a multiple of the mean
            over devices (1.5 is 50% above the mean).
    """

    points: Annotated[int, Meta(ge=0, le=10_000)] = 11
    max_factor: Annotated[float, Meta(ge=1, le=MAX_DEVICES)] = 1.5


@dataclass(frozen=True, eq=False)
class PlacedLayout:
    """A layout (S,) with its best placement: (S, 2) shards as (item, width) and the device of each, (S,).

    `cost_ms` is the plan's predicted cost, infinite where nothing fits; some shards then have no device.
    """

    layout: IntArray
    shards: IntArray
    devices: IntArray
    cost_ms: float


def comparable(cost_ms: FloatArray) -> FloatArray:
    """Round costs (...,) to six significant digits: what differs by less is float32's noise, and a tie."""
    magnitude = 10.0 ** np.floor(np.log10(np.maximum(cost_ms, 1e-9)))
    rounded: FloatArray = np.round(cost_ms / magnitude, 5) * magnitude
    return rounded


class GridSearch:
    """Places layouts of one task under every cap on what a device gives out, within memory; the cheapest counts.

    Where no cap leaves room for every shard, a placement without a cap counts.
    """

    def __init__(self, catalog: Catalog, settings: GridSettings) -> None:
        self.catalog = catalog
        self._scores = _scores(catalog)
        anywhere = ~catalog.items.confined[catalog.item]
        self._entries = np.lexsort((-catalog.cost_ms, anywhere))
        self._place_of = np.empty_like(self._entries)
        self._place_of[self._entries] = np.arange(len(self._entries))
        self._base_score = _beyond_least(catalog.items.base.compute_ms) / catalog.model.head.scale_ms
        self._num_devices = catalog.items.task.topology.num_devices
        total_units = self.catalog.total_given
        factors = np.linspace(1.0, settings.max_factor, settings.points)
        # Caps with no sum of widths between them are the same cap. The last cap, all columns, is a last resort.
        caps = np.unique(np.floor(total_units / self._num_devices * factors + 1e-9).astype(np.int64))
        self._caps = np.append(caps, int(np.ceil(total_units)))

    def place(self, layouts: IntArray, keep: int = 1) -> list[PlacedLayout]:
        """Find the best placement of each of P layouts (P, S); those after the `keep` cheapest may look expensive."""
        return self._best(layouts, self.placements(layouts, self._caps, self._scores), keep)

    def _best(self, layouts: Iterable[IntArray], grid: PlacementGrid, keep: int) -> list[PlacedLayout]:
        total = self._total_ms(grid, keep)
        best = np.argmin(total, axis=1)
        return [
            PlacedLayout(layout, grid.shards[p], grid.devices[p, best[p]], float(total[p, best[p]]))
            for p, layout in enumerate(layouts)
        ]

    def refined(self, placed: PlacedLayout) -> PlacedLayout:
        """Place a layout once more by whole devices, where shards were placed by what each adds; keep the cheaper."""
        if not _by_adding(self.catalog):
            return placed
        grid = self.placements(placed.layout[None], self._caps, _whole_scores(self.catalog))
        return min(placed, *self._best([placed.layout], grid, 1), key=lambda one: one.cost_ms)

    def held(self, placed: PlacedLayout) -> IntArray:
        """Count the units of 4 columns of each item on each device, (I, D), of a placement that fits."""
        held = np.zeros((self.catalog.num_items, self._num_devices), dtype=np.int64)
        np.add.at(held, (placed.shards[:, 0], placed.devices), placed.shards[:, 1])
        return held

    def _total_ms(self, grid: PlacementGrid, keep: int) -> FloatArray:
        """Cost the plans, (P, M); infinite where a shard has no place, or the placement doesn't count.

        Those that are the previous cap's again don't count, nor do those without a cap beside others. A plan costs at
        least what its straggler computes, so those that can't be among the `keep` cheapest aren't costed.
        """
        counts = grid.alive & ~grid.repeated
        counts[:, -1] &= ~grid.alive[:, :-1].any(axis=1)
        total = np.full(grid.alive.shape, np.inf)
        layout, cap = counts.nonzero()
        least = comparable((grid.compute_ms[layout, cap] + self.catalog.items.base.compute_ms).max(axis=1))
        order, done, most = np.argsort(least, kind="stable"), 0, np.inf
        while done < len(order) and least[order[done]] <= most:
            some = order[done : done + max(_COSTED_TOGETHER, done)]
            total[layout[some], cap[some]] = self._costs(grid, layout[some], cap[some])
            done += len(some)
            if keep <= len(total):
                most = np.partition(total.min(axis=1), keep - 1)[keep - 1]
        return total

    def _costs(self, grid: PlacementGrid, layout: IntArray, cap: IntArray) -> FloatArray:
        """Cost the placements of some layouts (n,) under some caps (n,): (n,)."""
        _, total_ms = self.catalog.step(grid.compute_ms[layout, cap], grid.units[layout, cap])
        return comparable(total_ms.max(axis=1))

    def placements(self, layouts: IntArray, caps: IntArray, scores: Scores) -> PlacementGrid:
        """Place layouts (P, S) under all caps (M,), in units of 4 columns, ascending; in threads if that pays.

        One shard after the other: in descending cost of the shard alone, confined ones first.
        """
        entries = self._entries[np.sort(self._place_of[layouts], axis=1)]
        item = self.catalog.item[entries]
        shards = np.stack([item, entries - self.catalog.first[item]], axis=-1)
        threads = min(useful_threads(layouts.size * len(caps)), len(layouts))
        chunks = in_threads(lambda its: self._placed(its, caps, scores), np.array_split(shards, threads), threads)
        return PlacementGrid(*map(np.concatenate, zip(*chunks, strict=True)))

    def _placed(self, shards: IntArray, caps: IntArray, scores: Scores) -> PlacementGrid:
        head, memory_bytes = self.catalog.model.head, self.catalog.items.free_bytes
        count, num_shards, _ = shards.shape
        shape = (count, len(caps), len(memory_bytes))
        outcome = PlacementGrid(
            shards,
            np.empty((count, len(caps), num_shards), dtype=np.int64),
            np.empty(shape),
            np.empty(shape),
            np.empty(shape[:2], dtype=np.bool_),
            np.empty(shape[:2], dtype=np.bool_),
        )
        room = Room.empty(self.catalog, memory_bytes)
        place_greedily(outcome, caps, memory_bytes, self._base_score, room, scores)
        return outcome._replace(compute_ms=head.finish(outcome.compute_ms) * (outcome.units > 0))


def _beyond_least(base_ms: FloatArray) -> FloatArray:
    """Compute by how much each device's base compute (D,) is above the least; by nothing where all are about alike."""
    beyond: FloatArray = base_ms - base_ms.min()
    return beyond if beyond.max() > _ALIKE * base_ms.max() else np.zeros_like(beyond)


def _by_adding(catalog: Catalog) -> bool:
    """Return True if shards are placed by the cost that each adds on any device: many devices, and models know it."""
    return catalog.items.task.topology.num_devices >= _MANY and bool(catalog.added[0].any())


def _scores(catalog: Catalog) -> Scores:
    """Return the scores that shards are placed by: the cost added on any device, if `_by_adding`, else whole costs."""
    if not _by_adding(catalog):
        return _whole_scores(catalog)
    head, (adding, added_score) = catalog.model.head, catalog.added
    order, counted = np.argsort(~adding, kind="stable"), int(adding.sum())
    vectors = np.ascontiguousarray(catalog.vectors[:, order])
    return Scores(vectors, added_score, head.bias[order], head.weight[order], counted, -head.offset)


def _whole_scores(catalog: Catalog) -> Scores:
    """Return the scores that shards are placed by if all shards on a device count."""
    head = catalog.model.head
    return Scores(catalog.vectors, catalog.least_score, head.bias, head.weight, len(head.bias), -head.offset)
