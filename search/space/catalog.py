"""What the search needs to know of every possible shard of a task, as arrays; and layouts, made of such shards.

A layout is the (S,) catalog entries, ascending, of the shards that a task is cut into, column-wise, before they are
placed; P layouts of as many shards are (P, S).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from neuroshard.cost.cost import Called, Cost
from neuroshard.cost.loads import Traffic
from neuroshard.layouts import given_bytes
from neuroshard.models import SumModel
from neuroshard.models.composed import columns_model
from neuroshard.models.simulator import Simulator
from neuroshard.plumbing.arrays import BoolArray, Float32Array, FloatArray, IntArray
from neuroshard.plumbing.schema import DIM_MULTIPLE, MAX_SHARD_DIM
from neuroshard.stages.search.space.base import Base
from neuroshard.stages.search.space.items import Items
from neuroshard.stages.search.space.packing import check_total
from neuroshard.stages.search.space.sizes import Sizes, device_loads, entry_loads

_ROUNDING = 1e-5  # of single precision
_NOT_OF_ENTRIES = ("items", "first", "full_width", "simulator", "model")  # all other fields are arrays of entries
_LEAST_MS = 1e-9  # of a device's share: models may say that nothing costs anything


@dataclass(frozen=True, eq=False)
class Catalog(Sizes):
    """The sizes of a task's shards, and what a compute model makes of them.

    Attributes:
        simulator: tells what exchanges cost.
        model: compute model of the devices that hold the column-wise tables (`columns_model`).
        vectors: (N, H) the model's vectors; zeros for empty shards.
        cost_ms: (N,) compute cost of the shard alone; 0 for empty shards.
        least_score: (N,) what a shard adds to the score of a device that holds nothing of its item, at least; minus
            infinity where nobody can say.
    """

    simulator: Simulator
    model: SumModel
    vectors: Float32Array
    cost_ms: FloatArray
    least_score: FloatArray

    @classmethod
    def checked(cls, base: Base, simulator: Simulator) -> "Catalog":
        """Check the models and the memory; then cost all shards of the tables that are to be placed column-wise.

        Raises:
            UserError: the models can't serve the task.
            InfeasibleError: some item, or all of them together, take more memory than there is.
        """
        simulator.models.check(base.task)
        sizes = Sizes.of(Items.of(base))
        check_total(sizes)
        return cls.costed(sizes, simulator, simulator.compute_for(base.task))

    @classmethod
    def costed(cls, sizes: Sizes, simulator: Simulator, model: SumModel) -> "Catalog":
        """Cost every shard, in one call of a compute model."""
        base = sizes.items.base
        model = columns_model(model, base.task.loads.take(base.in_columns))
        entry, shards = entry_loads(sizes.items, sizes.first)
        embedded = model.embed(shards)
        vectors = np.zeros((len(sizes.size_bytes), embedded.shape[1]), dtype=np.float32)
        np.add.at(vectors, entry, embedded)
        cost_ms, filled = np.zeros(len(vectors)), np.unique(entry)
        cost_ms[filled] = model.head(vectors[filled])
        return cls(
            sizes.items, sizes.first, sizes.full_width, sizes.size_bytes, sizes.state_bytes, sizes.given,
            simulator, model, vectors, cost_ms, _least_score(vectors, model),
        )  # fmt: skip

    def beside(self, base: Base) -> "Catalog":
        """Keep only the tables that are column-wise in `base`, whose other tables may differ; costs stay the same.

        Tables that are kept together or apart, or whose shards are pinned, must all be column-wise, or none.
        """
        items = self.items
        stays = np.isin([item.tables[0][0] for item in items.items], base.in_columns)
        full_width, entries = self.full_width[stays], stays[self.item]
        its = tuple(item for item, kept in zip(items.items, stays.tolist(), strict=True) if kept)
        arrays = [field.name for field in fields(self) if field.name not in _NOT_OF_ENTRIES]
        return replace(
            self,
            items=Items(base, its, items.limits.of(stays)),
            first=np.concatenate([[0], (full_width + 1).cumsum()[:-1]]),
            full_width=full_width,
            **{name: getattr(self, name)[entries] for name in arrays},
        )

    def step(self, compute_ms: FloatArray, units: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Compute (n, D) ms until each device is ready, and until it has ended, of n whole plans: `Base.step`."""
        return self.items.base.step(self.simulator, compute_ms, units)

    def costs(self, plans: Sequence[IntArray]) -> list[Cost]:
        """Cost some whole plans, `held` (I, D) each, as the simulator does."""
        task, base = self.items.task, self.items.base
        devices = task.topology.num_devices
        loads = device_loads(self.items, np.concatenate([held.T for held in plans]))
        called = self.simulator.called(loads, devices)
        given = given_bytes(loads.loads, devices)
        traffic = Traffic.of(loads, given, devices, task.batch_size, task.topology.fast_links)
        if self._base_called is None:
            return self.simulator.costs_of(called, traffic)
        size_bytes = traffic.size_bytes + base.given
        return self.simulator.costs_of(called.beside(self._base_called), replace(traffic, size_bytes=size_bytes))

    @cached_property
    def added(self) -> tuple[BoolArray, FloatArray]:
        """Entries of vectors that count in full on any device, (H,), and what they add to the score, (N,)."""
        return _added(self.vectors, self.model)

    @cached_property
    def _base_called(self) -> Called | None:
        """The kernel calls of the tables that are on the devices already."""
        loads = self.items.base.loads
        return None if loads is None else self.simulator.called(loads, len(loads))


