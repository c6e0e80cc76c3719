"""The tiers that tables may have, the bytes and costs of tables in each tier, and the cheapest choice of tiers."""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from neuroshard.cost.loads import Loads, LoadSets
from neuroshard.layouts import DATA_PARALLEL_LAYOUT, LAYOUTS, Layout
from neuroshard.models import ComputeModel
from neuroshard.plumbing.arrays import BoolArray, FloatArray, IntArray
from neuroshard.plumbing.errors import InfeasibleError
from neuroshard.plumbing.schema import readable_bytes
from neuroshard.stages.search.options.settings import SETTINGS
from neuroshard.stages.search.space.fixed_load import device_memory, placed_bytes
from neuroshard.tasks.task import Task
from neuroshard.words.form import CALLS, CUT_FORMS, FORMS
from neuroshard.words.placement import ON_DEVICE, Tier, TierAssignment

LEAST_CACHED = SETTINGS.cache_shares[0]
_RAISE_EITHER = "Raise topology.memory_bytes or topology.host_memory_bytes"


@dataclass(frozen=True, eq=False)
class TierOptions:
    """The bytes and the cost of each of T tables with each of O tier assignments (a memory tier and a cache size).

    The bytes and the cost are for the whole table. For a table that must be data-parallel, the bytes of device memory
    are the sum over the copies on all devices.

    Attributes:
        tier_assignments: (O,).
        cost_ms: (T, O) cost of the table alone; infinite if the table may not have the tier, or if the models do not
            know its cost.
        device_bytes, host_bytes: (T, O) bytes that the table takes.
    """

    tier_assignments: tuple[TierAssignment, ...]
    cost_ms: FloatArray
    device_bytes: IntArray
    host_bytes: IntArray

    @classmethod
    def of(cls, task: Task, model: ComputeModel) -> "TierOptions":
        """Return the options for the tables of a task: all tiers and cache sizes, with the costs that
        a compute model predicts.
        """
        fixed = {limits.cache_load_factor for limits in task.limits if limits.cache_load_factor is not None}
        shares = sorted(fixed.union(SETTINGS.cache_shares))
        assignments = (
            ON_DEVICE,
            *(TierAssignment(Tier.UVM_CACHING, share) for share in shares),
            TierAssignment(Tier.UVM),
        )
        columns = [_costed(task, assignment, model) for assignment in assignments]
        cost_ms, device_bytes, host_bytes = (np.stack(values, axis=1) for values in zip(*columns, strict=True))
        may = np.array([[limits.allows_tier(assignment) for assignment in assignments] for limits in task.limits])
        for table, limits in enumerate(task.limits):
            if not limits.forms.intersection(CUT_FORMS):
                device_bytes[table, 0] = min(_everywhere_bytes(task, LAYOUTS[form], table) for form in limits.forms)
        return cls(assignments, np.where(may, cost_ms, np.inf), device_bytes, host_bytes)

    def with_data_parallel(self, task: Task, allowed: BoolArray) -> "TierOptions":
        """Return a copy of the tier options, in which some tables that may be data-parallel take fewer bytes of device
        memory. A table takes the bytes of its data-parallel copies on all devices, if these bytes are fewer than the
        bytes of the table with another sharding type. The copies can take fewer bytes because data-parallel tables have
        smaller buffers.

        The buffers are smaller because each device looks up a data-parallel table only for the device's own samples.
        `allowed` (T, F) is the mask of the families of sharding types that each table may have.
        """
        size = self.device_bytes.copy()
        for table in np.flatnonzero(allowed[:, FORMS.index(DATA_PARALLEL_LAYOUT.form)]).tolist():
            size[table, 0] = min(size[table, 0], _everywhere_bytes(task, DATA_PARALLEL_LAYOUT, table))
        return replace(self, device_bytes=size)

    def charged(self, task: Task, widths: FloatArray, parts: IntArray, model: ComputeModel) -> "TierOptions":
        """Return a copy of the tier options, in which the options that cache a table have new costs and bytes. The new
        values assume that each cached table t is split into `parts[t]` shards, and that each row of the table's cache
        has `widths[t]` columns. `widths` and `parts` are arrays (T,).

        A table in 0 parts must not be cached. A table in several parts has the cost of all parts.
        """
        cost_ms, device_bytes, host_bytes = self.cost_ms.copy(), self.device_bytes.copy(), self.host_bytes.copy()
        cut = np.flatnonzero(parts > 1)
        loads = Loads.of(task.tables, task.batch_size)
        shards = loads.columns(loads.dim / np.maximum(parts, 1))
        for option, assignment in enumerate(self.tier_assignments):
            if assignment.tier is not Tier.UVM_CACHING:
                continue
            its = shards.at([assignment] * len(loads))
            device_bytes[:, option] = parts * task.memory.device_bytes(its, np.maximum(widths, its.dim))
            known = cut[np.isfinite(cost_ms[cut, option])]
            if len(known):
                cost_ms[known, option] = parts[known] * model.predict(LoadSets.alone(its.take(known)))
                host_bytes[known, option] = parts[known] * task.memory.host_bytes(its.take(known))
            cost_ms[parts == 0, option] = np.inf
        return TierOptions(self.tier_assignments, cost_ms, device_bytes, host_bytes)

    def cheapest(self, device_bytes: float, host_bytes: float) -> IntArray | None:
        """Return a tier option for each table, (T,), with a low total cost. With these options, the tables fit in
        `device_bytes` of device memory and in `host_bytes` of host memory. Return None if no options were found.

        As many tables as fit get their cheapest option, first the tables that gain most per byte of device memory;
        host memory has the lowest price at which it suffices.
        """
        free = self._within(device_bytes, 0.0)
        if free is None or self._on_hosts(free) <= host_bytes:
            return free
        most = float(np.nanmax(np.where(np.isfinite(self.cost_ms), self.cost_ms, np.nan)))
        low, high, best = 0.0, most, None  # ms for a byte: beyond that no byte is worth it
        for _ in range(SETTINGS.host_prices):
            price = high if low == 0.0 and best is None else float(np.sqrt(max(low, high * 1e-12) * high))
            choice = self._within(device_bytes, price)
            if choice is not None and self._on_hosts(choice) <= host_bytes:
                best, high = choice, price
            elif best is None:
                return self._largest_first(device_bytes, host_bytes)
            else:
                low = price
        return best

    def _largest_first(self, device_bytes: float, host_bytes: float) -> IntArray | None:
        """Choose a tier option (a tier and a cache size) for each of T tables so that all tables fit in device memory
        and host memory. Return the options as indices, (T,), or None if no options were found with which the tables
        fit.

        At first, each table has the option with the fewest bytes of device memory. Then each table for which device
        memory has room changes to the option with the fewest bytes of host memory; the tables that save the most host
        memory change first. A small table gains more per byte, but may leave too few bytes for a large table for which
        the hosts have no room.
        """
        may, rows, none = np.isfinite(self.cost_ms), np.arange(len(self.cost_ms)), np.iinfo(np.int64).max
        chosen, roomy = (np.where(may, size, none).argmin(axis=1) for size in (self.device_bytes, self.host_bytes))
        more, saved = (size[rows, roomy] - size[rows, chosen] for size in (self.device_bytes, self.host_bytes))
        left = device_bytes - int(self.device_bytes[rows, chosen].sum())
        for table in np.argsort(saved, kind="stable").tolist():
            if saved[table] < 0 and more[table] <= left:
                chosen[table], left = roomy[table], left - int(more[table])
        return chosen if left >= 0 and self._on_hosts(chosen) <= host_bytes else None

    def choices(self, task: Task) -> list[IntArray]:
        """Return several choices of tiers, each as an array (T,) with a tier option for each of T tables. Each choice
        has a low cost for one limit on the fraction of device memory that the tables may fill. For example, the limit
        is 100% for one choice, and 80% for another choice.

        The choice for the largest fraction of device memory comes first. Equal choices appear once.
        """
        total, hosts = int(device_memory(task).sum()), task.topology.all_host_bytes
        chosen = (self.cheapest(total * share, hosts) for share in SETTINGS.memory_shares)
        return list({some.tobytes(): some for some in chosen if some is not None}.values())

    def shortage(self, task: Task) -> InfeasibleError:
        """Return the error for a search that found no choice of tiers with which all tables of a task fit in memory. If
        the fewest bytes that the tables can take exceed the memory of the devices, of the hosts, or of both together,
        the error names the memory that is too small.
        """
        may = np.isfinite(self.cost_ms)
        least_device, least_host, least = (
            int(np.where(may, size, np.iinfo(np.int64).max).min(axis=1).sum())
            for size in (self.device_bytes, self.host_bytes, self.device_bytes + self.host_bytes)
        )
        error = memory_shortage(task, least_device, least_host, least)
        return error or InfeasibleError(
            "tiers-not-found",
            "no choice of tiers was found with which all tables fit in the memory of the devices and hosts",
            limit=_needs_and_has(task),
            remedy=_RAISE_EITHER,
        )

    def _on_hosts(self, chosen: IntArray) -> int:
        return int(self.host_bytes[np.arange(len(chosen)), chosen].sum())

    def _within(self, device_bytes: float, host_price: float) -> IntArray | None:
        """Return a tier option for each table, (T,), so that all tables together fit in `device_bytes` of device memory
        at a low total cost. The cost of a table includes `host_price` ms for each byte of host memory that the table
        takes. Return None if no options fit.
        """
        cost = self.cost_ms + host_price * self.host_bytes
        steps: list[tuple[float, int, int, int]] = []  # what a byte costs less, the table, bytes, the option
        chosen = np.empty(len(cost), dtype=np.int64)
        for table in range(len(cost)):
            path = _hull(self.device_bytes[table], cost[table])
            if not path:
                return None
            chosen[table] = path[0]
            for before, after in pairwise(path):
                more = int(self.device_bytes[table, after] - self.device_bytes[table, before])
                steps.append((float(cost[table, after] - cost[table, before]) / more, table, more, after))
        left = device_bytes - int(self.device_bytes[np.arange(len(chosen)), chosen].sum())
        if left < 0:
            return None
        stopped = set[int]()
        for _, table, more, after in sorted(steps):  # a table's own are in order: each byte more gains less
            if more > left:
                stopped.add(table)
            if table not in stopped:
                left -= more
                chosen[table] = after
        return chosen


