"""What devices would compute, and plans cost, if tables lay otherwise: asked many times at once, no plan is built."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from neuroshard.cost.cost import Cost
from neuroshard.cost.loads import Loads, LoadSets, Traffic, calls_of
from neuroshard.layouts import COLUMNS, Layout, given_bytes
from neuroshard.models import ComputeModel, SumModel
from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import FloatArray, IntArray
from neuroshard.plumbing.grouping import grouped
from neuroshard.plumbing.schema import MAX_SHARD_DIM
from neuroshard.words.form import CALLS
from neuroshard.words.placement import Placement, Shard, Tier

_MOST_NUMBERS = 1 << 21  # devices x collectives x variants of a plan that are costed in one call: some tens of MB
_MOST_DEVICES = 16  # that a table in rows or copies is tried on


class Change(NamedTuple):
    """A device that holds `dim` columns of a table, by its index, instead of what it holds of it now; 0 for none.

    What it holds now may be columns, a block of rows or a copy.
    """

    table: int
    device: int
    dim: int


def changed_compute_ms(plan: Plan, changes: Sequence[Change], model: ComputeModel) -> FloatArray:
    """Predict the compute cost of each change's device after that change alone, (n,) ms."""
    if not changes:
        return np.zeros(0)
    return _of_sums(plan, changes, model) if isinstance(model, SumModel) else _of_sets(plan, changes, model)


def _of_sets(plan: Plan, changes: Sequence[Change], model: ComputeModel) -> FloatArray:
    """Predict costs after each change, (n,) ms: every changed device's loads are put together anew."""
    placed, (rows, added) = plan.device_loads, _added(plan, changes)
    loads = LoadSets.joined([LoadSets.alone(placed.loads), LoadSets.alone(added)]).loads
    _, device, _ = np.array(changes, dtype=np.int64).T
    here, held = np.nonzero(device[:, None] == placed.owners)
    stays = held != _gone(plan, changes)[here]
    numbers = np.append(held[stays], np.arange(len(placed.loads), len(loads)))
    return model.device_ms(LoadSets.grouped(loads.take(numbers), np.append(here[stays], rows), len(changes)))


def _of_sums(plan: Plan, changes: Sequence[Change], model: SumModel) -> FloatArray:
    """Add up all kernel calls after each change, (n,) ms; those that there is nothing for cost nothing.

    A device's vectors are summed in 64 bits, less that of what it holds of the table, plus that of what it would hold.
    """
    placed, (rows, added), gone = plan.device_loads, _added(plan, changes), _gone(plan, changes)
    _, device, _ = np.array(changes, dtype=np.int64).T
    cost, had = np.zeros(len(changes)), np.flatnonzero(gone >= 0)
    kernels = np.unique(np.append(placed.loads.kernel, added.kernel))
    for kernel, call in zip(kernels, calls_of(kernels), strict=True):
        its = model.of_call(CALLS[call])
        held, new = (_embedded(loads, kernel, its) for loads in (placed.loads, added))
        sums = np.zeros((len(placed), held.shape[1]))
        np.add.at(sums, placed.owners, held)
        after = sums[device]
        after[had] -= held[gone[had]]
        after[rows] += new
        cost += its.head(after[:, :-1].astype(np.float32)) * (after[:, -1] > 0)
    return cost


def _embedded(loads: Loads, kernel: int, model: SumModel) -> FloatArray:
    """Embed n loads of a kernel call, and count them, (n, H + 1); those of others are zeros."""
    its, vectors = np.flatnonzero(loads.kernel == kernel), np.zeros((len(loads), len(model.head.bias) + 1))
    vectors[its, :-1], vectors[its, -1] = model.embed(loads.take(its)), 1
    return vectors


def _added(plan: Plan, changes: Sequence[Change]) -> tuple[IntArray, Loads]:
    """Find which changes leave columns on their devices, (m,), and those columns' loads."""
    table, _, dim = np.array(changes, dtype=np.int64).T
    rows = np.flatnonzero(dim)
    return rows, plan.table_loads.take(table[rows]).columns(dim[rows])


def _gone(plan: Plan, changes: Sequence[Change]) -> IntArray:
    """Find the number, among the plan's loads, of what each change takes away, (n,); -1 for nothing."""
    numbers = {(placed.shard.table, placed.device): number for number, placed in enumerate(plan.by_device)}
    return np.array([numbers.get((change.table, change.device), -1) for change in changes], dtype=np.int64)


