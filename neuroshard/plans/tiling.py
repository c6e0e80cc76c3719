"""Whether shards make up their tables, each exactly once: the one place that knows."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from neuroshard.errors import UserError
from neuroshard.plans.shard import Placement, Shard
from neuroshard.tables import Table
from neuroshard.tasks.task import Task


def check_tiling(task: Task, placements: Sequence[Placement]) -> None:
    """Check that a task's tables are made up, by whole rows, of shards on its devices, at most one of each on a device.

    Raises:
        UserError: they are not; it names the table, and the row and column or the device.
    """
    shards: list[list[Shard]] = [[] for _ in task.tables]
    for placement in placements:
        table_of(task, placement.shard.table)
        shards[placement.shard.table].append(placement.shard)
    _check_devices(task, placements)
    for table, its in zip(task.tables, shards, strict=True):
        check_cover(table, its)
        check_whole_rows(table, its)


def table_of(task: Task, index: int) -> Table:
    """The table of that index.

    Raises:
        UserError: there is none.
    """
    if not 0 <= index < len(task.tables):
        raise UserError(f"plan: no table {index} in a task of {len(task.tables)} tables")
    return task.tables[index]


def _check_devices(task: Task, placements: Sequence[Placement]) -> None:
    taken: set[tuple[int, int]] = set()
    for placement in placements:
        index, device = placement.shard.table, placement.device
        name, last = task.tables[index].name, task.topology.num_devices - 1
        if device > last:
            raise UserError(f"plan: device {device} of table {name!r} must lie in 0..{last}")
        if (index, device) in taken:
            raise UserError(f"plan: two shards of table {name!r} on device {device}; merge them into one")
        taken.add((index, device))


def check_cover(table: Table, shards: Sequence[Shard]) -> None:
    """Check that shards, in any order, cover every element of a table exactly once.

    Raises:
        UserError: one reaches beyond the table, two overlap, or they leave a gap.
    """
    for shard in shards:
        _check_inside(table, shard)
    edges = sorted({0, *(edge for shard in shards for edge in (shard.column, shard.column_end))} - {table.dim})
    covered = dict.fromkeys(edges, 0)  # rows covered so far, without a gap, of the columns from an edge to the next
    for shard in sorted(shards, key=lambda shard: (shard.row, shard.column)):
        for edge in edges[bisect_left(edges, shard.column) : bisect_left(edges, shard.column_end)]:
            if covered[edge] > shard.row:
                raise UserError(f"plan: {_place(table, edge, shard.row)} is covered twice")
            if covered[edge] < shard.row:  # all shards to come begin below
                raise UserError(f"plan: {_place(table, edge, covered[edge])} is covered by no shard")
            covered[edge] = shard.row_end
    for edge, row in covered.items():
        if row < table.rows:
            raise UserError(f"plan: {_place(table, edge, row)} is covered by no shard")


def _check_inside(table: Table, shard: Shard) -> None:
    if shard.column_end > table.dim:
        raise UserError(
            f"plan: table {table.name!r} has {table.dim} columns; a shard of it ends with column {shard.column_end - 1}"
        )
    if shard.row_end > table.rows:
        raise UserError(
            f"plan: table {table.name!r} has {table.rows} rows; a shard of it ends with row {shard.row_end - 1}"
        )


def _place(table: Table, column: int, row: int) -> str:
    return f"column {column} of table {table.name!r}, row {row},"


def check_whole_rows(table: Table, shards: Iterable[Shard]) -> None:
    """Refuse what nothing can cost yet: shards, inside their table, that have a part of its rows.

    Raises:
        UserError: there is one.
    """
    for shard in shards:
        if shard.rows < table.rows:
            raise UserError(
                f"plan: a shard of table {table.name!r} has rows {shard.row} to {shard.row_end - 1} of {table.rows}; "
                "plans can't be costed that cut rows: give every shard all rows, cut columns only"
            )
