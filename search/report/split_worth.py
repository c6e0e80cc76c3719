"""What the splits of a plan bought: its cost if one split table were whole again."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from neuroshard.arrays import FloatArray, IntArray
from neuroshard.cost import Cost
from neuroshard.loads import Loads
from neuroshard.plans.plan import Plan
from neuroshard.simulator import Simulator
from neuroshard.stages.search.report.what_if import Change, changed_compute_ms
from neuroshard.traffic import Traffic

_MOST_NUMBERS = 1 << 21  # devices x variants of a plan that are costed in one call: some tens of MB


@dataclass(frozen=True)
class SplitWorth:
    """What a split bought.

    Attributes:
        table, dims: that is split, and its shards.
        whole_ms: plan cost if it were whole on that of its devices where it costs least; None if it fits on none.
    """

    table: str
    dims: tuple[int, ...]
    whole_ms: float | None


def split_worths(plan: Plan, cost: Cost, simulator: Simulator) -> tuple[SplitWorth, ...]:
    """Of every split table: first those that fit nowhere whole, then those that would cost most whole."""
    groups = _split_shards(plan)
    costs = _Variants.of(plan, groups, simulator).costs(plan, cost, simulator)
    ends = np.cumsum([len(group) for group in groups], dtype=np.int64)[:-1]
    found = []
    for group, ms in zip(groups, np.split(costs, ends), strict=False):  # of no groups, one empty part
        best = float(ms.min())
        dims = tuple(shard.dim for shard in group)
        found.append(SplitWorth(plan.task.tables[group[0].table].name, dims, best if np.isfinite(best) else None))
    return tuple(sorted(found, key=lambda worth: (worth.whole_ms is not None, -(worth.whole_ms or 0), worth.table)))


def _split_shards(plan: Plan) -> list[list[Change]]:
    """The shards of every split table, each as what its device holds."""
    groups: dict[int, list[Change]] = defaultdict(list)
    for placement in sorted(plan.placements):
        shard = placement.shard
        groups[shard.table].append(Change(shard.table, placement.device, shard.dim))
    return [group for group in groups.values() if len(group) > 1]


@dataclass(frozen=True, eq=False)
class _Variants:
    """The n shards of all split tables; in variant i the table of shard i is whole on that shard's device.

    Attributes:
        own: (n,) the shards of the same table, by their numbers.
        device, dim, whole_dim: (n,) of the shard, and of its table.
        size_bytes, whole_bytes: (n,) what the shard takes, and what the table would.
        without_ms, whole_ms: (n,) compute cost of the device without the table, and with all of it.
    """

    own: tuple[IntArray, ...]
    device: IntArray
    dim: IntArray
    whole_dim: IntArray
    size_bytes: IntArray
    whole_bytes: IntArray
    without_ms: FloatArray
    whole_ms: FloatArray

    @classmethod
    def of(cls, plan: Plan, groups: Sequence[Sequence[Change]], simulator: Simulator) -> "_Variants":
        task, shards = plan.task, [shard for group in groups for shard in group]
        table, device, dim = np.array(shards, dtype=np.int64).reshape(len(shards), 3).T
        loads = Loads.of(task.tables, task.batch_size).take(table)
        gone = [shard._replace(dim=0) for shard in shards]
        whole = [shard._replace(dim=task.tables[shard.table].dim) for shard in shards]
        without_ms, whole_ms = np.split(changed_compute_ms(plan, [*gone, *whole], simulator.models.compute), 2)
        numbers = np.split(np.arange(len(shards)), np.cumsum([len(group) for group in groups], dtype=np.int64))
        return cls(
            tuple(own for group, own in zip(groups, numbers[:-1], strict=True) for _ in group),
            device,
            dim,
            loads.dim.astype(np.int64),
            task.memory.device_bytes(loads.columns(dim)),
            task.memory.device_bytes(loads),
            without_ms,
            whole_ms,
        )

    def costs(self, plan: Plan, cost: Cost, simulator: Simulator) -> FloatArray:
        """(n,) plan cost, ms, of each variant of a plan of that cost; infinite where it doesn't fit in memory."""
        step = max(1, _MOST_NUMBERS // len(cost.compute))
        pieces = [range(start, min(start + step, len(self.own))) for start in range(0, len(self.own), step)]
        return np.concatenate([np.zeros(0), *(self._costs(plan, cost, piece, simulator) for piece in pieces)])

    def _costs(self, plan: Plan, cost: Cost, variants: range, simulator: Simulator) -> FloatArray:
        before = (cost.compute, np.array(plan.device_dims), np.array(plan.device_bytes))
        compute, dims, size = (np.tile(values, (len(variants), 1)) for values in before)
        for row, variant in enumerate(variants):
            own, there = self.own[variant], self.device[variant]
            devices = self.device[own]
            compute[row, devices] = self.without_ms[own]
            dims[row, devices] -= self.dim[own]
            size[row, devices] -= self.size_bytes[own]
            compute[row, there] = self.whole_ms[variant]
            dims[row, there] += self.whole_dim[variant]
            size[row, there] += self.whole_bytes[variant]
        forward, backward = simulator.communication(Traffic.of_columns(dims, plan.task.batch_size), compute)
        fits = (size <= np.array(plan.task.shard_memory)).all(axis=1)
        return np.where(fits, (compute + forward + backward).max(axis=1), np.inf)
