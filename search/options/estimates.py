"""Estimates of the cost of a plan from the sharding type of each table alone, before any table is placed.

Row-wise and data-parallel tables cost every device the same. Column-wise tables are assumed to be spread evenly once
they are split finely enough; but no plan costs less than its most expensive shard, and finer splits cost more in total.
So several splits are estimated, and the cheapest counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from neuroshard.cost.loads import Loads, LoadSets, calls_of
from neuroshard.layouts import LAYOUTS, Layout, placed_loads, sent_bytes_of
from neuroshard.models.interface import ReluHead
from neuroshard.models.kernels import KernelModels
from neuroshard.models.simulator import Simulator
from neuroshard.plumbing.arrays import BoolArray, FloatArray, IntArray
from neuroshard.plumbing.schema import DIM_MULTIPLE
from neuroshard.plumbing.threads import in_threads, useful_threads
from neuroshard.stages.search.local.starts import even_splits
from neuroshard.stages.search.options.choices import Choices, TypeChoices, total_by_type
from neuroshard.stages.search.options.settings import SETTINGS
from neuroshard.stages.search.options.sharding_types import COLUMNS, known_calls
from neuroshard.stages.search.space.costed_space import CostedSpace
from neuroshard.stages.search.space.fixed_load import FixedLoad, device_memory
from neuroshard.tasks.task import Task
from neuroshard.words.collective import ELEMENT_BYTES, Collective
from neuroshard.words.form import CALLS, FORMS, Call
from neuroshard.words.placement import TIERS, Tier

_TOGETHER = 4096  # estimates made at once in a thread, at most; each call has a cost of its own

# Work of every device for B choices of sharding types, as `Simulator.shared_ms` and `waited_ms` take it: (B, K) kernels
# of each call, (B, C) counts of operations, and (B,) bytes of indices and lengths that the device receives.
StepCounts = tuple[FloatArray, FloatArray, FloatArray]


@dataclass(frozen=True, eq=False)
class ColumnSplits:
    """The costs of column-wise tables for Q ways to split the tables into shards. For each table and each way, the
    class has the compute cost of the most expensive shard, the columns that the widest shard sends for each sample, and
    the bytes of the largest shard.

    Attributes:
        vectors: (T, Q, H) vectors of the compute model, summed over the shards of a table.
        cost_ms: (T, Q) compute cost of the most expensive shard of a table.
        columns: (T, Q) columns that a sample gets from the widest shard of a table.
        size_bytes: (T, Q) bytes of the largest shard of a table.
        given: (T,) columns that a sample gets from the whole table.
        total_bytes: (T,) bytes of the whole table.
    """

    vectors: FloatArray
    cost_ms: FloatArray
    columns: FloatArray
    size_bytes: FloatArray
    given: FloatArray
    total_bytes: FloatArray

    @classmethod
    def of(cls, space: CostedSpace | None, num_tables: int, numbers: int) -> "ColumnSplits":
        """Return the costs of each of `num_tables` tables for each way to split the table into shards. The costs come
        from the shards in the search space `space`; all costs are 0 for tables that are not in `space`. `numbers` is
        the number of elements of the vector by which the compute model describes a shard.

        Tables that are kept together count as the first table of the group.
        """
        shape = (num_tables, len(SETTINGS.shard_shares))
        cuts = cls(np.zeros((*shape, numbers)), *np.zeros((3, *shape)), *np.zeros((2, num_tables)))
        if space is None:
            return cuts
        every, table = space.shards, space.first_tables
        item_of = every.item
        for cut, share in enumerate(SETTINGS.shard_shares):
            rows = even_splits(space, share)
            tables = table[item_of[rows]]
            np.add.at(cuts.vectors[:, cut], tables, every.vectors[rows])
            np.maximum.at(cuts.cost_ms[:, cut], tables, every.cost_ms[rows])
            np.maximum.at(cuts.columns[:, cut], tables, every.sent_units[rows] * DIM_MULTIPLE)
            np.maximum.at(cuts.size_bytes[:, cut], tables, every.size_bytes[rows])
        np.add.at(cuts.given, table, every.sent_units[every.whole] * DIM_MULTIPLE)
        np.add.at(cuts.total_bytes, table, every.size_bytes[every.whole])
        return cuts


@dataclass(frozen=True, eq=False)
class ReplicatedTables:
    """All tables that may be in one kernel call with one sharding type, either row-wise or data-parallel. Each device
    makes this call: for a block of rows of each table if the type is row-wise, or for a copy of each table if the type
    is data-parallel. The class has three values for each table: the vector by which the compute model describes the
    table, the bytes that a device sends, and the bytes of memory on one device.

    Devices are alike, so the costs of one device stand for all.

    Attributes:
        form: the sharding type, by its place in `FORMS`.
        called: (T,) True if the table makes this kernel call in this sharding type.
        head: from sums of vectors to the cost of the call.
        vectors: (T, H) of the compute model.
        given: (T, C) bytes that a device puts into every collective.
        size_bytes: (T,) bytes on a device, with caches as wide as each table.
        tables: (t,) tables that may have this sharding type and make this call.
        loads: (t,) loads of these tables on a device.
    """

    form: int
    called: BoolArray
    head: ReluHead
    vectors: FloatArray
    given: FloatArray
    size_bytes: FloatArray
    tables: IntArray
    loads: Loads

    @classmethod
    def of(
        cls, task: Task, compute: KernelModels, call: Call, called: BoolArray, allowed: BoolArray
    ) -> "ReplicatedTables":
        """Return the `ReplicatedTables` of the kernel call `call`. For each of T tables, the result has the vector by
        which the compute model describes the table, the bytes that a device sends, and the bytes of memory on one
        device. These values are 0 for tables that cannot be part of the call.

        The mask `called` (T,) is True for tables that make the call if they have the sharding type of the call. The
        mask `allowed` (T, F) is True if a table may have a sharding type, for each of F families of sharding types.
        """
        form, model = FORMS.index(call.form), compute.of_call(call)
        tables = np.flatnonzero(called & allowed[:, form])
        loads = slowest_loads(task, tables, LAYOUTS[call.form])
        count, numbers = len(called), len(model.head.bias)
        vectors, given, size_bytes = (np.zeros((count, *each)) for each in ((numbers,), (len(Collective),), ()))
        everywhere = cls(form, called, model.head, vectors, given, size_bytes, tables, loads)
        if len(tables):
            everywhere.vectors[tables] = model.embed(loads)
        everywhere.given[tables] = sent_bytes_of(loads, task.topology.num_devices)
        everywhere.size_bytes[tables] = task.memory.device_bytes(loads)
        return everywhere

    def widened_bytes(self, task: Task, types: IntArray) -> int:
        """Return the bytes of memory on one device that are lost because tables of different widths share a cache.
        Every row of a cache is as wide as the widest table in the cache. `types` (T,) has the sharding type of each of
        T tables.
        """
        if not len(self.tables) or self.loads.tier[0] != TIERS.index(Tier.UVM_CACHING):
            return 0
        loads = self.loads.take(np.flatnonzero(types[self.tables] == self.form))
        together = LoadSets(loads, np.array([len(loads)]))
        return int((task.memory.bytes_with_caches(together) - task.memory.device_bytes(loads)).sum())


def slowest_loads(task: Task, tables: IntArray, layout: Layout) -> Loads:
    """Return the load of each of the t tables `tables` (t,) on the device that has the most lookups in the table. A
    load is the work of a table for the kernels of one device, as numbers such as rows, columns and lookups. The
    sharding type `layout` divides the rows of each table (row-wise) or the samples (data-parallel) between all devices.

    For row-wise tables with even lookups, this device has the first block of rows,
    which is never smaller than the other blocks.
    """
    devices, kept = task.topology.num_devices, [task.tables[table] for table in tables]
    first = layout.share(task.loads.take(tables), devices)
    uneven = np.flatnonzero([layout.blocks and bool(table.row_lookups) for table in kept])
    if not len(uneven):
        return first
    placed = [block for table in tables[uneven].tolist() for block in layout.over(task, table, range(devices))]
    blocks = placed_loads(task.tables, placed, task.batch_size, devices)
    slowest = blocks.lookups.reshape(-1, devices).argmax(axis=1) + devices * np.arange(len(uneven))
    source = np.arange(len(kept))
    source[uneven] = len(kept) + slowest
    return LoadSets.joined([LoadSets.alone(first), LoadSets.alone(blocks)]).loads.take(source)


@dataclass(frozen=True, eq=False)
class CostEstimates:
    """Estimates the costs of plans of one task from the sharding types of the tables.

    Attributes:
        task: the task.
        simulator: costs exchanges.
        head: from sums of vectors to the cost of column-wise tables.
        cuts: splits of the column-wise tables.
        others: costs of the row-wise and data-parallel tables, by kernel call.
        step_inputs: parts of a step other than compute and communication, by the sharding type of each table.
    """

    task: Task
    simulator: Simulator
    head: ReluHead
    cuts: ColumnSplits
    others: tuple[ReplicatedTables, ...]
    step_inputs: "StepInputs"

    @classmethod
    def of(cls, task: Task, simulator: Simulator, allowed: BoolArray, space: CostedSpace | None) -> "CostEstimates":
        """Prepare the estimates for a task. The mask `allowed` (T, F) is True if a table may have a sharding type, for
        each of T tables and each of F families of sharding types.

        The space has the tables that may be column-wise; None if there are none of these tables.
        """
        compute, known = simulator.compute_for(task), known_calls(simulator.models)
        head = ReluHead.of_cost() if space is None else space.model.head
        kernels = np.unique(task.loads.kernel)
        in_columns = [(kernel, CALLS[call]) for kernel, call in zip(kernels, calls_of(kernels), strict=True)]
        others = tuple(
            ReplicatedTables.of(task, compute, call, task.loads.kernel == kernel, allowed)
            for call in CALLS
            for kernel, its in in_columns
            if call in known and not LAYOUTS[call.form].free and call == replace(its, form=call.form)
        )
        cuts = ColumnSplits.of(space, len(allowed), len(head.bias))
        return cls(task, simulator, head, cuts, others, StepInputs.of(task, simulator, others))

    def costs(self, choices: Choices) -> tuple[FloatArray, FloatArray]:
        """Return two estimated costs in ms for each of B choices of sharding types, as two arrays with the shape (B,).
        The second estimate assumes that every device has an equal share of the work of the column-wise tables. The
        first estimate also takes into account that single shards may be larger than an equal share: the compute time is
        at least the time of the most expensive column-wise shard, and a device sends at least the columns of the widest
        shard.

        Costs are infinite if memory does not suffice.
        """
        chunks = (choices.some(slice(first, first + _TOGETHER)) for first in range(0, len(choices), _TOGETHER))
        estimates = in_threads(self._costs, list(chunks), useful_threads(len(choices) * len(self.task.tables)))
        return np.concatenate([costs[0] for costs in estimates]), np.concatenate([costs[1] for costs in estimates])

    def fixed_load(self, types: IntArray) -> FixedLoad:
        """Return the estimated memory, compute time and traffic of the row-wise and data-parallel tables on each
        device. The compute time includes other parts of a step, for all tables. All devices have the same numbers.
        `types` (T,) has the sharding type of each of T tables.
        """
        shared, devices = self.everywhere(TypeChoices(types[None])), self.task.topology.num_devices
        size_bytes = np.full(devices, np.ceil(shared.size_bytes[0])).astype(np.int64)
        size_bytes += sum(group.widened_bytes(self.task, types) for group in self.others)
        compute_ms, given = np.full(devices, shared.compute_ms[0]), np.repeat(shared.given, devices, axis=0)
        return FixedLoad(self.task, np.flatnonzero(types == COLUMNS), size_bytes, compute_ms, given)

    def everywhere(self, choices: Choices) -> "PerDeviceCost":
        """Return the compute time, the traffic and the bytes of the row-wise and data-parallel tables on each device,
        for B choices of sharding types.

        Included are other parts of a step, for all sharding types in use, column_wise too.
        """
        given, size_bytes = np.zeros((len(choices), len(Collective))), np.zeros(len(choices))
        work = self.step_inputs.work(self.simulator, choices)
        compute_ms = self.simulator.shared_ms(self.task, *work)
        for group in self.others:
            total = partial(choices.total, group.form)
            compute_ms += _kernel(group.head, total(group.vectors), total(group.called))
            given += total(group.given)
            size_bytes += total(group.size_bytes)
        return PerDeviceCost(compute_ms, given, size_bytes, work)

    def _costs(self, choices: Choices) -> tuple[FloatArray, FloatArray]:
        """Return two estimated costs in ms for each of B choices of sharding types, as two arrays with the shape (B,).
        The second estimate assumes that every device has an equal share of the work of the column-wise tables. The
        first estimate also takes into account that single shards may be larger than an equal share: the compute time is
        at least the time of the most expensive column-wise shard, and a device sends at least the columns of the widest
        shard.

        At cut q, D devices that share the columns evenly compute even_q ms each and send `mean` columns; but one device
        has the most expensive shard, and one has the widest. With total(compute, columns) the cost of plans whose
        devices all have this compute and these columns in addition to row-wise and data-parallel tables, the estimates
        are

            min over cuts q that fit of total(max(even_q, shard_q), max(mean, widest_q))   and
            total(min over q of even_q, mean), without stragglers.
        """
        num_devices, cuts, shared = self.task.topology.num_devices, self.cuts, self.everywhere(choices)
        total, largest = partial(choices.total, COLUMNS), partial(choices.largest, COLUMNS)
        even_ms = _kernel(self.head, total(cuts.vectors) / num_devices, total(np.ones(len(cuts.given))))  # (B, Q)
        mean = (total(cuts.given) / num_devices)[:, None]  # (B, 1)
        free = device_memory(self.task)[None, :] - shared.size_bytes[:, None]  # (B, D)
        all_fit = (free.min(axis=1) >= 0) & (total(cuts.total_bytes) <= free.sum(axis=1))  # (B,)
        fits = all_fit[:, None] & (largest(cuts.size_bytes) <= free.max(axis=1)[:, None])
        straggler_ms = np.where(fits, np.maximum(even_ms, largest(cuts.cost_ms)), np.inf)  # (B, Q)
        widest = np.maximum(mean, largest(cuts.columns))  # (B, Q)
        evenly = even_ms.min(axis=1, keepdims=True), mean, np.ones(mean.shape, dtype=np.bool_)
        each = zip((straggler_ms, widest, _unbeaten(straggler_ms, widest)), evenly, strict=True)
        total_ms = self._alike(shared, *(np.concatenate(both, axis=1) for both in each))
        lowest_ms = total_ms[:, :-1].min(axis=1)
        return lowest_ms, np.where(np.isfinite(lowest_ms), total_ms[:, -1], np.inf)

    def _alike(self, shared: "PerDeviceCost", cost_ms: FloatArray, columns: FloatArray, asked: BoolArray) -> FloatArray:
        """Return estimated costs in ms, (B, Q), for B choices of sharding types and Q ways to split the column-wise
        tables. All devices are assumed to do the same work. Costs are computed only where `asked` (B, Q) is True; all
        other costs are infinite.

        On each device, the kernels of the column-wise tables take `cost_ms` (B, Q) ms, and the device sends `columns`
        (B, Q) columns of these tables for each sample. `shared` has the compute time and the traffic of the row-wise
        and data-parallel tables.
        """
        choice, cut = asked.nonzero()
        given = shared.given[choice]
        given[:, Collective.ALL_TO_ALL] += columns[choice, cut] * float(ELEMENT_BYTES * self.task.batch_size)
        ready_ms = self.simulator.even_ms(self.task, given, cost_ms[choice, cut] + shared.compute_ms[choice])
        total = np.full(cost_ms.shape, np.inf)
        kernels, counts, input_bytes = (of_choices[choice] for of_choices in shared.work)
        total[choice, cut] = ready_ms + self.simulator.waited_ms(self.task, ready_ms, kernels, counts, input_bytes)
        return total


class StepInputs(NamedTuple):
    """The work of one device for each of T tables, for each sharding type that the table may have. The work has three
    parts: the kernel that the device calls, amounts such as the number of lookups, and the bytes of indices and lengths
    that the device receives. Cost models use the work to predict the parts of a step other than compute and
    communication. All devices are assumed to have the same work.

    Attributes:
        called: (T, F, G) 1 for the kernel of each table in each sharding type, of all G kernels.
        counts: (T, F, C) operations of a device for the table (`KernelTimes.counts`).
        input_bytes: (T, F) bytes of indices and lengths that a device receives for the table.
        of_call: (G, K) 1 for the call of each kernel, by its place in `CALLS`.
    """

    called: FloatArray
    counts: FloatArray
    input_bytes: FloatArray
    of_call: FloatArray

    @classmethod
    def of(cls, task: Task, simulator: Simulator, others: Sequence[ReplicatedTables]) -> "StepInputs":
        """Return the work of one device for each table, for each sharding type that the table may have. The work has
        three parts: the kernel that the device calls, amounts such as the number of lookups, and the bytes of indices
        and lengths that the device receives. If a table is column-wise, each device is assumed to have an equal share
        of the amounts and bytes.
        """
        devices = task.topology.num_devices
        in_columns = simulator.counts_of(LoadSets.alone(task.loads)) / devices
        counts = np.zeros((len(in_columns), len(FORMS), in_columns.shape[1]))
        kernel, input_bytes = np.repeat(task.loads.kernel[:, None], len(FORMS), axis=1), np.zeros(counts.shape[:2])
        counts[:, COLUMNS] = in_columns
        input_bytes[:, COLUMNS] = sent_bytes_of(task.loads, devices)[:, Collective.INPUT] / devices
        for group in others:
            counts[group.tables, group.form] = simulator.counts_of(LoadSets.alone(group.loads))
            kernel[group.tables, group.form] = group.loads.kernel
            input_bytes[group.tables, group.form] = group.given[group.tables, Collective.INPUT]
        kernels, which = np.unique(kernel, return_inverse=True)
        called = np.eye(len(kernels))[which.reshape(kernel.shape)]
        return cls(called, counts, input_bytes, np.eye(len(CALLS))[calls_of(kernels)])

    def work(self, simulator: Simulator, choices: Choices) -> StepCounts:
        """Return the number of kernels, the amounts of work and the received bytes of one device, for each of B choices
        of sharding types. The numbers of kernels have the shape (B, K), for K types of kernel call. The amounts have
        the shape (B, C), for C kinds of work such as lookups. The received bytes (B,) are the bytes of indices and
        lengths that the device receives.

        If no part of a step depends on the amounts or on the received bytes, all values in all arrays are 0.
        """
        each = self.called, self.counts, self.input_bytes
        if self.counts.shape[2] or simulator.count_input:
            called, counts, input_bytes = (total_by_type(choices, numbers) for numbers in each)
        else:
            called, counts, input_bytes = (np.zeros((len(choices), *numbers.shape[2:])) for numbers in each)
        return (called > 0) @ self.of_call, counts, input_bytes


class PerDeviceCost(NamedTuple):
    """The compute time, the traffic and the bytes of row-wise and data-parallel tables on each device, for B
    choices of sharding types.

    Attributes:
        compute_ms: (B,) ms of their kernel calls, and of other parts of a step that all tables share.
        given: (B, C) bytes that they put into every collective.
        size_bytes: (B,) bytes that they take.
        work: of every device, for all tables.
    """

    compute_ms: FloatArray
    given: FloatArray
    size_bytes: FloatArray
    work: StepCounts


def _kernel(head: ReluHead, sums: FloatArray, called: FloatArray) -> FloatArray:
    """Return the time in ms of a kernel call, (B, ...), for B choices of sharding types. `sums` (B, ..., H) has the sum
    of the vectors of the tables in the call, and `head` is the part of the compute model that turns this sum into a
    time. `called` (B,) has the number of tables in the call; the time of a call without tables is 0.
    """
    cost = head(sums.astype(np.float32))
    return np.where(called.reshape(-1, *[1] * (cost.ndim - 1)) > 0, cost, 0.0)


def _unbeaten(cost_ms: FloatArray, columns: FloatArray) -> BoolArray:
    """Return which ways to split the column-wise tables can give the cheapest plan, as a mask (B, Q) for B choices of
    sharding types and Q ways to split. The mask is False for a way if the `cost_ms` of the way is infinite, or if there
    is another way that is no worse: neither the `cost_ms` nor the number of sent `columns` is higher.

    Of equal ways, only the first is True.
    """
    no_worse = (cost_ms[:, :, None] <= cost_ms[:, None]) & (columns[:, :, None] <= columns[:, None])  # (B, one, other)
    earlier = np.triu(np.ones(no_worse.shape[1:], dtype=np.bool_), 1)
    beaten = (no_worse & (earlier | ~no_worse.transpose(0, 2, 1))).any(axis=1)
    return np.isfinite(cost_ms) & ~beaten