def memory_shortage(task: Task, device_bytes: int, host_bytes: int, both_bytes: int) -> InfeasibleError | None:
    """Return the error that names the memory that is too small: the memory of the devices, the memory of the hosts, or
    both memories together. Return None if the given sums of bytes do not prove that memory is too small.

    Args:
        task: the tables, the devices and the hosts.
        device_bytes: fewest bytes of device memory that all tables take, with any use of host memory.
        host_bytes: fewest bytes of host memory that all tables take, with any use of device memory.
        both_bytes: fewest bytes of both memories together.
    """
    memory, hosts = int(device_memory(task).sum()), task.topology.all_host_bytes
    if device_bytes > memory:
        return InfeasibleError(
            "device-memory-too-small",
            f"the devices need {readable_bytes(device_bytes)} for buffers, optimizer state and tables that may not be "
            "in host memory, even if all other tables are in host memory",
            limit=_memory_of(task),
            remedy="Give each device more memory (topology.memory_bytes)",
        )
    if host_bytes > hosts:
        return InfeasibleError(
            "host-memory-required-tables",
            f"the tables that must be in host memory take {readable_bytes(host_bytes)} of it",
            limit=f"the hosts have {readable_bytes(hosts)} in all",
            remedy="Raise topology.host_memory_bytes",
        )
    if both_bytes > memory + hosts:
        return InfeasibleError(
            "both-memories-too-small",
            "device and host memory together are too small",
            limit=_needs_and_has(task),
            remedy=_RAISE_EITHER,
        )
    return None


