"""Shards cover each element of a table once, or the error names an element that is missing or covered twice."""

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

WRONG = {"plan-shards-gap", "plan-shards-overlap", "plan-shard-columns-outside", "plan-shard-rows-outside"}


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


def test_check_cover_accepts_tilings_that_no_straight_cut_divides():
    """Four rectangles around a fifth."""
    check_cover(
        table(rows=3, dim=12),
        [Shard(0, 0, 8, 0, 1), Shard(0, 8, 4, 0, 2), Shard(0, 4, 8, 2, 1), Shard(0, 0, 4, 1, 2), Shard(0, 4, 4, 1, 1)],
    )


@given(tilings(), st.data())
def test_rectangles_tile_a_table_only_if_none_is_missing_or_repeated(tiling, data):
    whole, pieces = tiling
    check_cover(whole, pieces)
    chosen = data.draw(st.sampled_from(pieces))
    with refused("plan-shards-gap"):
        check_cover(whole, [piece for piece in pieces if piece != chosen])
    with refused("plan-shards-overlap"):
        check_cover(whole, [*pieces, chosen])


@given(tilings(), st.data())
def test_tiling_with_a_moved_or_resized_shard_is_refused(tiling, data):
    whole, pieces = tiling
    chosen = data.draw(st.sampled_from(pieces))
    field = data.draw(st.sampled_from(["column", "dim", "row", "rows"]))
    step = 4 if field in ("column", "dim") else 1
    least = {"dim": 4, "rows": 1}.get(field, 0)
    value = data.draw(st.integers(least // step, getattr(chosen, field) // step + 20)) * step
    assume(value != getattr(chosen, field))
    with pytest.raises(UserError) as caught:
        check_cover(whole, [replace(piece, **{field: value}) if piece is chosen else piece for piece in pieces])
    assert caught.value.code in WRONG


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
def test_check_cover_agrees_with_counting_how_often_each_element_is_covered(case):
    """The shards are accepted if and only if every element is covered once; else the error names a wrong element."""
    whole, pieces = case
    count = np.zeros((whole.rows, whole.dim), dtype=int)
    for piece in pieces:
        count[piece.row : piece.row_end, piece.column : piece.column_end] += 1
    if (count == 1).all():
        check_cover(whole, pieces)
        return
    with pytest.raises(UserError) as caught:
        check_cover(whole, pieces)
    row, column = map(int, re.findall(r"\d+", caught.value.message.what))
    assert caught.value.code == ("plan-shards-gap" if count[row, column] == 0 else "plan-shards-overlap")
    assert count[row, column] != 1


@pytest.mark.parametrize(
    ("shard", "code", "names"),
    [
        (Shard(0, 8, 12, 0, 10), "plan-shard-columns-outside", ["'t'", 16, 19]),
        (Shard(0, 0, 16, 3, 10), "plan-shard-rows-outside", ["'t'", 10, 12]),
    ],
)
def test_check_cover_refuses_shards_outside_the_table(shard, code, names):
    with refused(code, names=names):
        check_cover(table(rows=10), [shard])


def test_tiling_check_of_many_blocks_needs_no_dense_grid():
    """A column beside as many row blocks as there are devices: no table of rows x columns is made."""
    rows = 1 << 40
    block = rows // 4096
    blocks = [Shard(0, 4, 65532, block * i, block) for i in range(4096)]
    check_cover(table(rows=rows, dim=1 << 16), [Shard(0, 0, 4, 0, rows), *blocks])


@pytest.mark.parametrize(
    ("make", "code", "names"),
    [
        (lambda: Shard(0, 0, 6, 0, 10), "value-outside-limits", ["dim", 6, 4]),
        (lambda: Shard(0, 2, 8, 0, 10), "value-outside-limits", ["column", 2, 4]),
        (lambda: Shard(-1, 0, 8, 0, 10), "value-outside-limits", ["table", -1]),
        (lambda: Shard(0, 0, 8, -1, 10), "value-outside-limits", ["row", -1]),
        (lambda: Shard(0, 0, 8, 0, 0), "value-outside-limits", ["rows", 0]),
        (lambda: Shard(0, "0", 8, 0, 10), "value-outside-limits", ["column", "'0'"]),
        (lambda: Placement(Shard(0, 0, 8, 0, 10), -1), "value-outside-limits", ["device", -1]),
        (lambda: TierAssignment("disk"), "unknown-name", ["'disk'", "device, uvm, uvm_caching"]),
        (lambda: TierAssignment(Tier.UVM_CACHING), "tier-cache-load-factor", ["'uvm_caching'", "None"]),
        (lambda: TierAssignment(Tier.UVM, 0.5), "tier-cache-load-factor", ["'uvm'", 0.5]),
        (lambda: TierAssignment(Tier.UVM_CACHING, 1.5), "value-outside-limits", ["cache_load_factor", 1.5]),
    ],
)
def test_shards_and_placements_are_valid_by_construction(make, code, names):
    with refused(code, names=names):
        make()


def test_shards_and_placements_of_numpy_numbers_equal_python_ones():
    assert Shard(*np.array([0, 4, 8, 0, 10])) == Shard(0, 4, 8, 0, 10)
    assert Placement(Shard(0, 4, 8, 0, 10), np.int64(2)) == Placement(Shard(0, 4, 8, 0, 10), 2)
