"""Greedy grid search over table-wise placement (NeuroShard, section 3.3), for many layouts in lockstep."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from neuroshard.arrays import BoolArray, Float32Array, FloatArray, IntArray
from neuroshard.errors import UserError
from neuroshard.plan import Plan, assemble
from neuroshard.search.catalog import Catalog
from neuroshard.search.layout import Layout
from neuroshard.simulator import Simulator
from neuroshard.tables.table import DIM_MULTIPLE
from neuroshard.task import Task


@dataclass(frozen=True)
class GridSettings:
    """Caps on a device's sum of dims: `points` of them, from 1.0 to `max_factor` times the mean over devices."""

    points: int = 11
    max_factor: float = 1.5

    def __post_init__(self) -> None:
        if not isinstance(self.points, int) or self.points < 1:
            raise UserError(f"grid: points={self.points!r} must be a whole number of at least 1")
        if not self.max_factor >= 1:
            raise UserError(f"grid: max_factor={self.max_factor} must be at least 1")


@dataclass(frozen=True)
class Placed:
    """A layout with the device of each of its shards; `cost_ms` is the plan's, infinite where nothing fits."""

    layout: Layout
    devices: tuple[int, ...]
    cost_ms: float

    def plan(self, task: Task) -> Plan:
        """As a plan."""
        pairs = zip(self.layout.shards, self.devices, strict=True)
        return assemble(task, [(table, width * DIM_MULTIPLE, device) for (table, width), device in pairs])


class GridSearch:
    """Places layouts of one task: shards in descending predicted cost, each where the device's cost ends lowest.

    Every layout is placed once for every cap on a device's sum of dims, within memory; the cheapest counts. Where no
    cap leaves room for every shard, a placement without a cap counts. Shards of one table that meet on a device are
    costed as the one shard that they become.
    """

    def __init__(self, task: Task, simulator: Simulator, settings: GridSettings) -> None:
        simulator.models.check(task)
        self.catalog = Catalog.of(task, simulator.models.compute)
        self._simulator = simulator
        self._num_devices = task.topology.num_devices
        self._memory_bytes = task.topology.memory_bytes
        mean_units = self.catalog.full_width.sum() / self._num_devices
        factors = np.unique(np.linspace(1.0, settings.max_factor, settings.points))
        # Caps between which no sum of widths lies are the same cap. The last one, everything, is a last resort.
        caps = np.unique(np.floor(mean_units * factors + 1e-9).astype(np.int64))
        self._caps = np.append(caps, self.catalog.full_width.sum())

    def place(self, layouts: Sequence[Layout]) -> list[Placed]:
        """The best placement of each layout; all must have the same number of shards."""
        shards = np.array([layout.shards for layout in layouts], dtype=np.int64)  # (P, S, 2)
        cost = self.catalog.cost_ms[shards[..., 0], shards[..., 1]]
        order = np.argsort(-cost, axis=1, kind="stable")
        state = _State(self.catalog, len(layouts), len(self._caps), self._num_devices)
        devices = np.zeros((*shards.shape[:2], len(self._caps)), dtype=np.int64)  # (P, S, M)
        layout_index = np.arange(len(layouts))
        for step in order.T:
            chosen = self._step(state, shards[layout_index, step])
            devices[layout_index, step] = chosen
        total = self._total_ms(state)
        capped = total[:, :-1]
        best = np.where(np.isfinite(capped).any(axis=1), np.argmin(capped, axis=1), capped.shape[1])
        return [
            Placed(layout, tuple(devices[i, :, best[i]].tolist()), float(total[i, best[i]]))
            for i, layout in enumerate(layouts)
        ]

    def _step(self, state: "_State", shard: IntArray) -> IntArray:
        """Place the next shard of every layout, (P, 2), under every cap; returns the devices (P, M)."""
        table, width = shard[:, 0], shard[:, 1]
        sums = state.sums_with(table, width)
        size = (self.catalog.bytes_per_unit[table] * width)[:, None, None]
        fits = (state.units + width[:, None, None] <= self._caps[:, None]) & (state.size + size <= self._memory_bytes)
        cost = np.where(fits, self._simulator.models.compute.head(sums), np.inf)
        device: IntArray = np.argmin(cost, axis=2)
        state.add(table, width, size[..., 0], device, sums, np.take_along_axis(fits, device[..., None], 2)[..., 0])
        return device

    def _total_ms(self, state: "_State") -> FloatArray:
        """(P, M) the plans' costs."""
        compute = self._simulator.models.compute.head(state.sums) * (state.units > 0)
        flat = compute.reshape(-1, self._num_devices)
        dims = state.units.reshape(flat.shape).astype(np.float64) * DIM_MULTIPLE
        forward, backward = self._simulator.communication(dims, flat)
        total = (flat + forward + backward).max(axis=1).reshape(state.alive.shape)
        return np.where(state.alive, total, np.inf)


class _State:
    """What stands on every device for P layouts under M caps while shards are placed.

    `sums` (P, M, D, H) of the tables' vectors, `units` (P, M, D) of 4 columns, `size` (P, M, D) bytes, `held`
    (T, P, M, D) units of each table, `alive` (P, M): every shard so far had a place.
    """

    def __init__(self, catalog: Catalog, layouts: int, caps: int, devices: int) -> None:
        shape = (layouts, caps, devices)
        self._catalog = catalog
        self.sums: Float32Array = np.zeros((*shape, catalog.vectors.shape[2]), dtype=np.float32)
        self.units: IntArray = np.zeros(shape, dtype=np.int64)
        self.size: IntArray = np.zeros(shape, dtype=np.int64)
        self.held: IntArray = np.zeros((len(catalog.full_width), *shape), dtype=np.int64)
        self.alive: BoolArray = np.ones((layouts, caps), dtype=np.bool_)
        self._layout = np.arange(layouts)[:, None]
        self._cap = np.arange(caps)

    def sums_with(self, table: IntArray, width: IntArray) -> Float32Array:
        """(P, M, D, H) the sums if each layout's shard (P,) were added to every device, merged with what it meets."""
        vectors = self._catalog.vectors
        sums = self.sums + vectors[table, width][:, None, None, :]
        for i in np.flatnonzero(width < self._catalog.full_width[table]):
            held = self.held[table[i], i]
            of_table = vectors[table[i]]
            sums[i] = self.sums[i] + (of_table[held + width[i]] - of_table[held])
        return sums

    def add(
        self, table: IntArray, width: IntArray, size: IntArray, device: IntArray, sums: Float32Array, fits: BoolArray
    ) -> None:
        """Put the shards (P,) on the devices (P, M) chosen for them."""
        place = (self._layout, self._cap, device)
        self.sums[place] = sums[place]
        self.units[place] += width[:, None]
        self.size[place] += size
        self.held[(table[:, None], *place)] += width[:, None]
        self.alive &= fits
