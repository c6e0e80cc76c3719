"""Rectangles make up a table, or the place where they don't is named."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from neuroshard.layouts.layout import check_cover
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import UserError
from neuroshard.tables import Table
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing import ONCE
from neuroshard.words.placement import Home, Placement, Shard, Tier

PLACE = re.compile(r"plan: column (\d+) of table 't', row (\d+), is covered (twice|by no shard)")


def _table(rows, dim):
    return Table("t", rows, dim, 1.0, ONCE)


def _cut(draw, piece):
    """Two parts of a rectangle, one beside or below the other; itself if it is too small."""
    if piece.rows > 1 and (piece.dim == 4 or draw(st.booleans())):
        upper = draw(st.integers(1, piece.rows - 1))
        return [replace(piece, rows=upper), replace(piece, row=piece.row + upper, rows=piece.rows - upper)]
    if piece.dim > 4:
        left = 4 * draw(st.integers(1, piece.dim // 4 - 1))
        return [replace(piece, dim=left), replace(piece, column=piece.column + left, dim=piece.dim - left)]
    return [piece]


@st.composite
def tilings(draw, most_rows=10**6, most_units=64):
    """A table and rectangles that tile it, in any order: it is cut again and again, all the way across a piece."""
    table = _table(draw(st.integers(1, most_rows)), 4 * draw(st.integers(1, most_units)))
    pieces = [Shard(0, 0, table.dim, 0, table.rows)]
    for _ in range(draw(st.integers(0, 10))):
        pieces += _cut(draw, pieces.pop(draw(st.integers(0, len(pieces) - 1))))
    return table, draw(st.permutations(pieces))


@given(tilings())
def test_what_is_cut_all_the_way_across_tiles(tiling):
    check_cover(*tiling)


def test_tilings_that_no_cut_makes_tile_too():
    """Four around one."""
    check_cover(
        _table(3, 12),
        [Shard(0, 0, 8, 0, 1), Shard(0, 8, 4, 0, 2), Shard(0, 4, 8, 2, 1), Shard(0, 0, 4, 1, 2), Shard(0, 4, 4, 1, 1)],
    )


@given(tilings(), st.data())
def test_one_rectangle_less_or_twice_is_refused(tiling, data):
    table, pieces = tiling
    chosen = data.draw(st.sampled_from(pieces))
    with pytest.raises(UserError, match="covered by no shard"):
        check_cover(table, [piece for piece in pieces if piece != chosen])
    with pytest.raises(UserError, match="covered twice"):
        check_cover(table, [*pieces, chosen])


@given(tilings(), st.data())
def test_one_rectangle_moved_or_resized_is_refused(tiling, data):
    table, pieces = tiling
    chosen = data.draw(st.sampled_from(pieces))
    field = data.draw(st.sampled_from(["column", "dim", "row", "rows"]))
    step = 4 if field in ("column", "dim") else 1
    least = {"dim": 4, "rows": 1}.get(field, 0)
    value = data.draw(st.integers(least // step, getattr(chosen, field) // step + 20)) * step
    assume(value != getattr(chosen, field))
    with pytest.raises(UserError, match=r"covered twice|covered by no shard|ends with"):
        check_cover(table, [replace(piece, **{field: value}) if piece is chosen else piece for piece in pieces])


@st.composite
def rectangles(draw):
    """A small table and rectangles inside it: a tiling with some pieces replaced, or anything at all."""
    table, pieces = draw(tilings(most_rows=5, most_units=5))
    for _ in range(draw(st.integers(0, 2))):
        row, unit = draw(st.integers(0, table.rows - 1)), draw(st.integers(0, table.dim // 4 - 1))
        rows, units = draw(st.integers(1, table.rows - row)), draw(st.integers(1, table.dim // 4 - unit))
        found = Shard(0, 4 * unit, 4 * units, row, rows)
        pieces = [*pieces[1:], found] if draw(st.booleans()) else [*pieces, found]
    return table, pieces


@given(rectangles())
@settings(max_examples=300)
def test_the_answer_is_that_of_counting_every_element(case):
    """Accepted if and only if every element is covered once, and what is named is an element that isn't."""
    table, pieces = case
    count = np.zeros((table.rows, table.dim), dtype=int)
    for piece in pieces:
        count[piece.row : piece.row_end, piece.column : piece.column_end] += 1
    if (count == 1).all():
        check_cover(table, pieces)
        return
    with pytest.raises(UserError) as caught:
        check_cover(table, pieces)
    column, row, how = PLACE.fullmatch(str(caught.value)).groups()
    covered = count[int(row), int(column)]
    assert covered == 0 if how == "by no shard" else covered > 1


