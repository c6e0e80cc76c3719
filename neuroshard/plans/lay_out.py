"""Placements of one table in a form other than columns: `assemble` makes plans of columns."""

from collections.abc import Sequence

from neuroshard.plans.row_blocks import row_blocks
from neuroshard.plans.shard import Placement, Shard
from neuroshard.plans.tiling import table_of
from neuroshard.tasks.task import Task


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
        Placement(Shard(table, first, end - first, row, rows), device)
        for device, (row, rows) in zip(ranks, row_blocks(whole, len(ranks)), strict=True)
    ]


def in_copies(task: Task, table: int) -> list[Placement]:
    """A copy of a table on every device.

    Raises:
        UserError: there is no such table.
    """
    whole = table_of(task, table)
    return [Placement(Shard(table, 0, whole.dim, 0, whole.rows), device) for device in range(task.topology.num_devices)]
