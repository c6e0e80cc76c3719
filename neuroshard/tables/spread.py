"""How a table's lookups are spread over its rows: what ranges of rows get of them."""

import numpy as np

from neuroshard.plumbing.arrays import FloatArray, IntArray
from neuroshard.tables.reuse import MEAN_COUNTS, reuse_of_mean
from neuroshard.tables.table import Table


def lookup_share(table: Table, first: IntArray, rows: IntArray) -> FloatArray:
    """(m,) share of the lookups that are of `rows` (m,) rows from `first` (m,) on.

    By `row_lookups`, within one of its blocks by rows; without it, all by rows.
    """
    share = np.array(table.row_lookups or (1.0,))
    return _inside(share / share.sum(), table.rows, first, rows)


def range_reuse(table: Table, lookups: float, first: IntArray, rows: IntArray) -> FloatArray:
    """(m, 17) reuse histogram of `rows` (m,) rows from `first` (m,) on, in a batch of so many lookups of the table.

    Lookups that are spread evenly have the table's histogram everywhere. Else rows are looked up the more often the
    hotter their block is: of the unique rows that the table's histogram tells of, each block of `row_lookups` has a
    part in proportion to the rows that its lookups would touch if they were spread evenly inside it, and the histogram
    is bent to the lookups of a unique row that this leaves. Where rows are sorted by how hot they are, and blocks are
    fine enough, that is within some percent of counting.
    """
    reuse = np.tile(np.array(table.reuse), (len(first), 1))
    if not table.row_lookups:
        return reuse
    share, size = np.array(table.row_lookups), table.rows / len(table.row_lookups)
    touched = -size * np.expm1(-lookups * share / size)
    unique = touched * (lookups / float(reuse[0] @ MEAN_COUNTS) / touched.sum())
    found, inside = lookups * lookup_share(table, first, rows), _inside(unique, table.rows, first, rows)
    return reuse_of_mean(reuse, np.divide(found, inside, out=np.ones(len(first)), where=inside > 0))


def _inside(blocks: FloatArray, table_rows: int, first: IntArray, rows: IntArray) -> FloatArray:
    """(m,) what ranges of a table's rows have of something that K equal blocks of rows, (K,), have so much of."""
    before = np.concatenate([[0.0], blocks.cumsum()])
    ends = np.stack([first, first + rows]) / table_rows * len(blocks)
    start, end = np.interp(ends, np.arange(len(before)), before)
    inside: FloatArray = end - start
    return inside