@dataclass(frozen=True)
class SplitWorth:
    """The worth of a split: what it bought that a table lies on several devices.

    Attributes:
        table, dims: that does so, and the columns of each of its shards.
        whole_ms: plan cost if it were whole on that of its devices where it costs least; None if it fits on none. Of
            more than 16 devices with rows or copies, those are asked that compute least and have room.
        layout: of the table.
    """

    table: str
    dims: tuple[int, ...]
    whole_ms: float | None
    layout: Layout = COLUMNS


def split_worths(plan: Plan, cost: Cost, simulator: Simulator) -> tuple[SplitWorth, ...]:
    """Compute what each split is worth: first of tables that fit nowhere whole, then of those dearest whole."""
    groups = _spread_tables(plan)
    shards = _SpreadShards.of(plan, groups, simulator)
    tried = [
        shards.worth_trying(plan, cost, own, plan.layouts[table]) for table, own in zip(groups, shards.own, strict=True)
    ]
    variants = [(own, int(there)) for own, some in zip(shards.own, tried, strict=True) for there in some]
    costs = np.concatenate([np.zeros(0), *_costs(plan, cost, shards, variants, simulator)])
    ends = np.cumsum([len(some) for some in tried], dtype=np.int64)[:-1]
    worths = []
    for (table, numbers), ms in zip(groups.items(), np.split(costs, ends), strict=False):  # of none, one empty piece
        dims, best = tuple(plan.by_device[number].shard.dim for number in numbers), float(ms.min())
        whole_ms = best if np.isfinite(best) else None
        worths.append(SplitWorth(plan.task.tables[table].name, dims, whole_ms, plan.layouts[table]))
    return tuple(sorted(worths, key=lambda worth: (worth.whole_ms is not None, -(worth.whole_ms or 0), worth.table)))


def _spread_tables(plan: Plan) -> dict[int, list[int]]:
    """Group the plan's loads by table, where it has several shards: their numbers, in order of columns and rows.

    A table wider than a shard may be is left out: it can't be whole.
    """
    placed = plan.by_device
    in_order = sorted(range(len(placed)), key=lambda number: placed[number])
    groups = grouped(in_order, lambda number: placed[number].shard.table)
    may_be_whole = [table.dim <= MAX_SHARD_DIM for table in plan.task.tables]
    return {table: numbers for table, numbers in groups.items() if len(numbers) > 1 and may_be_whole[table]}


class _Demand(NamedTuple):
    """What n loads ask of their devices.

    Attributes:
        compute_ms: (n,) compute cost of the device without any of the load's table, or with the load instead.
        size_bytes: (n, C + 1) that the load puts into exchanges, and takes of memory.
        kernel: (n,) the number of that which takes it.
        counts: (n, C) what parts count.
    """

    compute_ms: FloatArray
    size_bytes: FloatArray
    kernel: IntArray
    counts: FloatArray

    @classmethod
    def of(cls, plan: Plan, loads: Loads, compute_ms: FloatArray, kernels: IntArray, simulator: Simulator) -> "_Demand":
        """Count for each load; `kernels` (G,) are what numbers stand for."""
        given, counts = given_bytes(loads, plan.task.topology.num_devices), simulator.counts_of(LoadSets.alone(loads))
        size_bytes = np.column_stack([given, plan.task.memory.device_bytes(loads)])
        return cls(compute_ms, size_bytes, np.searchsorted(kernels, loads.kernel), counts)


