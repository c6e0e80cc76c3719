"""Whether shards make up their tables, each in one of the layouts."""

from collections.abc import Sequence

from neuroshard.layouts import Layout
from neuroshard.layouts.layout import table_of
from neuroshard.plumbing.errors import UserError
from neuroshard.tables import Table
from neuroshard.tasks.task import Task, Topology
from neuroshard.words.shard import Placement


def check_tiling(table: Table, placements: Sequence[Placement], layout: Layout, topology: Topology) -> None:
    """Check that placements make up a table in a layout, in one memory.

    Raises:
        UserError: they don't; it names the table, and the row and column or the device.
    """
    if other := next((one.home for one in placements if one.home != placements[0].home), None):
        first, second = sorted(map(str, (placements[0].home, other)))
        raise UserError(f"plan: shards of table {table.name!r} lie in {first} and in {second}; put all in one memory")
    layout.check(table, placements, topology)


def check_devices(task: Task, placements: Sequence[Placement]) -> None:
    """Check that a task has the tables and the devices of placements, at most one shard of each table on a device.

    Raises:
        UserError: it doesn't; it names the table and the device.
    """
    taken: set[tuple[int, int]] = set()
    for placement in placements:
        index, device = placement.shard.table, placement.device
        name, last = table_of(task, index).name, task.topology.num_devices - 1
        if device > last:
            raise UserError(f"plan: device {device} of table {name!r} must lie in 0..{last}")
        if (index, device) in taken:
            raise UserError(f"plan: two shards of table {name!r} on device {device}; merge them into one")
        taken.add((index, device))
