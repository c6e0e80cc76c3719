"""Placing layouts on devices greedily, table-wise (NeuroShard, section 3.3): compiled where the model allows."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np

from neuroshard.arrays import BoolArray, FloatArray, IntArray
from neuroshard.models import ComputeModel, SumModel
from neuroshard.search.catalog import Catalog
from neuroshard.search.layout import Layout
from neuroshard.search.memory import device_memory
from neuroshard.search.placement import place_greedily
from neuroshard.tables import Table
from neuroshard.tables.table import DIM_MULTIPLE
from neuroshard.task import Task

_THREADS = 2
_WORTH_A_THREAD = 1 << 24  # shards x caps x devices: tens of milliseconds


@dataclass(frozen=True)
class Placements:
    """P layouts of S shards, each placed under M caps on D devices.

    Attributes:
        shards: (P, S, 2) table and width, in the order in which they were placed.
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


def make_placer(task: Task, model: ComputeModel, catalog: Catalog) -> Placer:
    """The compiled placer for models of the papers' form, the plain one for others."""
    if isinstance(model, SumModel):
        return _CompiledPlacer(task, model, catalog)
    return _PlainPlacer(task, model, catalog)


def _in_order(layouts: Sequence[Layout], catalog: Catalog) -> IntArray:
    """(P, S, 2) every layout's shards in descending cost of the shard alone."""
    shards = np.stack([layout.shards(catalog) for layout in layouts])
    cost = catalog.cost_ms[catalog.first[shards[..., 0]] + shards[..., 1]]
    order = np.lexsort((shards[..., 1], shards[..., 0], -cost), axis=1)
    return np.take_along_axis(shards, order[..., None], axis=1)


class _CompiledPlacer:
    def __init__(self, task: Task, model: SumModel, catalog: Catalog) -> None:
        self._catalog = catalog
        self._head = model.head
        self._memory_bytes = device_memory(task)

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
        """(P, S) for shards of a split table its number among the layout's split tables, else -1."""
        slots = np.full(shards.shape[:2], -1, dtype=np.int64)
        for p, layout in enumerate(layouts):
            for slot, (table, _) in enumerate(layout.splits):
                slots[p, shards[p, :, 0] == table] = slot
        return slots

    def _place(self, shards: IntArray, slots: IntArray, caps: IntArray) -> Placements:
        count, num_shards = slots.shape
        shape = (count, len(caps), len(self._memory_bytes))
        devices = np.empty((count, len(caps), num_shards), dtype=np.int64)
        score, units = np.zeros(shape), np.zeros(shape, dtype=np.int64)
        state = np.zeros((count, len(caps), 2), dtype=np.bool_)
        place_greedily(
            np.ascontiguousarray(shards[..., 0]), np.ascontiguousarray(shards[..., 1]), slots, int(slots.max()) + 1,
            caps, self._memory_bytes, self._catalog.first, self._catalog.size_bytes, self._catalog.vectors,
            self._head.bias, self._head.weight, -self._head.offset, devices, score, units, state,
        )  # fmt: skip
        compute_ms = self._head.finish(score) * (units > 0)
        return Placements(shards, devices, compute_ms, units, state[..., 0], state[..., 1])


class _PlainPlacer:
    """One shard after the other through the model, for models that are not a sum over tables."""

    def __init__(self, task: Task, model: ComputeModel, catalog: Catalog) -> None:
        self._task = task
        self._model = model
        self._catalog = catalog

    def place(self, layouts: Sequence[Layout], caps: IntArray) -> Placements:
        """One layout and cap after the other."""
        shards = _in_order(layouts, self._catalog)
        return _joined([_joined([self._place(one, int(cap)) for cap in caps], axis=1) for one in shards])

    def _place(self, shards: IntArray, cap: int) -> Placements:
        """One layout, (S, 2), under one cap."""
        num_devices = self._task.topology.num_devices
        held: list[dict[int, int]] = [{} for _ in range(num_devices)]
        devices = np.full((1, 1, len(shards)), -1, dtype=np.int64)
        alive = True
        for s, (table, width) in enumerate(shards.tolist()):
            options = [(d, after) for d in range(num_devices) if self._fits(after := _with(held[d], table, width), cap)]
            if not options:
                alive = False
                break
            costs = self._model.predict([self._tables(after) for _, after in options], self._task.batch_size)
            device, after = options[int(np.argmin(costs))]
            held[device], devices[0, 0, s] = after, device
        compute_ms = self._model.predict([self._tables(content) for content in held], self._task.batch_size)
        units = np.array([[[sum(content.values()) for content in held]]], dtype=np.int64)
        flags = np.array([[alive]]), np.array([[False]])
        return Placements(shards[None], devices, compute_ms[None, None], units, *flags)

    def _fits(self, content: dict[int, int], cap: int) -> bool:
        entries = [self._catalog.first[table] + width for table, width in content.items()]
        size = int(self._catalog.size_bytes[entries].sum())
        return sum(content.values()) <= cap and size <= self._task.topology.memory_bytes

    def _tables(self, content: dict[int, int]) -> list[Table]:
        return [self._task.tables[table].with_dim(width * DIM_MULTIPLE) for table, width in content.items()]


def _with(content: dict[int, int], table: int, width: int) -> dict[int, int]:
    return content | {table: content.get(table, 0) + width}


def _joined(parts: list[Placements], axis: int = 0) -> Placements:
    """Placements of several groups of layouts (axis 0) or caps (axis 1) together."""
    arrays = {
        field.name: np.concatenate([getattr(part, field.name) for part in parts], axis=axis)
        for field in fields(Placements)
        if not (axis == 1 and field.name == "shards")
    }
    return Placements(**({"shards": parts[0].shards} | arrays))
