"""Local search: a plan is a matrix of widths; a step moves columns of an item to another device, or swaps two shards.

Moving all of a shard is a move, half of it a split, onto a device that holds the table already a merge: one kind of
step covers them all. Steps start at the devices that make the plan expensive.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from neuroshard.arrays import Float32Array, FloatArray, IntArray
from neuroshard.models import SumModel
from neuroshard.schema import DIM_MULTIPLE
from neuroshard.simulator import Simulator
from neuroshard.stages.search.kernels.steps import (
    ITEM_BACK,
    ITEM_OUT,
    SOURCE,
    TARGET,
    UNITS_OUT,
    AllShards,
    Bounds,
    Contents,
    Steps,
    Weights,
    count_steps,
    estimate_steps,
)
from neuroshard.stages.search.space.catalog import Catalog
from neuroshard.stages.search.space.feasibility import device_memory
from neuroshard.stages.search.space.moved import moved_bytes
from neuroshard.traffic import Traffic

_COSTED_STEPS = 128  # of all steps, so many that look best are costed with the communication models
_LEAST_GAIN = 1e-6  # relative
_NO_LIMIT = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, eq=False)
class CostedPlan:
    """A plan that local search looks at, with what the cost models see of it.

    Attributes:
        held: (I, D) units of 4 columns of each item on each device.
        sums: (D, H) of the shards' vectors, the head's bias included.
        size_bytes, units: (D,).
        score: (D,) the head's weighted sum; 0 for an empty device.
        compute_ms, total_ms: (D,) predicted.
        ready_ms: (D,) when each may start forward communication; all wait for the last.
        moved_bytes: of weights and optimizer state, that have to be moved to get there.
    """

    held: IntArray
    sums: Float32Array
    size_bytes: IntArray
    units: IntArray
    score: FloatArray
    compute_ms: FloatArray
    total_ms: FloatArray
    ready_ms: FloatArray
    moved_bytes: int

    @property
    def cost_ms(self) -> float:
        """The plan's predicted cost, ms."""
        return float(self.total_ms.max())

    @property
    def contents(self) -> Contents:
        """What compiled functions ask of it."""
        return Contents(self.held, self.sums, self.size_bytes, self.units, self.score)


@dataclass(frozen=True, eq=False)
class MoveLimit:
    """What may be moved: from `before` (I, D), units that are there already, `most_bytes` in all; None for any.

    Bytes are counted item by item, which is never less than table by table.
    """

    before: IntArray
    most_bytes: int | None

    @classmethod
    def none(cls, catalog: Catalog) -> "MoveLimit":
        """Nothing is there yet, everything may be moved."""
        return cls(np.zeros(catalog.items.limits.allowed.shape, dtype=np.int64), None)

    def left(self, moved: int) -> int:
        """Bytes that may still be moved after so many."""
        return _NO_LIMIT if self.most_bytes is None else min(self.most_bytes, _NO_LIMIT) - moved


