"""Rectangles make up a table, or the place where they don't is named."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from neuroshard import Placement, Shard, Tier, TierAssignment, UserError
from neuroshard.layouts.layout import check_cover
from tests.kit.messages import refused
from tests.kit.plans import table

PLACE = re.compile(r"plan: column (\d+) of table 't', row (\d+), is covered (twice|by no shard)")


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
    whole = table(rows=draw(st.integers(1, most_rows)), dim=4 * draw(st.integers(1, most_units)))
    pieces = [Shard(0, 0, whole.dim, 0, whole.rows)]
    for _ in range(draw(st.integers(0, 10))):
        pieces += _cut(draw, pieces.pop(draw(st.integers(0, len(pieces) - 1))))
    return whole, draw(st.permutations(pieces))


def test_tilings_that_no_cut_makes_tile_too():
    """Four around one."""
    check_cover(
        table(rows=3, dim=12),
        [Shard(0, 0, 8, 0, 1), Shard(0, 8, 4, 0, 2), Shard(0, 4, 8, 2, 1), Shard(0, 0, 4, 1, 2), Shard(0, 4, 4, 1, 1)],
    )


@given(tilings(), st.data())
def test_what_is_cut_all_the_way_across_tiles_and_not_with_one_rectangle_less_or_twice(tiling, data):
    whole, pieces = tiling
    check_cover(whole, pieces)
    chosen = data.draw(st.sampled_from(pieces))
    with refused("plan-shards-gap"):
        check_cover(whole, [piece for piece in pieces if piece != chosen])
    with refused("plan-shards-overlap"):
        check_cover(whole, [*pieces, chosen])


@given(tilings(), st.data())
def test_one_rectangle_moved_or_resized_is_refused(tiling, data):
    whole, pieces = tiling
    chosen = data.draw(st.sampled_from(pieces))
    field = data.draw(st.sampled_from(["column", "dim", "row", "rows"]))
    step = 4 if field in ("column", "dim") else 1
    least = {"dim": 4, "rows": 1}.get(field, 0)
    value = data.draw(st.integers(least // step, getattr(chosen, field) // step + 20)) * step
    assume(value != getattr(chosen, field))
    with pytest.raises(UserError, match=r"covered twice|covered by no shard|ends with"):
        check_cover(whole, [replace(piece, **{field: value}) if piece is chosen else piece for piece in pieces])


@st.composite
def rectangles(draw):
    """A small table and rectangles inside it: a tiling with some pieces replaced, or anything at all."""
    whole, pieces = draw(tilings(most_rows=5, most_units=5))
    for _ in range(draw(st.integers(0, 2))):
        row, unit = draw(st.integers(0, whole.rows - 1)), draw(st.integers(0, whole.dim // 4 - 1))
        rows, units = draw(st.integers(1, whole.rows - row)), draw(st.integers(1, whole.dim // 4 - unit))
        found = Shard(0, 4 * unit, 4 * units, row, rows)
        pieces = [*pieces[1:], found] if draw(st.booleans()) else [*pieces, found]
    return whole, pieces


@given(rectangles())
@settings(max_examples=300)
def test_the_answer_is_that_of_counting_every_element(case):
    """Accepted if and only if every element is covered once, and what is named is an element that isn't."""
    whole, pieces = case
    count = np.zeros((whole.rows, whole.dim), dtype=int)
    for piece in pieces:
        count[piece.row : piece.row_end, piece.column : piece.column_end] += 1
    if (count == 1).all():
        check_cover(whole, pieces)
        return
    with pytest.raises(UserError) as caught:
        check_cover(whole, pieces)
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
        check_cover(table(rows=10), [shard])


def test_many_blocks_are_checked_by_what_they_touch():
    """A column beside as many row blocks as there are devices: no table of rows x columns is made."""
    rows = 1 << 40
    block = rows // 4096
    blocks = [Shard(0, 4, 65532, block * i, block) for i in range(4096)]
    check_cover(table(rows=rows, dim=1 << 16), [Shard(0, 0, 4, 0, rows), *blocks])


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
        (lambda: TierAssignment("disk"), "unknown tier 'disk'; valid: device, uvm, uvm_caching"),
        (lambda: TierAssignment(Tier.UVM_CACHING), "tier 'uvm_caching' with cache_load_factor=None"),
        (lambda: TierAssignment(Tier.UVM, 0.5), "tier 'uvm' with cache_load_factor=0.5"),
        (lambda: TierAssignment(Tier.UVM_CACHING, 1.5), "cache_load_factor=1.5"),
    ],
)
def test_shards_and_placements_are_valid_by_construction(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_numbers_may_come_from_numpy():
    assert Shard(*np.array([0, 4, 8, 0, 10])) == Shard(0, 4, 8, 0, 10)
    assert Placement(Shard(0, 4, 8, 0, 10), np.int64(2)) == Placement(Shard(0, 4, 8, 0, 10), 2)
