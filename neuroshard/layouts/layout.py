"""The base class for families of sharding types (column-wise, row-wise and data-parallel).
A family defines how tables are placed on devices, which loads the shards cause, and which sharding types of TorchRec
belong to the family.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, Protocol

from neuroshard.cost.loads import Loads
from neuroshard.plumbing.arrays import FloatArray, IntArray
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import MAX_SHARD_DIM
from neuroshard.tables import Table
from neuroshard.words.collective import Collective
from neuroshard.words.form import Form
from neuroshard.words.placement import Placement, Shard, TierAssignment
from neuroshard.words.topology import Topology


class Whole(Protocol):
    """The attributes of a task that a family reads to place a table: tables, tier assignments and devices.
    This protocol stands for the class `Task`. T is the number of tables.
    """

    @property
    def tables(self) -> tuple[Table, ...]:
        """(T,) all tables of the task, before they are divided into shards."""

    @property
    def tier_assignments(self) -> tuple[TierAssignment, ...]:
        """(T,) tier assignment of each of T tables: the memory tier, and the share of rows in the cache."""

    @property
    def topology(self) -> Topology:
        """The devices of the task."""


class Layout(ABC):
    """The rules of a family of sharding types, such as column-wise.
    A family defines how tables are placed, which loads the shards cause, and which bytes the devices exchange. Each
    subclass is one family, and its objects have no state.

    Attributes:
        form: name of the family.
        exchanges: collectives of the family's pooled tables, without the input dist.
        host_exchanges: collectives of tables on the devices of one host, instead of `exchanges`; empty if the family
            has no such tables.
        color: color of the family in pictures.
        words: TorchRec's sharding types of the family; the first of them is used in TorchRec's constraints. Empty if
            TorchRec has none.
        free: True if shards can be placed independently, each on any device, so searches place them one by one.
        dense: True if every step updates every row, from a gradient as large as the table, outside of fused kernels.
        own_samples: True if a device looks up only its own samples, and keeps the outputs.
        everywhere: True if every device has a shard.
        blocks: True if shards are blocks of rows, which the limits min_blocks and max_blocks count.
        joins: True if tables that are kept together on one device may have these sharding types.
        note: text after the name of a shard in a printed plan.
        counted: text after a table's number of devices, about the number of shards that the table counts as; empty if
            the two numbers are equal.
    """

    form: ClassVar[Form]
    exchanges: ClassVar[tuple[Collective, ...]]
    host_exchanges: ClassVar[tuple[Collective, ...]] = ()
    color: ClassVar[str]
    words: ClassVar[tuple[str, ...]] = ()
    free: ClassVar[bool] = False
    dense: ClassVar[bool] = False
    own_samples: ClassVar[bool] = False
    everywhere: ClassVar[bool] = False
    blocks: ClassVar[bool] = False
    joins: ClassVar[bool] = True
    note: ClassVar[str] = ""
    counted: ClassVar[str] = ""

    def __str__(self) -> str:
        return self.form.value

    @property
    def type_names(self) -> tuple[str, ...]:
        """The names by which settings refer to the family's sharding types.
        These are TorchRec's names, such as "row_wise". If TorchRec has no sharding type of this family, the name of the
        family is the only name.
        """
        return self.words or (self.form.value,)

    @abstractmethod
    def holds(self, table: Table, shards: Sequence[Shard]) -> bool:
        """Return True if a table that is divided into these shards belongs to this family of sharding types.

        This method does not check that the shards cover the table; `check` does. For a table without shards, which is
        not placed, only `ColumnWise` returns True.
        """

    def fits(self, rows: int, count: int) -> bool:
        """Return True if a table with `rows` rows can be sharded over `count` devices by the rules of this family.
        Only row-wise tables have a limit: a table must have enough rows that no device gets an empty block of rows.
        """
        return True

    def takes(self, dim: int) -> bool:
        """Return True if a table of `dim` columns may belong to this family.
        Only a family that splits tables by columns accepts tables that are wider than a shard may be.
        """
        return self.free or dim <= MAX_SHARD_DIM

    @abstractmethod
    def over(self, whole: Whole, index: int, devices: Sequence[int]) -> list[Placement]:
        """Place a table on a group of devices by the rules of this family, and return the placements.
        `index` is the table's index in the task.

        Raises:
            UserError: there is no table with this index, or the table has too few rows.
        """

    @abstractmethod
    def check(self, table: Table, placements: Sequence[Placement], topology: Topology) -> None:
        """Raise UserError unless the placements cover the whole table and follow the rules of this family.
        For example, a data-parallel table must be on every device.

        Raises:
            UserError: the message names the table, and the row and column or the device.
        """

    def placed(
        self, loads: Loads, which: IntArray, tables: Sequence[Table], placements: Sequence[Placement], num_devices: int
    ) -> Loads:
        """Return the loads of n placements, (n,), after each load of this family is reduced to the work of one device.
        In the argument `loads`, each load has all rows of the table and the lookups of all samples. In the result, a
        row-wise load, for example, has only the rows of one block, and a data-parallel load has only the samples of one
        device. The loads of other families are unchanged.

        Args:
            loads: (n,) one load for each placement, with all rows of the table and the lookups of all samples.
            which: (m,) indices of the loads of this family.
            tables: the tables of the task.
            placements: (n,) the placements.
            num_devices: number of devices.
        """
        return loads

    @abstractmethod
    def share(self, loads: Loads, count: int) -> Loads:
        """Return the load on the first device for each table, if each table is sharded over `count` devices.
        `loads` has the load of each whole table. The tables are sharded by the rules of this family. For a row-wise
        table, for example, the result is the load of the first block of rows.

        Lookups are assumed to be spread evenly over the rows of a table.
        """

    @abstractmethod
    def sent_bytes_of(
        self, loads: Loads, output_bytes: FloatArray, num_devices: int
    ) -> Mapping[Collective, FloatArray]:
        """Return the number of bytes that a device sends because of each of n loads, separately for each collective.
        A load is the work that one shard causes on one device. The result is a dict. The keys are the collectives of
        this family, such as the all-to-all for column-wise tables, and the values are arrays (n,).

        The values for loads of other families have no meaning. `output_bytes` (n,) are the bytes of all output
        embeddings in a batch, at the width of the load.
        """

    def batch_shares(self, devices: int) -> int:
        """Return the number of equal parts into which a batch is divided; each device looks up one part.
        The result is 1 if every device looks up the whole batch.

        This is the number of devices if a device looks up only its own samples (`own_samples`), else 1.
        """
        return devices if self.own_samples else 1

    def num_shards(self, devices: int) -> int:
        """Return the number of shards that a table on `devices` devices counts as.
        Limits such as `max_shards` refer to this number.
        """
        return devices

    def unserved(self, widths: Collection[int], num_devices: int) -> str | None:
        """Return the reason why TorchRec does not support a sequence table that is sharded in this way, as text.
        Return None if TorchRec supports the table. `widths` has the number of columns of each shard of the table.

        The shards of a row-wise table are on different devices. The text follows "is a sequence table".
        """
        return None

    def sharding_type(self, placements: Sequence[Placement], topology: Topology) -> str:
        """Return the sharding type of a table with these placements; there must be at least one placement."""
        return self.type_names[0]

    def allowed_by(self, placements: Sequence[Placement], topology: Topology) -> set[str]:
        """Return the sharding types that permit these placements of a table.
        A constraint permits the placements if the constraint lists at least one of these types. For example, table_wise
        and column_wise both permit a whole table on one device.
        """
        return self.sharding_types(placements, topology)

    def sharding_types(self, placements: Sequence[Placement], topology: Topology) -> set[str]:
        """Return the sharding types that a TorchRec plan may state for these placements of a table.
        With each of these types, TorchRec interprets the shards as they are placed.
        """
        return {self.sharding_type(placements, topology)}


def table_of(whole: Whole, index: int) -> Table:
    """Return the table with this index in the task.

    Raises:
        UserError: the task has no table with this index.
    """
    if not 0 <= index < len(whole.tables):
        raise UserError(
            "plan-table-outside",
            f"the plan places table number {index}",
            limit=f"the task has the tables 0 to {len(whole.tables) - 1} (numbers begin at 0)",
            remedy="Correct the number of the table",
        )
    return whole.tables[index]


def place_of(table: Table, column: int, row: int) -> str:
    """Return the position of an element of a table as text, such as "row 1, column 4 of table 'x'"."""
    return f"row {row}, column {column} of table {table.name!r}"


def check_cover(table: Table, shards: Sequence[Shard]) -> None:
    """Raise UserError unless the shards, in any order, cover every element of a table exactly once.

    Raises:
        UserError: a shard reaches beyond the table, two shards overlap, or the shards leave a gap.
    """
    for shard in shards:
        _check_inside(table, shard)
    edges = sorted({0, *(edge for shard in shards for edge in (shard.column, shard.column_end))} - {table.dim})
    covered = dict.fromkeys(edges, 0)  # for the columns from each edge to the next: number of covered rows so far
    for shard in sorted(shards, key=lambda shard: (shard.row, shard.column)):
        for edge in edges[bisect_left(edges, shard.column) : bisect_left(edges, shard.column_end)]:
            if covered[edge] > shard.row:
                raise UserError(
                    "plan-shards-overlap",
                    f"{place_of(table, edge, shard.row)} is in more than one shard",
                    limit="the shards of a table must not overlap",
                    remedy="Correct the shards of the table, or search for the plan again",
                )
            if covered[edge] < shard.row:  # shards are sorted by first row, so no later shard can fill this gap
                raise _gap(table, edge, covered[edge])
            covered[edge] = shard.row_end
    for edge, row in covered.items():
        if row < table.rows:
            raise _gap(table, edge, row)


def _gap(table: Table, column: int, row: int) -> UserError:
    """Return the error for an element of a table that is not in any shard."""
    return UserError(
        "plan-shards-gap",
        f"{place_of(table, column, row)} is not in any shard",
        limit="the shards of a table must together cover the whole table",
        remedy="Correct the shards of the table, or search for the plan again",
    )


def _check_inside(table: Table, shard: Shard) -> None:
    """Raise UserError if a shard has columns or rows that the table does not have."""
    if shard.column_end > table.dim:
        raise UserError(
            "plan-shard-columns-outside",
            f"a shard of table {table.name!r} ends with column {shard.column_end - 1}",
            limit=f"the table has {table.dim} columns, 0 to {table.dim - 1}",
            remedy="Correct the shard, or search for the plan again",
        )
    if shard.row_end > table.rows:
        raise UserError(
            "plan-shard-rows-outside",
            f"a shard of table {table.name!r} ends with row {shard.row_end - 1}",
            limit=f"the table has {table.rows} rows, 0 to {table.rows - 1}",
            remedy="Correct the shard, or search for the plan again",
        )
