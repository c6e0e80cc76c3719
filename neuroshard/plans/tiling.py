"""Whether shards make up their tables, each exactly once: the one place that knows."""

from bisect import bisect_left
from collections.abc import Collection, Sequence

from neuroshard.plans.row_blocks import check_row_blocks
from neuroshard.plumbing.errors import UserError
from neuroshard.tables import Table
from neuroshard.tasks.task import Task, Topology
from neuroshard.words.form import Form
from neuroshard.words.home import ON_DEVICE, Home
from neuroshard.words.shard import Placement, Shard, by_table, form_of


def check_tiling(task: Task, placements: Sequence[Placement]) -> None:
    """Check that a task's tables lie on its devices in one of the forms, at most one shard of each on a device.

    Raises:
        UserError: they don't; it names the table, and the row and column or the device.
    """
    for placement in placements:
        table_of(task, placement.shard.table)
    _check_devices(task, placements)
    for table, its in zip(task.tables, by_table(placements, len(task.tables)), strict=True):
        _check_table(table, its, task.topology)


def _check_table(table: Table, placements: Sequence[Placement], topology: Topology) -> None:
    shards = [placement.shard for placement in placements]
    form = form_of(table, shards)
    _check_homes(table, {placement.home for placement in placements}, form)
    if form is Form.COPIES:
        _check_copies(table, placements, topology.num_devices)
        return
    check_cover(table, shards)
    if form is Form.ROWS:
        check_row_blocks(table, placements, topology)


def _check_homes(table: Table, homes: Collection[Home], form: Form) -> None:
    if len(homes) > 1:
        first, second = sorted(map(str, homes))[:2]
        raise UserError(f"plan: shards of table {table.name!r} lie in {first} and in {second}; put all in one memory")
    if form is Form.COPIES and ON_DEVICE not in homes:
        raise UserError(f"plan: copies of table {table.name!r} lie in {min(homes)}; copies lie on devices only")


def _check_copies(table: Table, placements: Sequence[Placement], num_devices: int) -> None:
    """Of a table of which more than one device has a copy: all must, and nothing else of it."""
    for placement in placements:
        if placement.shard.dim < table.dim:
            raise UserError(
                f"plan: {_place(table, placement.shard.column, 0)} is covered twice: by copies of the whole table and "
                f"a shard on device {placement.device}"
            )
    if missing := set(range(num_devices)).difference(placement.device for placement in placements):
        raise UserError(
            f"plan: table {table.name!r} is covered twice, by copies on {len(placements)} devices, and device "
            f"{min(missing)} has none; put it on one device, or on each of the {num_devices}"
        )


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
