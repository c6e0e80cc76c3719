"""Variants of a task: the same task with further rules. The rules fix the memory tier of every table (device memory,
host memory with a cache, or host memory), or spread tables in host memory over all hosts.

A cache is as wide as the widest table in the cache. The rules may therefore also split wide cached tables, or put wide
and narrow cached tables on different devices.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from neuroshard.models import ComputeModel
from neuroshard.plans.caches import cut_to, of_mixed_widths, on_own_devices, parts_within, shared_caches, width_classes
from neuroshard.plumbing.arrays import BoolArray, FloatArray, IntArray
from neuroshard.stages.search.options.host_variants import host_variants
from neuroshard.stages.search.options.settings import SETTINGS
from neuroshard.stages.search.options.tier_changes import assign_tiers
from neuroshard.stages.search.options.tiers import TierOptions
from neuroshard.stages.search.space.fixed_load import device_memory
from neuroshard.tasks.task import Task
from neuroshard.words.placement import DEFAULT_CACHED, Tier, TierAssignment


def tier_variants(task: Task, model: ComputeModel, allowed: BoolArray) -> list[Task]:
    """Return variants of a task: the same task with further rules. The rules of a variant fix the tier of every table,
    or spread the tables in host memory evenly over all hosts, or both.

    Args:
        task: the task.
        model: costs the tables in each tier.
        allowed: (T, F) sharding types that each table may have.
    """
    options = TierOptions.of(task, model)
    tasks = _with_tiers(task, options, model) or _with_tiers(task, options.with_data_parallel(task, allowed), model)
    tasks += _all_on_hosts(task, options)
    variants = [task, *(other for other in tasks if other is not task)]
    for variant in variants[:2]:
        variants += [spread for spread in host_variants(variant) if spread not in variants]
    return variants[1:]


def _all_on_hosts(task: Task, options: TierOptions) -> list[Task]:
    """Return a list with one variant of the task. In the variant, every table that may be in host memory without a
    cache is in host memory without a cache. Return an empty list if there are no such tables, or if the hosts have too
    little memory.

    With all these tables in host memory, devices make the fewest kernel calls.
    """
    uvm = TierAssignment(Tier.UVM)
    option = options.tier_assignments.index(uvm)
    may = np.isfinite(options.cost_ms[:, option])
    if not may.any() or int(options.host_bytes[may, option].sum()) > task.topology.all_host_bytes:
        return []
    each = zip(may.tolist(), task.tier_assignments, strict=True)
    return [assign_tiers(task, tuple(uvm if on_host else assignment for on_host, assignment in each))]


def _with_tiers(task: Task, options: TierOptions, model: ComputeModel) -> list[Task]:
    """Return variants of the task in which the tier of every table is fixed. There is one variant, with the cheapest
    tiers, for each of several fractions of device memory that the tables may fill.

    If cached tables may differ in width, tasks have rules for cached tables too. The task itself stands for the choice
    in which every table keeps the tier that the task gives it. The list is empty if no choice fits.
    """
    every = _all_cached(task)
    mixed = of_mixed_widths(every, shared_caches(every))
    if not len(mixed):
        each = [
            tuple(options.tier_assignments[option] for option in chosen.tolist()) for chosen in options.choices(task)
        ]
        return [task if tiers == task.tier_assignments else assign_tiers(task, tiers) for tiers in each]
    tasks = list[Task]()
    ways = _ways(every, mixed)
    charged = [_Charged(way, options.charged(every, way.widths, way.parts, model)) for way in ways]
    for choice in _choices(task, charged):
        assignments = tuple(options.tier_assignments[option] for option in choice.chosen.tolist())
        other = choice.charged.way.ruled(
            task if assignments == task.tier_assignments else assign_tiers(task, assignments)
        )
        if other is not None and other not in tasks:
            tasks.append(other)
    return tasks


class _NarrowCaches(NamedTuple):
    """A way to limit the widths of caches. A cache is as wide as the widest table in the cache. So a way splits wide
    tables into shards, or places tables of different widths on different devices; one way does neither.

    Attributes:
        widths: (T,) columns of the cache row that each table is charged for if it is cached.
        parts: (T,) shards that each table is cut into if it is cached; 0 if it must not be cached.
        edges: widest widths of the classes that get devices of their own; a single width for tables cut to it.
    """

    widths: FloatArray
    parts: IntArray
    edges: tuple[int, ...]

    def ruled(self, task: Task) -> Task | None:
        """Return the task with further rules that limit the widths of caches. The rules split wide cached tables into
        shards, or place tables of different widths on different devices. The tiers of the given task are already fixed.
        Return None if the new rules contradict other rules of the task.
        """
        tables = of_mixed_widths(task, shared_caches(task))
        if len(self.edges) > 1:
            return on_own_devices(task, tables, self.edges) if len(tables) else task
        wide = task.loads.table_dim[tables] > self.edges[0]
        return cut_to(task, tables, self.edges[0]) if wide.any() else task


def _ways(every: Task, mixed: IntArray) -> Iterator[_NarrowCaches]:
    """Yield several ways to limit the widths of caches. The first way splits no tables. The next ways split tables that
    are wider than a limit into equal shards; each way has a lower limit than the way before. The last ways place tables
    of different widths on different devices.

    `every` is the task in which all tables that may be cached are cached. `mixed` (n,) has the indices of the tables
    that share a cache with tables of other widths; only these tables are split or kept apart.
    """
    dims, ones = every.loads.table_dim, np.ones(len(every.tables), dtype=np.int64)
    classes, widest = width_classes(every, mixed), int(dims[mixed].max())
    for width in sorted({widest, *classes[-1]}, reverse=True):
        widths, parts = dims.copy(), ones.copy()
        widths[mixed] = width
        parts[mixed] = [parts_within(every, table, width) for table in mixed.tolist()]
        yield _NarrowCaches(widths, parts, (width,))
    for edges in classes:
        if len(edges) <= every.topology.num_devices:
            widths = dims.copy()
            widths[mixed] = np.array(edges)[np.searchsorted(edges, dims[mixed])]
            yield _NarrowCaches(widths, ones, edges)


class _Charged(NamedTuple):
    """The bytes and costs of each table in each memory tier (`options`), computed for one way to limit the widths of
    caches (`way`).
    """

    way: _NarrowCaches
    options: TierOptions

    def cheapest(self, device_bytes: float, host_bytes: int) -> "_Choice | None":
        """Return the cheapest choice of a tier for each table with which the tables fit in `device_bytes` of device
        memory and in `host_bytes` of host memory. Return None if no choice was found.
        """
        chosen = self.options.cheapest(device_bytes, host_bytes)
        if chosen is None:
            return None
        return _Choice(float(self.options.cost_ms[np.arange(len(chosen)), chosen].sum()), self, chosen)


class _Choice(NamedTuple):
    """A choice of a memory tier for each of T tables, with the total cost of all tables in ms. The cost is computed for
    one way to limit the widths of caches.

    Attributes: cost_ms: total cost of the tables. charged: the bytes and the costs of tables for this way. chosen: (T,)
    tier option of each table.
    """

    cost_ms: float
    charged: _Charged
    chosen: IntArray


def _choices(task: Task, each: list[_Charged]) -> Iterator[_Choice]:
    """Yield choices of a memory tier for each table of the task. First, yield the cheapest choice for each of several
    fractions of device memory that the tables may fill. Then, for the fraction with the index
    `SETTINGS.narrow_cache_share`, also yield the cheapest choice under each of the other ways to limit the widths of
    caches. `each` has these ways, with the bytes and costs of the tables under each way.

    Only the few ways with the cheapest choices are used. Each choice is made for one way.
    """
    total, hosts = int(device_memory(task).sum()), task.topology.all_host_bytes

    def ranked(some: list[_Charged], share: float) -> list[_Choice]:
        """Return the cheapest choices of tiers that fill at most the fraction `share` of device memory, cheapest first.

        `some` has ways to limit the widths of caches, each with the bytes and costs of the tables under this limit. The
        result has one choice for each limit, except for limits under which no choice fits.
        """
        choices = [charged.cheapest(total * share, hosts) for charged in some]
        return sorted((choice for choice in choices if choice is not None), key=lambda choice: choice.cost_ms)

    likely = [choice.charged for choice in ranked(each, SETTINGS.memory_shares[0])[: SETTINGS.narrow_cache_ways]]
    by_share = [ranked(likely, share) for share in SETTINGS.memory_shares]
    yield from (choices[0] for choices in by_share if choices)
    yield from by_share[SETTINGS.narrow_cache_share][1:]


def _all_cached(task: Task) -> Task:
    """Return the task with the tier `uvm_caching` for all tables that may be cached. Other tables keep their tiers."""
    if not any(Tier.UVM_CACHING in limits.tiers for limits in task.limits):
        return task
    assignments = (
        TierAssignment(Tier.UVM_CACHING, limits.cache_load_factor or DEFAULT_CACHED)
        if Tier.UVM_CACHING in limits.tiers
        else assignment
        for limits, assignment in zip(task.limits, task.tier_assignments, strict=True)
    )
    return assign_tiers(task, tuple(assignments))
