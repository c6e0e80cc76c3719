"""Whether shards make up their tables, each in one of the layouts."""

from collections.abc import Sequence

from neuroshard.layouts import layout_of
from neuroshard.layouts.layout import table_of
from neuroshard.plumbing.errors import UserError
from neuroshard.tables import Table
from neuroshard.tasks.task import Task, Topology
from neuroshard.words.shard import Placement, by_table


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
    if len(homes := {placement.home for placement in placements}) > 1:
        first, second = sorted(map(str, homes))[:2]
        raise UserError(f"plan: shards of table {table.name!r} lie in {first} and in {second}; put all in one memory")
    layout_of(table, [placement.shard for placement in placements]).check(table, placements, topology)


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
