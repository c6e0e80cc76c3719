"""Parts of tables: a shard is a rectangle, a placement puts it on a device, in a home."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.schema import Count, Device, Dim, FirstRow, Offset, Rows
from neuroshard.words.home import ON_DEVICE, Home


@dataclass(frozen=True, order=True)
@checked
class Shard:
    """A rectangle of a table: `dim` of its columns from `column` on, of `rows` of its rows from `row` on.

    Attributes:
        table: its index in the task.
        column, dim: first column and number of columns, both multiples of 4.
        row, rows: first row and number of rows.
    """

    table: Count
    column: Offset
    dim: Dim
    row: FirstRow
    rows: Rows

    @property
    def column_end(self) -> int:
        """The first column behind it."""
        return self.column + self.dim

    @property
    def row_end(self) -> int:
        """The first row behind it."""
        return self.row + self.rows


_Rows = TypeVar("_Rows", int, FloatArray)


def block_rows(rows: _Rows, count: int) -> _Rows:
    """Count the rows of each of `count` equal blocks of a table of `rows`; the last one has what is left."""
    return -(-rows // count)


@dataclass(frozen=True, order=True)
@checked
class Placement:
    """A shard in its place.

    Attributes:
        shard: what is placed.
        device: where.
        home: the memory that holds it; the same for all shards of a table.
    """

    shard: Shard
    device: Device
    home: Home = ON_DEVICE


def by_table(placements: Iterable[Placement], num_tables: int) -> tuple[tuple[Placement, ...], ...]:
    """Group placements by table: (T,) those of each, in their order."""
    grouped: list[list[Placement]] = [[] for _ in range(num_tables)]
    for placed in placements:
        grouped[placed.shard.table].append(placed)
    return tuple(map(tuple, grouped))