class LocalSearch:
    """Improves plans of one task, under models of the papers' form."""

    def __init__(self, catalog: Catalog, simulator: Simulator, model: SumModel, limit: MoveLimit | None = None) -> None:
        self._catalog = catalog
        self._head = model.head
        self._simulator = simulator
        self._memory_bytes = device_memory(catalog.items.task)
        self._limit = limit or MoveLimit.none(catalog)
        self._shards = AllShards(
            catalog.items.limits, catalog.first, catalog.size_bytes, catalog.state_bytes, catalog.vectors
        )
        self._weights = Weights(self._head.weight, self._ms_per_unit() / self._head.scale_ms)
        self._looked = 0

    @property
    def looked(self) -> int:
        """Plans looked at so far; one that was costed by the communication models counts as two for every device."""
        return self._looked

    def costed(self, held: IntArray) -> CostedPlan:
        """The plan `held` (I, D), costed."""
        num_devices = held.shape[1]
        nothing = np.zeros(num_devices, dtype=np.int64)
        sums = np.empty((num_devices, self._catalog.vectors.shape[1]), dtype=np.float32)
        return self._filled(held, range(num_devices), sums, nothing, nothing.copy())

    def _stepped(self, plan: CostedPlan, step: IntArray) -> CostedPlan:
        """The plan after one step (5,): two devices change."""
        ends = step[[SOURCE, TARGET]].tolist()
        copies = plan.sums.copy(), plan.size_bytes.copy(), plan.units.copy()
        return self._filled(_applied(plan.held, step), ends, *copies)

    def _filled(
        self, held: IntArray, devices: Iterable[int], sums: Float32Array, size: IntArray, units: IntArray
    ) -> CostedPlan:
        """The plan `held`, of which `sums`, `size` and `units` are yet to be filled in for some `devices`."""
        for device in devices:
            items = np.flatnonzero(held[:, device])
            entries = self._catalog.first[items] + held[items, device]
            sums[device] = self._catalog.vectors[entries].sum(axis=0) + self._head.bias
            size[device] = self._catalog.size_bytes[entries].sum()
            units[device] = held[items, device].sum()
        score, compute_ms = self._compute(sums, units)
        forward, backward = self._communication(compute_ms[None], units[None])
        ready_ms = compute_ms + backward[0]
        moved = int(moved_bytes(self._catalog.state_bytes, self._catalog.first, self._limit.before, held).sum())
        return CostedPlan(held, sums, size, units, score, compute_ms, ready_ms + forward[0], ready_ms, moved)

    def best_step(self, plan: CostedPlan) -> CostedPlan | None:
        """The cheapest plan one step away from the devices that make this one expensive; None if none is cheaper."""
        loads = (plan.compute_ms, plan.ready_ms, plan.total_ms, plan.units)
        sources = {int(np.argmax(values)) for values in loads}
        found = [self._steps_from(plan, source) for source in sorted(sources)]
        steps = np.concatenate([steps for steps, _ in found])
        estimate = np.concatenate([estimate for _, estimate in found])
        if not len(steps):
            return None
        kept = min(_COSTED_STEPS, len(steps))
        steps = steps[np.sort(np.argpartition(estimate, kept - 1)[:kept])]
        total_ms = self._totals(plan, steps)
        best = int(np.argmin(total_ms))
        if total_ms[best] >= plan.cost_ms * (1 - _LEAST_GAIN):
            return None
        return self._stepped(plan, steps[best])

    def random_step(self, plan: CostedPlan, rng: np.random.Generator) -> CostedPlan:
        """A random step that is allowed, from a random device; the same plan if there is none."""
        steps, _ = self._steps_from(plan, int(rng.integers(len(plan.units))))
        return plan if not len(steps) else self._stepped(plan, steps[rng.integers(len(steps))])

    def _steps_from(self, plan: CostedPlan, source: int) -> tuple[IntArray, FloatArray]:
        """(K, 5) every step from `source` that is allowed, and (K,) what each leads to, estimated."""
        most = count_steps(plan.held, source)
        found = Steps(np.empty((most, 5), dtype=np.int64), np.empty(most))
        bounds = Bounds(self._memory_bytes, self._limit.before, self._limit.left(plan.moved_bytes))
        count = estimate_steps(plan.contents, source, self._shards, bounds, self._weights, found)
        self._looked += count
        return found.steps[:count], found.estimate[:count]

    def _totals(self, plan: CostedPlan, steps: IntArray) -> FloatArray:
        """(K,) costs of the plans after the steps (K, 5)."""
        row = np.arange(len(steps))
        self._looked += 2 * steps.shape[0] * len(plan.units)
        compute_ms = np.tile(plan.compute_ms, (len(steps), 1))
        units = np.tile(plan.units, (len(steps), 1))
        for device, sign in ((steps[:, SOURCE], -1), (steps[:, TARGET], 1)):
            sums, after = self._after(plan, steps, device, sign)
            units[row, device] = after
            compute_ms[row, device] = self._compute(sums, after)[1]
        forward, backward = self._communication(compute_ms, units)
        total: FloatArray = (compute_ms + backward + forward).max(axis=1)
        return total

    def _after(self, plan: CostedPlan, steps: IntArray, device: IntArray, sign: int) -> tuple[Float32Array, IntArray]:
        """(K, H) sums and (K,) units of one end of each step after it; sign 1 where the moved item arrives."""
        first, held, vectors = self._catalog.first, plan.held, self._catalog.vectors
        item, back = steps[:, ITEM_OUT], np.maximum(steps[:, ITEM_BACK], 0)
        moved = sign * steps[:, UNITS_OUT]
        returned = -sign * np.where(steps[:, ITEM_BACK] >= 0, held[back, steps[:, TARGET]], 0)
        entry, entry_back = first[item] + held[item, device], first[back] + held[back, device]
        change = vectors[entry + moved] - vectors[entry] + vectors[entry_back + returned] - vectors[entry_back]
        return plan.sums[device] + change, plan.units[device] + moved + returned

    def _compute(self, sums: Float32Array, units: IntArray) -> tuple[FloatArray, FloatArray]:
        """(...,) scores and ms of devices with sums (..., H), bias included."""
        score = (np.maximum(sums, 0) @ self._head.weight).astype(np.float64)
        return score * (units > 0), self._head.finish(score) * (units > 0)

    def _communication(self, compute_ms: FloatArray, units: IntArray) -> tuple[FloatArray, FloatArray]:
        """(n, D) forward and backward, ms, of devices with such compute costs and units (n, D)."""
        traffic = Traffic.of_columns(units * DIM_MULTIPLE, self._catalog.items.task.batch_size)
        return self._simulator.communication(traffic, compute_ms)

    def _ms_per_unit(self) -> float:
        """Roughly how much communication one more unit on the widest device costs; not below 0."""
        devices = len(self._memory_bytes)
        mean = max(int(self._catalog.full_width.sum()) // devices, 4)
        uneven = np.full((2, devices), mean)
        uneven[1, 0] += mean // 4
        forward, backward = self._communication(np.zeros(uneven.shape), uneven)
        costs = (forward + backward).max(axis=1)
        return max(0.0, float(costs[1] - costs[0]) / (mean // 4))


def _applied(held: IntArray, step: IntArray) -> IntArray:
    """`held` (I, D) after one step (5,)."""
    source, target, out, units, back = step.tolist()
    after = held.copy()
    after[out, source] -= units
    after[out, target] += units
    if back >= 0:
        after[back, source] += held[back, target]
        after[back, target] = 0
    return after