def _needs_and_has(task: Task) -> str:
    return f"the tables take {readable_bytes(task.total_bytes)}, and {_memory_of(task)}"


def _memory_of(task: Task) -> str:
    memory, hosts = int(device_memory(task).sum()), task.topology.all_host_bytes
    return f"the devices have {readable_bytes(memory)} in all and the hosts {readable_bytes(hosts)}"


def _hull(size: IntArray, cost: FloatArray) -> list[int]:
    """Return the tier options of one table on the lower convex hull of the points (size, cost), as indices. The first
    option has the fewest bytes, and the last option has the lowest cost. From one option to the next, the table takes
    more bytes and costs less, and each further byte saves less than the bytes before.
    """
    order = [int(o) for o in np.lexsort((cost, size)) if np.isfinite(cost[o])]
    path: list[int] = []
    for option in order:
        if path and cost[option] >= cost[path[-1]]:
            continue
        while len(path) > 1 and _slope(size, cost, path[-2], path[-1]) >= _slope(size, cost, path[-1], option):
            path.pop()
        if path and size[option] == size[path[-1]]:
            path.pop()
        path.append(option)
    return path


def _slope(size: IntArray, cost: FloatArray, before: int, after: int) -> float:
    return float((cost[after] - cost[before]) / max(size[after] - size[before], 1))


def _costed(task: Task, assignment: TierAssignment, model: ComputeModel) -> tuple[FloatArray, IntArray, IntArray]:
    """Return the cost in ms, the device bytes and the host bytes of each table, (T,) each, if every table has the tier
    assignment `assignment`.
    """
    loads = Loads.of(task.tables, task.batch_size).at([assignment] * len(task.tables))
    known = np.flatnonzero([CALLS[number] in model.calls for number in loads.call.tolist()])
    cost_ms = np.full(len(loads), np.inf)
    if len(known):
        cost_ms[known] = model.predict(LoadSets.alone(loads.take(known)))
    return cost_ms, task.memory.device_bytes(loads), task.memory.host_bytes(loads)


def _everywhere_bytes(task: Task, layout: Layout, table: int) -> int:
    """Return the bytes that one table, given by its index, takes on all devices together. The sharding type `layout`
    must be one that places the table on all devices (row-wise or data-parallel).
    """
    return int(placed_bytes(task, layout.over(task, table, range(task.topology.num_devices))).sum())


def is_ample(task: Task) -> bool:
    """Return True if all tables are in device memory and fill only a small fraction of it, so that host memory is not
    needed.

    The fraction is at most the smallest of `ChoiceSettings.memory_shares`.
    """
    taken = int(task.memory.device_bytes(task.loads).sum())
    return not task.loads.tier.any() and taken <= SETTINGS.memory_shares[-1] * int(device_memory(task).sum())
