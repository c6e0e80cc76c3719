"""Placing layouts on devices greedily, table-wise (NeuroShard, section 3.3): compiled where the model allows."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np

from neuroshard.arrays import BoolArray, FloatArray, IntArray
from neuroshard.loads import LoadSets
from neuroshard.models import ComputeModel, SumModel
from neuroshard.stages.search.kernels.greedy import place_greedily
from neuroshard.stages.search.space.catalog import Catalog
from neuroshard.stages.search.space.feasibility import device_memory
from neuroshard.stages.search.space.layout import Layout

_THREADS = 2
_WORTH_A_THREAD = 1 << 24  # shards x caps x devices: tens of milliseconds


@dataclass(frozen=True)
class Placements:
    """P layouts of S shards, each placed under M caps on D devices.

    Attributes:
        shards: (P, S, 2) item and width, in the order in which they were placed.
        devices: (P, M, S) the device of each shard.
        compute_ms: (P, M, D) compute cost.
        units: (P, M, D) units of 4 columns.
        alive: (P, M) whether every shard had a place.
        repeated: (P, M) whether the placement is the previous cap's again.
    """

    shards: IntArray
    devices: IntArray
    compute_ms: FloatArray
    units: IntArray
    alive: BoolArray
    repeated: BoolArray


class Placer(Protocol):
    """Places shards in descending cost, each where the device's cost ends lowest, under every cap and in memory."""

    def place(self, layouts: Sequence[Layout], caps: IntArray) -> Placements:
        """All layouts, which must have the same number of shards, under all caps (M,), in units of 4 columns."""
        ...


def make_placer(model: ComputeModel, catalog: Catalog) -> Placer:
    """The compiled placer for models of the papers' form, the plain one for others."""
    return _CompiledPlacer(model, catalog) if isinstance(model, SumModel) else _PlainPlacer(model, catalog)


def _in_order(layouts: Sequence[Layout], catalog: Catalog) -> IntArray:
    """(P, S, 2) every layout's shards in descending cost of the shard alone; those that may not go anywhere first."""
    shards = np.stack([layout.shards(catalog) for layout in layouts])
    cost = catalog.cost_ms[catalog.first[shards[..., 0]] + shards[..., 1]]
    anywhere = ~catalog.items.confined[shards[..., 0]]
    order = np.lexsort((shards[..., 1], shards[..., 0], -cost, anywhere), axis=1)
    return np.take_along_axis(shards, order[..., None], axis=1)


class _CompiledPlacer:
    def __init__(self, model: SumModel, catalog: Catalog) -> None:
        self._catalog = catalog
        self._head = model.head
        self._memory_bytes = device_memory(catalog.items.task)

    def place(self, layouts: Sequence[Layout], caps: IntArray) -> Placements:
        """In threads where that is worth it; the result doesn't depend on it."""
        shards = _in_order(layouts, self._catalog)
        work = shards.shape[0] * shards.shape[1] * len(caps) * len(self._memory_bytes)
        pieces = min(_THREADS, len(layouts)) if work > _WORTH_A_THREAD else 1
        slots = self._slots(layouts, shards)
        parts = zip(np.array_split(shards, pieces), np.array_split(slots, pieces), strict=True)
        with ThreadPoolExecutor(pieces) as pool:
            return _joined(list(pool.map(lambda part: self._place(part[0], part[1], caps), parts)))

    def _slots(self, layouts: Sequence[Layout], shards: IntArray) -> IntArray:
        """(P, S) for shards of a split item its number among the layout's split items, else -1."""
        slots = np.full(shards.shape[:2], -1, dtype=np.int64)
        for p, layout in enumerate(layouts):
            for slot, (item, _) in enumerate(layout.splits):
                slots[p, shards[p, :, 0] == item] = slot
        return slots

    def _place(self, shards: IntArray, slots: IntArray, caps: IntArray) -> Placements:
        count, num_shards = slots.shape
        shape = (count, len(caps), len(self._memory_bytes))
        devices = np.empty((count, len(caps), num_shards), dtype=np.int64)
        score, units = np.zeros(shape), np.zeros(shape, dtype=np.int64)
        state = np.zeros((count, len(caps), 2), dtype=np.bool_)
        place_greedily(
            np.ascontiguousarray(shards[..., 0]), np.ascontiguousarray(shards[..., 1]), slots, int(slots.max()) + 1,
            caps, self._memory_bytes, self._catalog.items.limits,
            self._catalog.first, self._catalog.size_bytes, self._catalog.vectors, self._head.bias, self._head.weight,
            -self._head.offset, devices, score, units, state,
        )  # fmt: skip
        compute_ms = self._head.finish(score) * (units > 0)
        return Placements(shards, devices, compute_ms, units, state[..., 0], state[..., 1])