@dataclass(frozen=True, eq=False)
class _SpreadShards:
    """The n shards of all tables that lie on several devices.

    Attributes:
        number: (n,) of the shard's placement in the plan, as `Plan.by_device` orders them.
        own: (number of tables,) which shards are each table's.
        device: (n,) of the shard.
        shard, whole: (n,) what it asks of the device, and what its table does, whole.
        uses, call: (G,) the number of the plan's loads that each kernel takes, and which of `CALLS` it is.
    """

    number: IntArray
    own: tuple[IntArray, ...]
    device: IntArray
    shard: _Demand
    whole: _Demand
    uses: IntArray
    call: IntArray

    @classmethod
    def of(cls, plan: Plan, groups: dict[int, list[int]], simulator: Simulator) -> "_SpreadShards":
        """Gather the shards of the tables in `groups`, a table's shards each, and compute the devices' costs."""
        numbers = np.array([number for some in groups.values() for number in some], dtype=np.int64)
        placed = [plan.by_device[number] for number in numbers]
        table = np.array([one.shard.table for one in placed], dtype=np.int64)
        gone = [Change(one.shard.table, one.device, 0) for one in placed]
        full = [change._replace(dim=plan.task.tables[change.table].dim) for change in gone]
        without_ms, whole_ms = np.split(changed_compute_ms(plan, [*gone, *full], simulator.models.compute), 2)
        ends = np.cumsum([len(some) for some in groups.values()], dtype=np.int64)
        loads, whole = plan.device_loads.loads.take(numbers), plan.table_loads.take(table)
        every = plan.device_loads.loads.kernel
        kernels = np.unique([*every, *whole.kernel])
        return cls(
            numbers,
            tuple(np.split(np.arange(len(placed)), ends)[:-1]),
            np.array([one.device for one in placed], dtype=np.int64),
            _Demand.of(plan, loads, without_ms, kernels, simulator),
            _Demand.of(plan, whole, whole_ms, kernels, simulator),
            np.bincount(np.searchsorted(kernels, every), minlength=len(kernels)),
            calls_of(kernels),
        )

    def worth_trying(self, plan: Plan, cost: Cost, own: IntArray, layout: Layout) -> IntArray:
        """Choose those of a table's shards on whose devices it is tried whole."""
        if layout.free or len(own) <= _MOST_DEVICES:
            return own
        there, caps = self.device[own], np.array(plan.task.shard_memory)
        after = np.array(plan.device_bytes)[there] - self.shard.size_bytes[own, -1] + self.whole.size_bytes[own, -1]
        return own[np.lexsort((cost.compute[there], after > caps[there]))[:_MOST_DEVICES]]


def _costs(
    plan: Plan, cost: Cost, shards: _SpreadShards, variants: Sequence[tuple[IntArray, int]], simulator: Simulator
) -> Iterator[FloatArray]:
    """Yield the plan cost of each variant, (n,) ms, some at a time; infinite where it doesn't fit in memory.

    In a variant a table, by its shards, is whole on the device of one of them.
    """
    asked_now = np.column_stack([plan.traffic.size_bytes[0], plan.device_bytes])
    step, called = max(1, _MOST_NUMBERS // asked_now.size), simulator.called(plan.device_loads, len(asked_now))
    for start in range(0, len(variants), step):
        some = variants[start : start + step]
        compute, asked = np.tile(cost.compute, (len(some), 1)), np.tile(asked_now, (len(some), 1, 1))
        counts, uses = np.tile(called.counts, (len(some), 1, 1)), np.tile(shards.uses, (len(some), 1))
        for row, (own, there) in enumerate(some):
            devices, on, shard, whole = shards.device[own], shards.device[there], shards.shard, shards.whole
            compute[row, devices] = shard.compute_ms[own]
            compute[row, on] = whole.compute_ms[there]
            asked[row, devices] -= shard.size_bytes[own]
            asked[row, on] += whole.size_bytes[there]
            counts[row, devices] -= shard.counts[own]
            counts[row, on] += whole.counts[there]
            np.subtract.at(uses[row], shard.kernel[own], 1)
            uses[row, whole.kernel[there]] += 1
        traffic = Traffic(asked[..., :-1], np.full(len(some), plan.task.batch_size), plan.traffic.host_size)
        does = called._replace(kernels=(uses > 0) @ np.eye(len(CALLS))[shards.call], counts=counts)
        total_ms = simulator.step(does, traffic, compute).device_ms.max(axis=1)
        fits = (asked[..., -1] <= plan.task.shard_memory).all(axis=1)
        if plan.task.memory.shares_caches and any(home.tier is Tier.CACHED for home in plan.homes):
            fits = np.array(
                [_with_whole(plan, shards.number[own], int(shards.device[there])).fits for own, there in some]
            )
        yield np.where(fits, total_ms, np.inf)


def _with_whole(plan: Plan, numbers: IntArray, device: int) -> Plan:
    """Make the plan with a table, by the numbers of its shards, whole on a device."""
    gone = set(numbers.tolist())
    kept = (placed for number, placed in enumerate(plan.by_device) if number not in gone)
    first = plan.by_device[int(numbers[0])]
    table = plan.task.tables[first.shard.table]
    whole = Placement(Shard(first.shard.table, 0, table.dim, 0, table.rows), device, first.home)
    return Plan(plan.task, (*kept, whole))
