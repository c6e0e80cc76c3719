"""Rules that keep narrow and wide cached tables apart, so that a wide table does not widen the cache of narrow ones.

FBGEMM's cache has rows as wide as the widest cached table of a kernel call (`MemoryUse.cache_widths`). So it pays to
put cached tables of unequal widths on different devices, or to cut the wide tables. Rules say both, and every search
keeps rules. All functions here take a task whose tables are in the memory of `Task.tier_assignments`.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from glob import escape

import numpy as np

from neuroshard.plumbing.arrays import IntArray
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import DIM_MULTIPLE
from neuroshard.tasks.constraints import TableRule
from neuroshard.tasks.task import Task
from neuroshard.words.placement import TIERS, Tier

_MOST_CLASSES = 4  # of widths that are kept apart
_MOST_WIDTHS = 64  # that are kept apart; other widths count as the next larger of them


def separated(task: Task, left_out: Collection[str] = ()) -> Iterator[Task]:
    """Yield the task with rules that keep its caches narrow, if a search may need them: the likeliest rules first.

    Narrow and wide cached tables get devices of their own; then wide ones are cut. If all cached tables of a kernel
    call are as wide, they stay whole. Tables that are `left_out`, by name, get no rules.
    """
    tables = shared_caches(task, left_out)
    mixed = of_mixed_widths(task, tables)
    if not len(mixed):
        whole = _with_rules(task, (TableRule(_name(task, table), max_shards=1) for table in tables.tolist()))
        yield from () if whole is None or not len(tables) else (whole,)
        return
    ways = [partial(on_own_devices, edges=edges) for edges in width_classes(task, mixed)]
    ways += [partial(cut_to, width=edges[0]) for edges in width_classes(task, mixed)]
    for way in ways:
        if (other := way(task, mixed)) is not None:
            yield other


def shared_caches(task: Task, left_out: Collection[str] = ()) -> IntArray:
    """Return (n,) indices of cached tables that may be table- or column-wise, with two or more in a kernel call."""
    if not task.memory.shares_caches:
        return np.zeros(0, dtype=np.int64)
    cached = np.flatnonzero(task.loads.tier == TIERS.index(Tier.UVM_CACHING)).tolist()
    free = [table for table in cached if task.limits[table].free and task.tables[table].name not in left_out]
    tables = np.array(free, dtype=np.int64)
    _, call, count = np.unique(task.loads.kernel[tables], return_inverse=True, return_counts=True)
    several: IntArray = tables[count[call.reshape(-1)] > 1]
    return several


def of_mixed_widths(task: Task, tables: IntArray) -> IntArray:
    """Return those of some cached tables (n,) that are in a kernel call with cached tables of other widths."""
    calls, call = np.unique(task.loads.kernel[tables], return_inverse=True)
    dims, widest = task.loads.table_dim[tables], np.zeros(len(calls))
    narrowest = np.full(len(calls), np.inf)
    np.maximum.at(widest, call.reshape(-1), dims)
    np.minimum.at(narrowest, call.reshape(-1), dims)
    mixed: IntArray = tables[(narrowest < widest)[call.reshape(-1)]]
    return mixed


def width_classes(task: Task, tables: IntArray) -> list[tuple[int, ...]]:
    """List ways to divide the widths of cached tables (n,) into 2, 3, ... classes: the widest width of each, ascending.

    With caches as wide as the widest table of their class, each way takes the fewest bytes of all with as many classes.
    """
    dims = task.loads.table_dim[tables].astype(np.int64)
    widths, which = np.unique(dims, return_inverse=True)
    bytes_per_column = np.bincount(which.reshape(-1), _cached_rows(task, tables) * task.loads.bytes_per_element[tables])
    if len(widths) > _MOST_WIDTHS:
        kept = np.unique(np.linspace(0, len(widths) - 1, _MOST_WIDTHS).astype(np.int64))
        bytes_per_column = np.add.reduceat(bytes_per_column, [0, *(kept[:-1] + 1)])
        widths = widths[kept]
    most = min(_MOST_CLASSES, len(widths))
    return [_divided_widths(widths.tolist(), bytes_per_column.tolist(), count) for count in range(2, most + 1)]


def on_own_devices(task: Task, tables: IntArray, edges: Sequence[int]) -> Task | None:
    """Give every class of widths devices of its own for its cached tables (n,); None if that contradicts other rules.

    `edges` are the widest widths of the classes. Tables with pinned shards stay where they are pinned.
    """
    groups = task.constraints.group_of
    dims = {_plain_name(task, table): task.tables[table].dim for table in tables.tolist()}
    classes = dict[int, list[int]]()
    for table in tables.tolist():
        name = _plain_name(task, table)
        if name not in task.constraints.pins:
            widest = max(dims.get(other, 0) for other in groups.get(name, (name,)))
            classes.setdefault(int(np.searchsorted(edges, widest)), []).append(table)
    devices = _divided_devices(task, list(classes.values()))
    if devices is None:
        return None
    rules = (
        TableRule(_name(task, table), devices=its)
        for its, members in zip(devices, classes.values(), strict=True)
        for table in members
    )
    return _with_rules(task, rules)


def cut_to(task: Task, tables: IntArray, width: int) -> Task | None:
    """Cut those of some cached tables (n,) that are wider than `width` into equal shards of at most as many columns.

    None if a table's rules do not let it be cut so.
    """
    rules = list[TableRule]()
    for table in tables.tolist():
        dim, parts = task.tables[table].dim, parts_within(task, table, width)
        if not parts:
            return None
        if parts > 1:
            rules.append(TableRule(_name(task, table), min_shards=parts, min_dim=dim // parts))
    return _with_rules(task, rules) if rules else None


def parts_within(task: Task, table: int, width: int) -> int:
    """Return the fewest equal column shards of a table with at most `width` columns each; 0 if rules forbid all."""
    dim, limits, name = task.tables[table].dim, task.limits[table], _plain_name(task, table)
    if dim <= width:
        return 1
    bound = name in task.constraints.pins or name in task.constraints.group_of
    for parts in range(-(-dim // width), min(limits.max_shards, len(limits.devices)) + 1):
        if not bound and dim % (parts * DIM_MULTIPLE) == 0 and dim // parts >= limits.min_dim:
            return parts
    return 0


def _divided_widths(widths: list[int], bytes_per_column: list[float], count: int) -> tuple[int, ...]:
    """Divide ascending widths into `count` classes with the fewest bytes of caches; return the widest of each class."""
    fewest = [0.0] + [float("inf")] * len(widths)  # bytes of the first widths, in as many classes as so far
    edges: list[tuple[int, ...]] = [()] * (len(widths) + 1)
    for _ in range(count):
        after, after_edges = [float("inf")] * len(fewest), edges.copy()
        for end in range(1, len(fewest)):
            columns = 0.0
            for start in range(end - 1, -1, -1):
                columns += bytes_per_column[start]
                size = fewest[start] + columns * widths[end - 1]
                if size < after[end]:
                    after[end], after_edges[end] = size, (*edges[start], widths[end - 1])
        fewest, edges = after, after_edges
    return edges[-1]


def _divided_devices(task: Task, classes: Sequence[Sequence[int]]) -> list[tuple[int, ...]] | None:
    """Divide the devices between classes of cached tables, in proportion to the bytes of their caches; None if too few.

    A class gets the devices first that its rules allow more of its tables on than of others.
    """
    count, memory = task.topology.num_devices, np.array(task.shard_memory, dtype=np.float64)
    if not 1 < len(classes) <= count:
        return None
    need = [_class_bytes(task, its) for its in classes]
    share = [1] * len(classes)
    for _ in range(count - len(classes)):
        share[int(np.argmax([size / its for size, its in zip(need, share, strict=True)]))] += 1
    allowed = np.zeros((len(classes), count))
    for row, members in zip(allowed, classes, strict=True):
        for table in members:
            row[list(task.limits[table].devices)] += 1 / len(members)
    chosen: list[tuple[int, ...]] = [()] * len(classes)
    left, host = list(range(count)), task.topology.host_size
    for number in np.argsort([-size / its for size, its in zip(need, share, strict=True)], kind="stable").tolist():
        wanted = 2 * allowed[number] - allowed.sum(axis=0)
        left.sort(key=lambda device: (-wanted[device], -memory[device], device % host, device))
        chosen[number], left = tuple(sorted(left[: share[number]])), left[share[number] :]
    return chosen


def _class_bytes(task: Task, tables: Sequence[int]) -> float:
    """Compute the bytes on devices of whole cached tables that share caches as wide as the widest of them."""
    loads = task.loads.take(np.array(tables))
    return float(task.memory.device_bytes(loads, np.full(len(loads), loads.dim.max())).sum())


def _cached_rows(task: Task, tables: IntArray) -> IntArray:
    rows: IntArray = np.ceil(task.loads.rows[tables] * task.loads.cached[tables]).astype(np.int64)
    return rows


def _with_rules(task: Task, rules: Iterable[TableRule]) -> Task | None:
    try:
        return task.with_rules(rules)
    except UserError:  # rules that contradict others: there may be another way
        return None


def _plain_name(task: Task, table: int) -> str:
    return task.tables[table].name


def _name(task: Task, table: int) -> str:
    """Return the pattern that matches a table's name alone."""
    return escape(_plain_name(task, table))
