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
    count_steps,
    estimate_steps,
)
from neuroshard.stages.search.space.catalog import Catalog
from neuroshard.stages.search.space.feasibility import device_memory
from neuroshard.stages.search.space.sizes import Sizes
from neuroshard.traffic import Traffic

_COSTED_STEPS = 128  # of all steps, so many that look best are costed with the communication models
_LEAST_GAIN = 1e-6  # relative
_NO_LIMIT = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, eq=False)
class State:
    """A plan in the making, with what the cost models see of it.

    Attributes:
        held: (I, D) units of 4 columns of each item on each device.
        sums: (D, H) of the shards' vectors, the head's bias included.
        size_bytes, units: (D,).
        score: (D,) the head's weighted sum; 0 for an empty device.
        compute_ms, total_ms: (D,) predicted.
        ready_ms: (D,) when each may start forward communication; all wait for the last.
        moved_bytes: that have to be moved to get there.
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
        """The plan's predicted cost."""
        return float(self.total_ms.max())


@dataclass(frozen=True, eq=False)
class Moves:
    """What may be moved: from `before` (I, D), units that are there already, `most_bytes` in all; None for any."""

    before: IntArray
    most_bytes: int | None

    @classmethod
    def from_nothing(cls, catalog: Catalog) -> "Moves":
        """Nothing is there yet, everything may be moved."""
        return cls(np.zeros(catalog.items.limits.allowed.shape, dtype=np.int64), None)

    def left(self, moved_bytes: int) -> int:
        """Bytes that may still be moved after so many."""
        return _NO_LIMIT if self.most_bytes is None else min(self.most_bytes, _NO_LIMIT) - moved_bytes


class LocalSearch:
    """Improves plans of one task, under models of the papers' form."""

    def __init__(self, catalog: Catalog, simulator: Simulator, model: SumModel, moves: Moves | None = None) -> None:
        self._catalog = catalog
        self._head = model.head
        self._simulator = simulator
        self._memory_bytes = device_memory(catalog.items.task)
        self._moves = moves or Moves.from_nothing(catalog)
        self._unit_score = self._ms_per_unit() / self._head.scale_ms
        self._looked = 0

    @property
    def looked(self) -> int:
        """Plans looked at so far; one that was costed by the communication models counts as two for every device."""
        return self._looked

    def state(self, held: IntArray) -> State:
        """The plan `held` (I, D), costed."""
        num_devices = held.shape[1]
        nothing = np.zeros(num_devices, dtype=np.int64)
        sums = np.empty((num_devices, self._catalog.vectors.shape[1]), dtype=np.float32)
        moved_bytes = moved(self._catalog, self._moves.before, held)
        return self._costed(held, range(num_devices), sums, nothing, nothing.copy(), moved_bytes)

    def _stepped(self, state: State, step: IntArray) -> State:
        """The plan after one step (5,): two devices change."""
        held, ends = _applied(state.held, step), step[[SOURCE, TARGET]]
        before = self._moves.before[:, ends]
        moved_bytes = state.moved_bytes + (
            moved(self._catalog, before, held[:, ends]) - moved(self._catalog, before, state.held[:, ends])
        )
        copies = state.sums.copy(), state.size_bytes.copy(), state.units.copy()
        return self._costed(held, ends.tolist(), *copies, moved_bytes)

    def _costed(
        self,
        held: IntArray,
        devices: Iterable[int],
        sums: Float32Array,
        size: IntArray,
        units: IntArray,
        moved_bytes: int,
    ) -> State:
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
        return State(held, sums, size, units, score, compute_ms, ready_ms + forward[0], ready_ms, moved_bytes)

    def best_step(self, state: State) -> State | None:
        """The cheapest plan one step away from the devices that make this one expensive; None if none is cheaper."""
        loads = (state.compute_ms, state.ready_ms, state.total_ms, state.units)
        sources = {int(np.argmax(values)) for values in loads}
        found = [self._steps_from(state, source) for source in sorted(sources)]
        steps = np.concatenate([steps for steps, _ in found])
        estimate = np.concatenate([estimate for _, estimate in found])
        if not len(steps):
            return None
        kept = min(_COSTED_STEPS, len(steps))
        steps = steps[np.sort(np.argpartition(estimate, kept - 1)[:kept])]
        total_ms = self._totals(state, steps)
        best = int(np.argmin(total_ms))
        if total_ms[best] >= state.cost_ms * (1 - _LEAST_GAIN):
            return None
        return self._stepped(state, steps[best])

    def random_step(self, state: State, rng: np.random.Generator) -> State:
        """A random step that is allowed, from a random device; the same state if there is none."""
        steps, _ = self._steps_from(state, int(rng.integers(len(state.units))))
        return state if not len(steps) else self._stepped(state, steps[rng.integers(len(steps))])

    def _steps_from(self, state: State, source: int) -> tuple[IntArray, FloatArray]:
        """(K, 5) every step from `source` that is allowed, and (K,) what each leads to, estimated."""
        most = count_steps(state.held, source)
        steps, estimate = np.empty((most, 5), dtype=np.int64), np.empty(most)
        found = estimate_steps(
            state.held, source, state.sums, state.size_bytes, state.units, state.score, self._memory_bytes,
            self._catalog.items.limits, self._moves.before, self._moves.left(state.moved_bytes),
            self._catalog.first, self._catalog.size_bytes, self._catalog.state_bytes, self._catalog.vectors,
            self._head.weight, self._unit_score, steps, estimate,
        )  # fmt: skip
        self._looked += found
        return steps[:found], estimate[:found]

    def _totals(self, state: State, steps: IntArray) -> FloatArray:
        """(K,) costs of the plans after the steps (K, 5)."""
        row = np.arange(len(steps))
        self._looked += 2 * steps.shape[0] * len(state.units)
        compute_ms = np.tile(state.compute_ms, (len(steps), 1))
        units = np.tile(state.units, (len(steps), 1))
        for device, sign in ((steps[:, SOURCE], -1), (steps[:, TARGET], 1)):
            sums, after = self._after(state, steps, device, sign)
            units[row, device] = after
            compute_ms[row, device] = self._compute(sums, after)[1]
        forward, backward = self._communication(compute_ms, units)
        total: FloatArray = (compute_ms + backward + forward).max(axis=1)
        return total

    def _after(self, state: State, steps: IntArray, device: IntArray, sign: int) -> tuple[Float32Array, IntArray]:
        """(K, H) sums and (K,) units of one end of each step after it; sign 1 where the moved item arrives."""
        first, held, vectors = self._catalog.first, state.held, self._catalog.vectors
        item, back = steps[:, ITEM_OUT], np.maximum(steps[:, ITEM_BACK], 0)
        moved = sign * steps[:, UNITS_OUT]
        returned = -sign * np.where(steps[:, ITEM_BACK] >= 0, held[back, steps[:, TARGET]], 0)
        entry, entry_back = first[item] + held[item, device], first[back] + held[back, device]
        change = vectors[entry + moved] - vectors[entry] + vectors[entry_back + returned] - vectors[entry_back]
        return state.sums[device] + change, state.units[device] + moved + returned

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


def moved(sizes: Sizes, before: IntArray, held: IntArray) -> int:
    """Bytes of weights and optimizer state of columns that a device holds in `held` (I, D) but not in `before`."""
    first = sizes.first[:, None]
    more = sizes.state_bytes[first + held] - sizes.state_bytes[first + before]
    return int(np.maximum(more, 0).sum())


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
