"""Placing layouts on devices greedily, table-wise (NeuroShard, section 3.3): compiled where the model allows."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np

from neuroshard.models import ComputeModel, SumModel
from neuroshard.plumbing.arrays import BoolArray, FloatArray, IntArray
from neuroshard.plumbing.threads import in_threads, useful_threads
from neuroshard.stages.search.kernels.place_greedily import GreedyOutcome, Head, place_greedily
from neuroshard.stages.search.space.catalog import Catalog
from neuroshard.stages.search.space.room import Room, devices_with_room, put
from neuroshard.stages.search.space.sizes import DeviceLoads

_WORTH_A_THREAD = 1 << 15  # shards x caps: a few milliseconds


@dataclass(frozen=True)
class PlacementGrid:
    """Where P layouts of S shards go under each of M caps on D devices.

    Attributes:
        shards: (P, S, 2) item and width, in the order in which they were placed.
        devices: (P, M, S) the device of each shard.
        compute_ms: (P, M, D) compute cost.
        units: (P, M, D) of 4 columns, that a sample gets of each device.
        alive: (P, M) whether every shard had a place.
        repeated: (P, M) whether the placement is the previous cap's again.
    """

    shards: IntArray
    devices: IntArray
    compute_ms: FloatArray
    units: FloatArray
    alive: BoolArray
    repeated: BoolArray


class GreedyPlacer(Protocol):
    """Places shards in descending cost, each where the device's cost ends lowest, under every cap and in memory."""

    def place(self, layouts: IntArray, caps: IntArray) -> PlacementGrid:
        """P layouts (P, S) under all caps (M,), in units of 4 columns, ascending."""
        ...


def make_placer(model: ComputeModel, catalog: Catalog) -> GreedyPlacer:
    """The compiled placer for models of the papers' form, the plain one for others."""
    return _CompiledPlacer(model, catalog) if isinstance(model, SumModel) else _PlainPlacer(model, catalog)


class _Order:
    """Shards in descending cost of the shard alone; those that may not go anywhere first."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        anywhere = ~catalog.items.confined[catalog.item]
        self._entries = np.lexsort((-catalog.cost_ms, anywhere))
        self._place = np.empty_like(self._entries)
        self._place[self._entries] = np.arange(len(self._entries))

    def __call__(self, layouts: IntArray) -> IntArray:
        """(P, S, 2) items and widths of layouts (P, S), in order."""
        entries = self._entries[np.sort(self._place[layouts], axis=1)]
        item = self._catalog.item[entries]
        return np.stack([item, entries - self._catalog.first[item]], axis=-1)


class _CompiledPlacer:
    def __init__(self, model: SumModel, catalog: Catalog) -> None:
        self._catalog = catalog
        self._head = model.head
        self._in_order = _Order(catalog)
        self._memory_bytes = catalog.items.free_bytes

    def place(self, layouts: IntArray, caps: IntArray) -> PlacementGrid:
        """Place layouts under every cap, in threads where that is worth it; the result doesn't depend on it."""
        shards = self._in_order(layouts)
        work = shards.shape[0] * shards.shape[1] * len(caps)
        pieces = min(useful_threads(), len(layouts)) if work > _WORTH_A_THREAD else 1
        return _joined(in_threads(lambda part: self._place(part, caps), np.array_split(shards, pieces)))

    def _place(self, shards: IntArray, caps: IntArray) -> PlacementGrid:
        count, num_shards, _ = shards.shape
        shape = (count, len(caps), len(self._memory_bytes))
        outcome = GreedyOutcome(
            np.empty((count, len(caps), num_shards), dtype=np.int64),
            np.zeros(shape),
            np.empty(shape),
            np.empty(shape[:2], dtype=np.bool_),
            np.empty(shape[:2], dtype=np.bool_),
        )
        room = Room.empty(self._catalog, self._memory_bytes)
        head = Head(self._head.bias, self._head.weight, -self._head.offset)
        place_greedily(
            shards, caps, self._memory_bytes, room, self._catalog.vectors, self._catalog.least_score, head, outcome
        )
        compute_ms = self._head.finish(outcome.score) * (outcome.units > 0)
        return PlacementGrid(shards, outcome.devices, compute_ms, outcome.units, outcome.alive, outcome.repeated)


class _PlainPlacer:
    """One shard after the other through the model, for models that are not a sum over tables."""

    def __init__(self, model: ComputeModel, catalog: Catalog) -> None:
        self._model = model
        self._in_order = _Order(catalog)
        self._catalog = catalog
        self._loads = DeviceLoads(catalog.items)
        self._memory_bytes = catalog.items.free_bytes

    def place(self, layouts: IntArray, caps: IntArray) -> PlacementGrid:
        """One layout and cap after the other."""
        shards = self._in_order(layouts)
        return _joined([_joined([self._place(one, int(cap)) for cap in caps], axis=1) for one in shards])

    def _place(self, shards: IntArray, cap: int) -> PlacementGrid:
        """One layout, (S, 2), under one cap."""
        room = Room.empty(self._catalog, self._memory_bytes)
        room.free_units[:] = cap
        devices = np.full((1, 1, len(shards)), -1, dtype=np.int64)
        alive = True
        for s, (item, width) in enumerate(shards.tolist()):
            options = np.flatnonzero(devices_with_room(room, item, width)).tolist()
            if not options:
                alive = False
                break
            costs = self._costs([_with(room.held[:, d], item, width) for d in options])
            device = options[int(np.argmin(costs))]
            put(room, item, width, device)
            devices[0, 0, s] = device
        compute_ms = self._costs(list(room.held.T))
        units = self._catalog.given_by(room.held.T)
        flags = np.array([[alive]]), np.array([[False]])
        return PlacementGrid(shards[None], devices, compute_ms[None, None], units[None, None], *flags)

    def _costs(self, contents: Sequence[IntArray]) -> FloatArray:
        """(n,) ms of devices that hold so many units (I,) of each item."""
        return self._model.predict(self._loads.sets(np.array(contents)))


def _with(content: IntArray, item: int, width: int) -> IntArray:
    """`content` (I,) with `width` more of an item."""
    after = content.copy()
    after[item] += width
    return after


def _joined(parts: list[PlacementGrid], axis: int = 0) -> PlacementGrid:
    """Placements of several groups of layouts (axis 0) or caps (axis 1) together."""
    arrays = {
        field.name: np.concatenate([getattr(part, field.name) for part in parts], axis=axis)
        for field in fields(PlacementGrid)
        if not (axis == 1 and field.name == "shards")
    }
    return PlacementGrid(**({"shards": parts[0].shards} | arrays))
