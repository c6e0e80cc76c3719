"""Greedy grid search (NeuroShard, section 3.3): many layouts, each placed under every cap, the cheapest kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta

from neuroshard.arrays import FloatArray, IntArray
from neuroshard.checked import checked
from neuroshard.schema import DIM_MULTIPLE, MAX_DEVICES
from neuroshard.simulator import Simulator
from neuroshard.stages.search.placement.greedy import PlacementGrid, make_placer
from neuroshard.stages.search.space.catalog import Catalog
from neuroshard.stages.search.space.layout import Layout
from neuroshard.traffic import Traffic


@dataclass(frozen=True)
@checked
class GridSettings:
    """Caps on a device's sum of dims: `points` of them, from 1.0 to `max_factor` times the mean over devices.

    Without any (0 points) shards are placed by compute cost alone.
    """

    points: Annotated[int, Meta(ge=0, le=10_000)] = 11
    max_factor: Annotated[float, Meta(ge=1, le=MAX_DEVICES)] = 1.5


@dataclass(frozen=True, eq=False)
class PlacedLayout:
    """A layout with its best placement: (S, 2) shards as (item, width) and the device of each, (S,).

    `cost_ms` is the plan's predicted cost, infinite where nothing fits; some shards then have no device.
    """

    layout: Layout
    shards: IntArray
    devices: IntArray
    cost_ms: float


def comparable(cost_ms: FloatArray) -> FloatArray:
    """Costs (...,) to six significant digits: what differs by less is float32's noise, and a tie."""
    magnitude = 10.0 ** np.floor(np.log10(np.maximum(cost_ms, 1e-9)))
    rounded: FloatArray = np.round(cost_ms / magnitude, 5) * magnitude
    return rounded


class GridSearch:
    """Places layouts of one task under every cap on a device's sum of dims, within memory; the cheapest counts.

    Where no cap leaves room for every shard, a placement without a cap counts.
    """

    def __init__(self, catalog: Catalog, simulator: Simulator, settings: GridSettings) -> None:
        self.catalog = catalog
        self._placer = make_placer(simulator.models.compute, catalog)
        self._simulator = simulator
        self._num_devices = catalog.items.task.topology.num_devices
        mean_units = self.catalog.full_width.sum() / self._num_devices
        factors = np.linspace(1.0, settings.max_factor, settings.points)
        # Caps between which no sum of widths lies are the same cap. The last one, everything, is a last resort.
        caps = np.unique(np.floor(mean_units * factors + 1e-9).astype(np.int64))
        self._caps = np.append(caps, self.catalog.full_width.sum())

    def place(self, layouts: Sequence[Layout]) -> list[PlacedLayout]:
        """The best placement of each layout; all must have the same number of shards."""
        grid = self._placer.place(layouts, self._caps)
        total = self._total_ms(grid)
        last_resort = np.where(np.isfinite(total[:, -1:]), np.finfo(np.float64).max, np.inf)
        best = np.argmin(np.concatenate([total[:, :-1], last_resort], axis=1), axis=1)
        return [
            PlacedLayout(layout, grid.shards[p], grid.devices[p, best[p]], float(total[p, best[p]]))
            for p, layout in enumerate(layouts)
        ]

    def held(self, placed: PlacedLayout) -> IntArray:
        """(I, D) units of 4 columns of each item on each device, of a placement that fits."""
        held = np.zeros((self.catalog.num_items, self._num_devices), dtype=np.int64)
        np.add.at(held, (placed.shards[:, 0], placed.devices), placed.shards[:, 1])
        return held

    def _total_ms(self, grid: PlacementGrid) -> FloatArray:
        """(P, M) the plans' costs; infinite where a shard has no place, or the previous cap's placement is repeated."""
        fresh = grid.alive & ~grid.repeated
        compute = grid.compute_ms[fresh]
        dims = (grid.units[fresh] * DIM_MULTIPLE).astype(np.float64)
        traffic = Traffic.of_columns(dims, self.catalog.items.task.batch_size)
        forward, backward = self._simulator.communication(traffic, compute)
        total = np.full(grid.alive.shape, np.inf)
        total[fresh] = comparable((compute + forward + backward).max(axis=1))
        return total