@pytest.mark.parametrize(
    ("shard", "message"),
    [
        (Shard(0, 8, 12, 0, 10), "has 16 columns; a shard of it ends with column 19"),
        (Shard(0, 0, 16, 3, 10), "has 10 rows; a shard of it ends with row 12"),
    ],
)
def test_what_reaches_beyond_the_table_is_named(shard, message):
    with pytest.raises(UserError, match=message):
        check_cover(_table(10, 16), [shard])


def test_many_blocks_are_checked_by_what_they_touch():
    """A column beside as many row blocks as there are devices: no table of rows x columns is made."""
    rows = 1 << 40
    block = rows // 4096
    blocks = [Shard(0, 4, 65532, block * i, block) for i in range(4096)]
    check_cover(_table(rows, 1 << 16), [Shard(0, 0, 4, 0, rows), *blocks])


TASK = Task((_table(10, 16), replace(_table(20, 8), name="u")), Topology(3, 1 << 20), 64)


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ([((0, 0, 16, 0, 10), 3)], "device 3 of table 't' must lie in 0..2"),
        ([((2, 0, 16, 0, 10), 0)], "no table 2 in a task of 2 tables"),
        ([((0, 0, 8, 0, 10), 1), ((0, 8, 8, 0, 10), 1)], "two shards of table 't' on device 1"),
        ([((0, 0, 16, 0, 10), 0)], "column 0 of table 'u', row 0, is covered by no shard"),
        ([((0, 0, 16, 0, 4), 0), ((0, 0, 16, 4, 6), 1), ((1, 0, 8, 0, 20), 0)], "blocks of rows on 2 device"),
    ],
)
def test_placements_are_checked_against_their_task(places, message):
    with pytest.raises(UserError, match=message):
        Plan(TASK, tuple(Placement(Shard(*shard), device) for shard, device in places))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Shard(0, 0, 6, 0, 10), "shard: dim=6 must be a multiple of 4"),
        (lambda: Shard(0, 2, 8, 0, 10), "shard: column=2 must be a multiple of 4"),
        (lambda: Shard(-1, 0, 8, 0, 10), "shard: table=-1 must be"),
        (lambda: Shard(0, 0, 8, -1, 10), "shard: row=-1 must be"),
        (lambda: Shard(0, 0, 8, 0, 0), "shard: rows=0 must be"),
        (lambda: Shard(0, "0", 8, 0, 10), "shard: column='0' must be a whole number"),
        (lambda: Placement(Shard(0, 0, 8, 0, 10), -1), "placement: device=-1 must be"),
        (lambda: Home("disk"), "unknown tier 'disk'; valid: cached, device, host"),
        (lambda: Home(Tier.CACHED), "tier 'cached' with cached=None"),
        (lambda: Home(Tier.HOST, 0.5), "tier 'host' with cached=0.5"),
        (lambda: Home(Tier.CACHED, 1.5), "cached=1.5"),
    ],
)
def test_shards_and_placements_are_valid_by_construction(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_numbers_may_come_from_numpy():
    assert Shard(*np.array([0, 4, 8, 0, 10])) == Shard(0, 4, 8, 0, 10)
    assert Placement(Shard(0, 4, 8, 0, 10), np.int64(2)) == Placement(Shard(0, 4, 8, 0, 10), 2)
