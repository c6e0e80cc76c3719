from dataclasses import replace

import pytest

from neuroshard.plumbing.errors import UserError
from neuroshard.tables import Table, halvings
from neuroshard.testing import toy_tables
from tests.kit.messages import refused
from tests.kit.plans import read_back

GOOD = toy_tables(1)[0]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("rows", 0, "rows=0"),
        ("rows", -5, "rows=-5"),
        ("rows", 1.5, "rows=1.5"),
        ("dim", 6, "dim=6.*multiple of 4"),
        ("dim", 0, "dim=0"),
        ("dim", -4, "dim=-4"),
        ("pooling_factor", 0.0, "pooling_factor=0"),
        ("pooling_factor", float("nan"), "pooling_factor=nan"),
        ("bytes_per_element", 3, "bytes_per_element=3"),
        ("reuse", (0.5,) * 2 + (0.1,) + (0.0,) * 14, "sums to 1.1"),
        ("reuse", (1.0,), "of at least 17"),
        ("reuse", (1.5, -0.5) + (0.0,) * 15, "0..1"),
        ("row_lookups", (0.5, 0.25), "row_lookups sum to 0.75, not to 1"),
        ("row_lookups", (1.5, -0.5), r"row_lookups.0.=1.5 must be a number of at most 1"),
        ("features", 0, "features=0 must be a whole number of at least 1"),
        ("features", 1025, "features=1025 must be a whole number of at most 1024"),
    ],
)
def test_impossible_tables_are_refused(field, value, message):
    with pytest.raises(UserError, match=message):
        replace(GOOD, **{field: value})


@pytest.mark.parametrize("rare", [{}, {"row_lookups": (0.75, 0.25)}, {"features": 3}, {"features": 3, "pooled": False}])
def test_json_is_exact_and_leaves_out_what_is_usual(rare):
    table = replace(GOOD, **rare)
    assert read_back(table) == table == table.with_dim(8).with_dim(table.dim)
    assert (table == GOOD) == (not rare)
    assert {"row_lookups", "features", "pooled"} & table.to_json().keys() == rare.keys()


def test_outputs_are_of_features_or_of_lookups():
    shared = replace(GOOD, features=3)
    assert shared.output_columns == 3 * GOOD.dim
    assert replace(shared, pooled=False).output_columns == GOOD.pooling_factor * GOOD.dim
    assert replace(shared, pooled=False) != shared


@pytest.mark.parametrize("fields", [{}, {"name": "a"}, [], GOOD.to_json() | {"extra": 1}])
def test_malformed_fields_are_refused(fields):
    with pytest.raises(UserError):
        Table.from_json(fields)


def test_halvings():
    assert halvings(128) == (128, 64, 32, 16, 8, 4)
    with refused("max-dim-not-halvable"):
        halvings(96)
