"""Whether shards cover a table, each element exactly once."""

from bisect import bisect_left
from collections.abc import Sequence

from neuroshard.layouts.layout import place_of
from neuroshard.plumbing.errors import UserError
from neuroshard.tables import Table
from neuroshard.words.shard import Shard


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
