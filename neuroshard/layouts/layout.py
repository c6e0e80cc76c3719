"""What everybody asks of a form: how tables lie in it, what it asks of devices, and its words. A file answers each."""

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
    """What is laid out, as a task has it: tables (T,), the memory (T,) that each lies in, and the devices."""

    @property
    def tables(self) -> tuple[Table, ...]:
        """The T tables, each before it is cut."""

    @property
    def tier_assignments(self) -> tuple[TierAssignment, ...]:
        """(T,) the memory that each table lies in."""

    @property
    def topology(self) -> Topology:
        """The devices that share the task."""


class Layout(ABC):
    """One form of tables, and everything that is known of it; a class for each, without state.

    Attributes:
        form: its name.
        exchanges: what pooled tables in it exchange besides the input.
        host_exchanges: what those exchange instead that lie so over the devices of one host, not over all; none where
            none may.
        color: in pictures.
        words: TorchRec's sharding types for it, first the one by which its constraints allow it; none if it has none.
        free: whether any device may hold a shard, whatever others hold: searches place its shards one by one.
        dense: whether every row is updated in a step, from a gradient as large as the table, outside of fused kernels.
        own_samples: whether a device looks up its own samples only, and keeps what comes of them.
        everywhere: whether every device has a shard.
        blocks: whether shards are blocks of rows, which rules count as such.
        joins: whether tables that are kept together on one device may lie so.
        note: said behind a shard's name.
        counted: said of how many shards it counts as, where that isn't as many as devices hold one.
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

    def kind(self, placements: Sequence[Placement], topology: Topology) -> str:
        """Return the sharding type of a table with these placements, for people, such as "row-wise"."""
        return self.sharding_type(placements, topology).replace("_", "-")

    @abstractmethod
    def holds(self, table: Table, shards: Sequence[Shard]) -> bool:
        """Tell whether a table in these shards lies in this form; that they make it up is checked afterwards.

        A table that isn't placed has none: then only columns say so.
        """

    def fits(self, rows: int, count: int) -> bool:
        """Tell whether a table has rows enough to lie so on `count` devices."""
        return True

    def takes(self, dim: int) -> bool:
        """Return True if a table of `dim` columns may lie so: one wider than a shard may be must be cut in columns."""
        return self.free or dim <= MAX_SHARD_DIM

    @abstractmethod
    def over(self, whole: Whole, index: int, devices: Sequence[int]) -> list[Placement]:
        """Lay out the table of that index over a group of devices.

        Raises:
            UserError: there is no such table, or it is too small.
        """

    @abstractmethod
    def check(self, table: Table, placements: Sequence[Placement], topology: Topology) -> None:
        """Check that shards in it, at most one on a device, make up a table as the form is served.

        Raises:
            UserError: they don't; it names the table, and the row and column or the device.
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
        """Compute (n,) bytes that each load makes its device put into collectives; those of other forms don't count.

        `output_bytes` (n,) are of all embeddings that come of a batch, at the load's width.
        """

    def batch_shares(self, devices: int) -> int:
        """Count the equal shares of a batch, of which a device looks up one: with `own_samples` as many as devices."""
        return devices if self.own_samples else 1

    def num_shards(self, devices: int) -> int:
        """Count the shards that rules count where so many devices hold one."""
        return devices

    def unserved(self, widths: Collection[int], num_devices: int) -> str | None:
        """Say why no collection serves a sequence table in shards of such widths, one for each device; else None.

        It follows "is a sequence table".
        """
        return None

    def sharding_type(self, placements: Sequence[Placement], topology: Topology) -> str:
        """Return the sharding type of a table with these placements, of which there is at least one."""
        return self.type_names[0]

    def allowed_by(self, placements: Sequence[Placement], topology: Topology) -> set[str]:
        """Return the sharding types that allow a table to have these placements."""
        return self.sharding_types(placements, topology)

    def sharding_types(self, placements: Sequence[Placement], topology: Topology) -> set[str]:
        """List the sharding types that TorchRec reads such placements of a table right with."""
        return {self.sharding_type(placements, topology)}


def table_of(whole: Whole, index: int) -> Table:
    """Look up the table of that index.

    Raises:
        UserError: there is none.
    """
    if not 0 <= index < len(whole.tables):
        raise UserError(f"plan: no table {index} in a task of {len(whole.tables)} tables")
    return whole.tables[index]


def place_of(table: Table, column: int, row: int) -> str:
    """Name an element of a table, in words."""
    return f"column {column} of table {table.name!r}, row {row},"


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
                raise UserError(f"plan: {place_of(table, edge, shard.row)} is covered twice")
            if covered[edge] < shard.row:  # all shards to come begin below
                raise UserError(f"plan: {place_of(table, edge, covered[edge])} is covered by no shard")
            covered[edge] = shard.row_end
    for edge, row in covered.items():
        if row < table.rows:
            raise UserError(f"plan: {place_of(table, edge, row)} is covered by no shard")


def _check_inside(table: Table, shard: Shard) -> None:
    if shard.column_end > table.dim:
        raise UserError(
            f"plan: table {table.name!r} has {table.dim} columns; a shard of it ends with column {shard.column_end - 1}"
        )
    if shard.row_end > table.rows:
        raise UserError(
            f"plan: table {table.name!r} has {table.rows} rows; a shard of it ends with row {shard.row_end - 1}"
        )
