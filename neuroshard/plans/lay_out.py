"""Placements of tables, form by form: what plans are put together from. Each table lies in its task's home for it."""

from collections.abc import Iterable, Sequence

from neuroshard.plans.row_blocks import row_blocks
from neuroshard.plans.tiling import table_of
from neuroshard.tasks.task import Task
from neuroshard.words.shard import Placement, Shard


def in_columns(task: Task, placed: Iterable[tuple[int, int, int]]) -> list[Placement]:
    """`dim` columns of a table on a device, for each (table index, dim, device) in `placed`.

    Columns of one table that meet on one device become one shard, with all rows; columns are handed out in order of
    device.

    Raises:
        UserError: there is no such table.
    """
    dims: dict[tuple[int, int], int] = {}
    for table, dim, device in placed:
        dims[table, device] = dims.get((table, device), 0) + dim
    placements = []
    column, previous = 0, -1
    for (table, device), dim in sorted(dims.items()):
        column = 0 if table != previous else column
        shard = Shard(table, column, dim, 0, table_of(task, table).rows)
        placements.append(Placement(shard, device, task.homes[table]))
        column, previous = column + dim, table
    return placements


def in_rows(task: Task, table: int, devices: Sequence[int], columns: tuple[int, int] | None = None) -> list[Placement]:
    """A table's rows, in a block on each of the devices of a group.

    Args:
        task: whose table it is.
        table: its index.
        devices: all of the task, or those of one host.
        columns: the first and the one behind the last; None for all. Others must lie on other hosts.

    Raises:
        UserError: there is no such table, or it has too few rows.
    """
    whole = table_of(task, table)
    first, end = columns or (0, whole.dim)
    ranks = sorted(devices)
    return [
        Placement(Shard(table, first, end - first, row, rows), device, task.homes[table])
        for device, (row, rows) in zip(ranks, row_blocks(whole, len(ranks)), strict=True)
    ]


def in_copies(task: Task, table: int) -> list[Placement]:
    """A copy of a table on every device.

    Raises:
        UserError: there is no such table.
    """
    whole = table_of(task, table)
    shard = Shard(table, 0, whole.dim, 0, whole.rows)
    return [Placement(shard, device) for device in range(task.topology.num_devices)]
