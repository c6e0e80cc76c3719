"""Table-wise and column-wise tables: a table is whole on one device, or is split by columns over several shards.
Every shard has all rows of the table.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import ClassVar

from neuroshard.cost.loads import Loads
from neuroshard.layouts.layout import Layout, Whole, check_cover, table_of
from neuroshard.layouts.widths import shard_widths
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.tables import Table
from neuroshard.words.collective import Collective
from neuroshard.words.form import Form
from neuroshard.words.placement import Placement, Shard
from neuroshard.words.topology import Topology

_WHOLE, _CUT, _ON_A_HOST = "table_wise", "column_wise", "table_column_wise"


class ColumnWise(Layout):
    """Table-wise and column-wise tables: each device looks up its shards for all samples, and sends the outputs.

    An all-to-all sends each output to the device of its sample. TorchRec's third sharding type of this family,
    table_column_wise, puts all shards of a table on one host; the shards themselves are the same.
    """

    form: ClassVar[Form] = Form.COLUMN_WISE
    exchanges: ClassVar[tuple[Collective, ...]] = (Collective.ALL_TO_ALL,)
    color: ClassVar[str] = "#55a868"
    words: ClassVar[tuple[str, ...]] = (_WHOLE, _CUT, _ON_A_HOST)
    free: ClassVar[bool] = True

    def holds(self, table: Table, shards: Sequence[Shard]) -> bool:
        """Return True if the shards belong to a table-wise or column-wise table.
        All shards must have all rows of the table, and at most one shard may have all columns.
        """
        return all(shard.rows >= table.rows for shard in shards) and sum(s.dim == table.dim for s in shards) < 2

    def over(self, whole: Whole, index: int, devices: Sequence[int]) -> list[Placement]:
        """Return the placement of a whole table on the first device in `devices`."""
        return place_column_wise(whole, [(index, table_of(whole, index).dim, devices[0])])

    def check(self, table: Table, placements: Sequence[Placement], topology: Topology) -> None:
        """Raise UserError if the shards do not cover every element of the table exactly once."""
        check_cover(table, [placement.shard for placement in placements])

    def share(self, loads: Loads, count: int) -> Loads:
        """Return the load of each whole table on the first of `count` devices: `loads` without changes.
        A whole table of this family is on the first device only (`over`), so this device does all work of the table.
        """
        return loads

    def sent_bytes_of(
        self, loads: Loads, output_bytes: FloatArray, num_devices: int
    ) -> Mapping[Collective, FloatArray]:
        """Return a dict with the bytes that a device sends for each of n loads, (n,), by collective.
        The only collective is the all-to-all. A device sends all outputs of a load, so the array is `output_bytes`.
        """
        return {Collective.ALL_TO_ALL: output_bytes}

    def unserved(self, widths: Collection[int], num_devices: int) -> str | None:
        """Return a text that says why TorchRec does not support a sequence table in shards of these widths.
        TorchRec needs shards of equal width. Return None if all widths are equal.
        """
        if len(set(widths)) < 2:
            return None
        return f"in shards of {' and '.join(map(str, sorted(set(widths))))} columns, not of equal width"

    def sharding_type(self, placements: Sequence[Placement], topology: Topology) -> str:
        """Return table_wise for a table in one shard, and column_wise for a table in several shards."""
        return _WHOLE if len(placements) == 1 else _CUT

    def allowed_by(self, placements: Sequence[Placement], topology: Topology) -> set[str]:
        """Return the sharding types that permit these placements of a table.
        For a whole table, these are table_wise, column_wise and table_column_wise. For a split table, these are
        column_wise and, if all shards are on one host, table_column_wise.
        """
        if len(placements) == 1:
            return set(self.words)
        size = topology.domain_size
        on_one_host = len({placement.device // size for placement in placements}) == 1
        return {_CUT, _ON_A_HOST} if on_one_host else {_CUT}

    def sharding_types(self, placements: Sequence[Placement], topology: Topology) -> set[str]:
        """Return the three sharding types of this family: table_wise, column_wise and table_column_wise.
        TorchRec interprets the shards in the same way with each of these types.
        """
        return set(self.words)


def place_column_wise(task: Whole, placed: Iterable[tuple[int, int, int]]) -> list[Placement]:
    """Return the placements of column-wise tables, given the number of columns of each table on each device.
    A tuple (table index, dim, device) in `placed` puts `dim` columns of the table on the device.

    Columns of one table on one device become one shard with all rows, or several shards if they are wider than a shard
    may be. The devices get the columns of a table in ascending order: the first device gets the first columns.

    Raises:
        UserError: a table index is not in the task.
    """
    dims: dict[tuple[int, int], int] = {}
    for table, dim, device in placed:
        dims[table, device] = dims.get((table, device), 0) + dim
    placements = []
    column, previous = 0, -1
    for (table, device), dim in sorted(dims.items()):
        whole, column = table_of(task, table), 0 if table != previous else column
        for width in shard_widths(whole, dim):
            shard = Shard(table, column, width, 0, whole.rows)
            placements.append(Placement(shard, device, task.tier_assignments[table]))
            column += width
        previous = table
    return placements