def _added(vectors: Float32Array, model: SumModel) -> tuple[BoolArray, FloatArray]:
    """Return the entries of vectors (N, H) that count in full in any sum, (H,), and what they add to any score, (N,).

    They start at 0 or above, and never fall.
    """
    adding: BoolArray = (model.head.bias >= 0) & (model.head.weight > 0) & (vectors >= 0).all(axis=0)
    pull = (vectors * model.head.weight)[:, adding]
    return adding, pull.sum(axis=1, dtype=np.float64) * (1 - _ROUNDING)


def _least_score(vectors: Float32Array, model: SumModel) -> FloatArray:
    """Compute what each of some vectors (N, H) adds to a score at least, (N,); minus infinity where nobody can say.

    Where every number of every vector pulls a score up, none of a sum falls; those that are `_added` count.
    """
    if (vectors * model.head.weight < 0).any():
        return np.full(len(vectors), -np.inf)
    return _added(vectors, model)[1]


def fewest_shards(sizes: Sizes) -> IntArray:
    """Cut every item into as few shards as its limits and kernels allow, as evenly as it goes, (S,)."""
    parts = -(-sizes.full_width * DIM_MULTIPLE // MAX_SHARD_DIM)
    return _evenly_cut(sizes, np.clip(parts, sizes.items.limits.min_shards, _most_shards(sizes)))


def even_layout(catalog: Catalog, most: float) -> IntArray:
    """Cut items, as evenly as it goes, into as few shards as leave none above `most` of a device's even share, (S,).

    A shard's share is of all compute or of all that is given out, whichever is larger. Items that may not be split that
    far are split as far as they may.
    """
    limits, num_devices = catalog.items.limits, catalog.items.task.topology.num_devices
    cost_ms = max(catalog.cost_ms[catalog.whole].sum() / num_devices, _LEAST_MS)
    given, most_shards = catalog.total_given / num_devices, _most_shards(catalog)
    counts, growing = limits.min_shards.copy(), np.ones(catalog.num_items, dtype=np.bool_)
    while growing.any():
        widest = catalog.first - (-catalog.full_width // counts)  # entries
        share = np.maximum(catalog.cost_ms[widest] / cost_ms, catalog.given[widest] / given)
        growing = (counts < most_shards) & (share > most)
        counts[growing] += 1
    return _evenly_cut(catalog, counts)


def equal_shards(sizes: Sizes, count: int) -> IntArray:
    """Cut every item into `count` shards, as far as its limits allow, (S,)."""
    return _evenly_cut(sizes, np.clip(count, sizes.items.limits.min_shards, _most_shards(sizes)))


def _most_shards(sizes: Sizes) -> IntArray:
    """Count the shards that each item may be cut into, (I,)."""
    limits = sizes.items.limits
    most: IntArray = np.maximum(np.minimum(limits.max_shards, limits.allowed.sum(axis=1)), limits.min_shards)
    return most


def _evenly_cut(sizes: Sizes, counts: IntArray) -> IntArray:
    """Cut every item into `counts` (I,) shards whose widths differ by 1 at most, (S,)."""
    item = np.repeat(np.arange(sizes.num_items), counts)
    number = np.arange(len(item)) - np.repeat(counts.cumsum() - counts, counts)  # of the shard, in its item
    narrow, wider = np.divmod(sizes.full_width, counts)
    widths = narrow[item] + (number >= (counts - wider)[item])
    entries: IntArray = sizes.first[item] + widths
    return entries


def splittable(catalog: Catalog, layout: IntArray) -> IntArray:
    """Find a layout's different shards that can be cut further, (n,), ascending."""
    shards = np.unique(layout)
    item, limits = catalog.item[shards], catalog.items.limits
    count = np.bincount(catalog.item[layout], minlength=catalog.num_items)
    may: BoolArray = (shards - catalog.first[item] >= 2 * limits.min_width[item]) & (count < limits.max_shards)[item]
    return shards[may]


def one_split_each(catalog: Catalog, layout: IntArray, shards: IntArray) -> IntArray:
    """Cut one of a layout's `shards` (n,) in half, each in turn, (n, S + 1); odd widths as evenly as it goes."""
    first = catalog.first[catalog.item[shards]]
    half = (shards - first) // 2
    after = np.empty((len(shards), len(layout) + 1), dtype=np.int64)
    after[:, :-1] = layout
    after[np.arange(len(shards)), np.searchsorted(layout, shards)] = first + half
    after[:, -1] = shards - half
    after.sort(axis=1)
    return after
