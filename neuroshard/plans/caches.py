"""Functions that add constraints to a task, so that plans need less device memory for caches of tables in host memory.

FBGEMM's cache has rows as wide as the widest cached table of a kernel call (`MemoryUse.cache_widths`). So less memory
is needed if cached tables of unequal widths are on different devices, or if the wide tables are split. Both can be
stated as rules, which every search keeps. All functions here use the tiers of `Task.tier_assignments`.
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

_MOST_CLASSES = 4  # maximum number of classes of widths that are kept apart
_MOST_WIDTHS = 64  # maximum number of widths; if there are more, the others count as the next larger of these


def separated(task: Task, left_out: Collection[str] = ()) -> Iterator[Task]:
    """Yield copies of the task with constraints that reduce the device memory for caches of tables in host memory.
    Each copy has different constraints; the most promising copy comes first.

    First, narrow and wide cached tables are put on different devices. Then, wide tables are split. If all cached tables
    of each kernel call have the same width, the only rules are that they stay whole. The tables `left_out`, by name,
    get no rules.
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
    """Return the indices, (n,), of cached tables that share a kernel call with another cached table.
    Only tables that may be column-wise, and whose names are not in `left_out`, are considered.
    """
    if not task.memory.shares_caches:
        return np.zeros(0, dtype=np.int64)
    cached = np.flatnonzero(task.loads.tier == TIERS.index(Tier.UVM_CACHING)).tolist()
    free = [table for table in cached if task.limits[table].free and task.tables[table].name not in left_out]
    tables = np.array(free, dtype=np.int64)
    _, call, count = np.unique(task.loads.kernel[tables], return_inverse=True, return_counts=True)
    several: IntArray = tables[count[call.reshape(-1)] > 1]
    return several


def of_mixed_widths(task: Task, tables: IntArray) -> IntArray:
    """Return the indices of cached tables that share a kernel call with a cached table of another width. Only the
    tables with indices in `tables` (n,) are considered.
    """
    calls, call = np.unique(task.loads.kernel[tables], return_inverse=True)
    dims, widest = task.loads.table_dim[tables], np.zeros(len(calls))
    narrowest = np.full(len(calls), np.inf)
    np.maximum.at(widest, call.reshape(-1), dims)
    np.minimum.at(narrowest, call.reshape(-1), dims)
    mixed: IntArray = tables[(narrowest < widest)[call.reshape(-1)]]
    return mixed


def width_classes(task: Task, tables: IntArray) -> list[tuple[int, ...]]:
    """Return up to three divisions of cached tables into classes by width: into 2, 3 and 4 classes. A division is a
    tuple with the width, in columns, of the widest table in each class, such as (16, 64, 128) for 3 classes. `tables`
    (n,) has the indices of the cached tables.

    If the tables have fewer than 4 different widths, there are fewer divisions. The widths in a tuple ascend. The
    caches of a class are as wide as the widest table of the class; of all divisions into the same number of classes,
    the returned division needs the fewest bytes of caches.
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
    """Return the task with rules that put narrow and wide cached tables on different devices. `tables` (n,) has the
    indices of the cached tables. The tables are divided into classes by width, and `edges` has the largest width of
    each class, in columns.

    Each class gets its own devices. Tables with pinned shards get no rules, and tables that are kept together are in
    the class of the widest of them. None if the rules contradict other rules, or there are too few devices.
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
        TableRule(_name(task, table), devices=of_class)
        for of_class, members in zip(devices, classes.values(), strict=True)
        for table in members
    )
    return _with_rules(task, rules)