class _PlainPlacer:
    """One shard after the other through the model, for models that are not a sum over tables."""

    def __init__(self, model: ComputeModel, catalog: Catalog) -> None:
        self._model = model
        self._catalog = catalog
        self._batch_size = catalog.items.task.batch_size
        self._memory_bytes = device_memory(catalog.items.task)

    def place(self, layouts: Sequence[Layout], caps: IntArray) -> Placements:
        """One layout and cap after the other."""
        shards = _in_order(layouts, self._catalog)
        return _joined([_joined([self._place(one, int(cap)) for cap in caps], axis=1) for one in shards])

    def _place(self, shards: IntArray, cap: int) -> Placements:
        """One layout, (S, 2), under one cap."""
        held: IntArray = np.zeros(self._catalog.items.limits.allowed.shape, dtype=np.int64)
        devices = np.full((1, 1, len(shards)), -1, dtype=np.int64)
        alive = True
        for s, (item, width) in enumerate(shards.tolist()):
            options = [d for d in range(held.shape[1]) if self._fits(held, item, width, d, cap)]
            if not options:
                alive = False
                break
            costs = self._costs([_with(held[:, d], item, width) for d in options])
            device = options[int(np.argmin(costs))]
            held[item, device] += width
            devices[0, 0, s] = device
        compute_ms = self._costs(list(held.T))
        flags = np.array([[alive]]), np.array([[False]])
        return Placements(
            shards[None], devices, compute_ms[None, None], held.sum(axis=0)[np.newaxis, np.newaxis], *flags
        )

    def _fits(self, held: IntArray, item: int, width: int, device: int, cap: int) -> bool:
        items, content = self._catalog.items, _with(held[:, device], item, width)
        size = int(self._catalog.size_bytes[self._catalog.first + content].sum())
        repeated = items.limits.min_shards[item] > 1 and held[item, device] > 0
        free = items.limits.allowed[item, device] and not held[items.rivals_of(item), device].any() and not repeated
        return bool(free) and int(content.sum()) <= cap and size <= self._memory_bytes[device]

    def _costs(self, contents: Sequence[IntArray]) -> FloatArray:
        """(n,) ms of devices that hold so many units (I,) of each item."""
        items = self._catalog.items
        sets = [
            [table for item in np.flatnonzero(content).tolist() for table in items.tables(item, int(content[item]))]
            for content in contents
        ]
        return self._model.predict(LoadSets.of(sets, self._batch_size))


def _with(content: IntArray, item: int, width: int) -> IntArray:
    """`content` (I,) with `width` more of an item."""
    after = content.copy()
    after[item] += width
    return after


def _joined(parts: list[Placements], axis: int = 0) -> Placements:
    """Placements of several groups of layouts (axis 0) or caps (axis 1) together."""
    arrays = {
        field.name: np.concatenate([getattr(part, field.name) for part in parts], axis=axis)
        for field in fields(Placements)
        if not (axis == 1 and field.name == "shards")
    }
    return Placements(**({"shards": parts[0].shards} | arrays))
