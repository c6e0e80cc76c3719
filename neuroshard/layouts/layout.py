"""The interface of a family of sharding types: its placements, its loads on devices, and its names."""

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
    """Tables (T,), the tier assignment (T,) of each table, and the devices. A task has all three."""

    @property
    def tables(self) -> tuple[Table, ...]:
        """The T tables, each before it is cut."""

    @property
    def tier_assignments(self) -> tuple[TierAssignment, ...]:
        """(T,) the memory that holds each table."""

    @property
    def topology(self) -> Topology:
        """The devices that share the task."""


class Layout(ABC):
    """A family of sharding types, and everything that is known of it; each subclass is a family, without state.

    Attributes:
        form: name of the family.
        exchanges: collectives of the family's pooled tables, without the input.
        host_exchanges: collectives of tables on the devices of one host, instead of `exchanges`; empty if the family
            has no such tables.
        color: color of the family in pictures.
        words: TorchRec's sharding types of the family; the first of them is used in TorchRec's constraints. Empty if
            TorchRec has none.
        free: True if any device may hold a shard, whatever other devices hold: searches place the shards one by one.
        dense: True if every step updates every row, from a gradient as large as the table, outside of fused kernels.
        own_samples: True if a device looks up only its own samples, and keeps the outputs.
        everywhere: True if every device has a shard.
        blocks: True if shards are blocks of rows, which rules count as blocks.
        joins: True if tables that are kept together on one device may have these sharding types.
        note: text behind the name of a shard in a printed plan.
        counted: text behind the number of a table's devices that says as how many shards the table counts, if the two
            numbers differ.
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
        """The names of its sharding types in settings: TorchRec's words, or its own name if TorchRec has none."""
        return self.words or (self.form.value,)

    @abstractmethod
    def holds(self, table: Table, shards: Sequence[Shard]) -> bool:
        """Return True if a table with these shards is of this family; `check` sees that they make up the table.

        A table that is not placed has no shards: then only `Columns` returns True.
        """

    def fits(self, rows: int, count: int) -> bool:
        """Return True if a table with `rows` rows is large enough for `count` devices."""
        return True

    def takes(self, dim: int) -> bool:
        """Return True if a table of `dim` columns may be of this family; a too wide table must be split by columns."""
        return self.free or dim <= MAX_SHARD_DIM

    @abstractmethod
    def over(self, whole: Whole, index: int, devices: Sequence[int]) -> list[Placement]:
        """Lay out the table of that index over a group of devices.

        Raises:
            UserError: there is no such table, or the table has too few rows.
        """

    @abstractmethod
    def check(self, table: Table, placements: Sequence[Placement], topology: Topology) -> None:
        """Check that placements, at most one on a device, make up the table, and that the family allows them.

        Raises:
            UserError: the placements do not; the message names the table, and the row and column or the device.
        """

    def placed(
        self, loads: Loads, which: IntArray, tables: Sequence[Table], placements: Sequence[Placement], num_devices: int
    ) -> Loads:
        """Cut loads (n,), made as if placements held all rows for all samples, to what those at `which` (m,) hold."""
        return loads

    @abstractmethod
    def share(self, loads: Loads, count: int) -> Loads:
        """Compute what the first of `count` devices has of each of some whole tables with evenly spread lookups."""

    @abstractmethod
    def given_bytes(self, loads: Loads, output_bytes: FloatArray, num_devices: int) -> Mapping[Collective, FloatArray]:
        """Compute (n,) bytes that the device of each load puts into collectives; loads of other families do not count.

        `output_bytes` (n,) are the bytes of all embeddings of a batch, at the width of the load.
        """

    def batch_shares(self, devices: int) -> int:
        """Count the equal shares of a batch, of which a device looks up one: with `own_samples` as many as devices."""
        return devices if self.own_samples else 1

    def num_shards(self, devices: int) -> int:
        """Return the number of shards, as rules count them, of a table on this number of devices."""
        return devices

    def unserved(self, widths: Collection[int], num_devices: int) -> str | None:
        """Return why no collection serves a sequence table in shards of these widths, one per device, or None.

        The text follows "is a sequence table".
        """
        return None

    def sharding_type(self, placements: Sequence[Placement], topology: Topology) -> str:
        """Return the sharding type of a table with these placements, of which there is at least one."""
        return self.type_names[0]

    def allowed_by(self, placements: Sequence[Placement], topology: Topology) -> set[str]:
        """Return the sharding types that allow a table to have these placements."""
        return self.sharding_types(placements, topology)

    def sharding_types(self, placements: Sequence[Placement], topology: Topology) -> set[str]:
        """List the sharding types with which TorchRec reads these placements of a table correctly."""
        return {self.sharding_type(placements, topology)}


def table_of(whole: Whole, index: int) -> Table:
    """Look up the table of that index.

    Raises:
        UserError: there is no table of that index.
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
    """Name an element of a table, in words."""
    return f"row {row}, column {column} of table {table.name!r}"


def check_cover(table: Table, shards: Sequence[Shard]) -> None:
    """Check that shards, in any order, cover every element of a table exactly once.

    Raises:
        UserError: a shard reaches beyond the table, two shards overlap, or the shards leave a gap.
    """
    for shard in shards:
        _check_inside(table, shard)
    edges = sorted({0, *(edge for shard in shards for edge in (shard.column, shard.column_end))} - {table.dim})
    covered = dict.fromkeys(edges, 0)  # rows covered so far, without a gap, of the columns from an edge to the next
    for shard in sorted(shards, key=lambda shard: (shard.row, shard.column)):
        for edge in edges[bisect_left(edges, shard.column) : bisect_left(edges, shard.column_end)]:
            if covered[edge] > shard.row:
                raise UserError(
                    "plan-shards-overlap",
                    f"{place_of(table, edge, shard.row)} is in more than one shard",
                    limit="the shards of a table must not overlap",
                    remedy="Correct the shards of the table, or search for the plan again",
                )
            if covered[edge] < shard.row:  # all shards to come begin below
                raise _gap(table, edge, covered[edge])
            covered[edge] = shard.row_end
    for edge, row in covered.items():
        if row < table.rows:
            raise _gap(table, edge, row)


def _gap(table: Table, column: int, row: int) -> UserError:
    """Make the error that an element of a table is in no shard."""
    return UserError(
        "plan-shards-gap",
        f"{place_of(table, column, row)} is not in any shard",
        limit="the shards of a table must together cover the whole table",
        remedy="Correct the shards of the table, or search for the plan again",
    )


def _check_inside(table: Table, shard: Shard) -> None:
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