def cut_to(task: Task, tables: IntArray, width: int) -> Task | None:
    """Return the task with rules that split wide cached tables into equal shards of at most `width` columns.

    Only the tables at the indices `tables` (n,) are split. None if the rules for a table forbid this split, or if no
    table is wider.
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
    """Return the smallest number of equal column shards, of at most `width` columns each, into which a table can be
    split. `table` is the index of the table. Return 1 if the table needs no split, and 0 if the constraints or the
    number of columns of the table allow no suitable split.
    """
    dim, limits, name = task.tables[table].dim, task.limits[table], _plain_name(task, table)
    if dim <= width:
        return 1
    bound = name in task.constraints.pins or name in task.constraints.group_of
    for parts in range(-(-dim // width), min(limits.max_shards, len(limits.devices)) + 1):
        if not bound and dim % (parts * DIM_MULTIPLE) == 0 and dim // parts >= limits.min_dim:
            return parts
    return 0


def _divided_widths(widths: list[int], bytes_per_column: list[float], count: int) -> tuple[int, ...]:
    """Divide the table widths `widths` into `count` classes, and return the largest width of each class, in columns.
    The division is chosen so that the caches of all classes need the fewest bytes. All rows in the caches of a class
    are as wide as the largest width of the class.

    This is a dynamic program over ascending `widths`. With bytes(i, j) = (sum of `bytes_per_column` of the widths i to
    j - 1) x width j - 1, the fewest bytes of the first j widths in k classes are
    F(k, j) = min over i < j of F(k - 1, i) + bytes(i, j).
    """
    fewest = [0.0] + [float("inf")] * len(widths)  # F(k, j) for the present k
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
    """Divide all devices among the classes of cached tables, and return a tuple of device numbers for each class.
    The number of devices of a class is roughly in proportion to the bytes that the class needs.

    A class gets first the devices on which rules allow many of its tables and few tables of other classes. None if
    there is only one class, or if there are more classes than devices.
    """
    count, memory = task.topology.num_devices, np.array(task.shard_memory, dtype=np.float64)
    if not 1 < len(classes) <= count:
        return None
    need = [_class_bytes(task, tables) for tables in classes]
    share = [1] * len(classes)  # number of devices of each class
    for _ in range(count - len(classes)):
        share[int(np.argmax([size / devices for size, devices in zip(need, share, strict=True)]))] += 1
    allowed = np.zeros((len(classes), count))
    for row, members in zip(allowed, classes, strict=True):
        for table in members:
            row[list(task.limits[table].devices)] += 1 / len(members)
    chosen: list[tuple[int, ...]] = [()] * len(classes)
    left, host = list(range(count)), task.topology.host_size
    bytes_per_device = [-size / devices for size, devices in zip(need, share, strict=True)]  # negative: largest first
    for number in np.argsort(bytes_per_device, kind="stable").tolist():
        wanted = 2 * allowed[number] - allowed.sum(axis=0)
        left.sort(key=lambda device: (-wanted[device], -memory[device], device % host, device))
        chosen[number], left = tuple(sorted(left[: share[number]])), left[share[number] :]
    return chosen


def _class_bytes(task: Task, tables: Sequence[int]) -> float:
    """Return the bytes of device memory that the cached tables `tables`, given by their indices, need if they are not
    split. The tables share a cache, so each cached row takes as many columns as the widest of these tables has.
    """
    loads = task.loads.take(np.array(tables))
    return float(task.memory.device_bytes(loads, np.full(len(loads), loads.dim.max())).sum())


def _cached_rows(task: Task, tables: IntArray) -> IntArray:
    """Return the number of rows, (n,), in the cache of each of the tables in `tables` (n,)."""
    rows: IntArray = np.ceil(task.loads.rows[tables] * task.loads.cached[tables]).astype(np.int64)
    return rows


def _with_rules(task: Task, rules: Iterable[TableRule]) -> Task | None:
    """Return the task with `rules` added; None if the added rules contradict rules that the task already has."""
    try:
        return task.with_rules(rules)
    except UserError:  # the caller may have another way
        return None


def _plain_name(task: Task, table: int) -> str:
    return task.tables[table].name


def _name(task: Task, table: int) -> str:
    """Return the glob pattern that matches only the name of the table with this index."""
    return escape(_plain_name(task, table))
