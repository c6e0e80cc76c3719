from dataclasses import replace

import pytest

from neuroshard.tables import Table, halvings
from neuroshard.testing import toy_tables
from tests.kit.messages import refused
from tests.kit.plans import read_back

GOOD = toy_tables(1)[0]


@pytest.mark.parametrize(
    ("field", "value", "code", "names"),
    [
        ("rows", 0, "value-outside-limits", [0]),
        ("rows", -5, "value-outside-limits", [-5]),
        ("rows", 1.5, "value-outside-limits", [1.5]),
        ("dim", 6, "value-outside-limits", [6, "multiple of 4"]),
        ("dim", 0, "value-outside-limits", [0]),
        ("dim", -4, "value-outside-limits", [-4]),
        ("pooling_factor", 0.0, "value-outside-limits", [0.0]),
        ("pooling_factor", float("nan"), "value-outside-limits", ["nan"]),
        ("bytes_per_element", 3, "value-outside-limits", [3]),
        ("reuse", (0.5,) * 2 + (0.1,) + (0.0,) * 14, "table-reuse-sum", [1.1]),
        ("reuse", (1.0,), "value-outside-limits", [17]),
        ("reuse", (1.5, -0.5) + (0.0,) * 15, "value-outside-limits", ["reuse[0]", 1.5]),
        ("row_lookups", (0.5, 0.25), "table-row-lookups-sum", [0.75]),
        ("row_lookups", (1.5, -0.5), "value-outside-limits", ["row_lookups[0]", 1.5]),
        ("features", 0, "value-outside-limits", [0, 1]),
        ("features", 1025, "value-outside-limits", [1025, 1024]),
    ],
)
def test_table_with_invalid_field_is_refused(field, value, code, names):
    with refused(code, where="table 'toy0'", names=[field, *names]):
        replace(GOOD, **{field: value})


@pytest.mark.parametrize("rare", [{}, {"row_lookups": (0.75, 0.25)}, {"features": 3}, {"features": 3, "pooled": False}])
def test_table_json_is_exact_and_leaves_out_default_fields(rare):
    table = replace(GOOD, **rare)
    assert read_back(table) == table == table.with_dim(8).with_dim(table.dim)
    assert (table == GOOD) == (not rare)
    assert {"row_lookups", "features", "pooled"} & table.to_json().keys() == rare.keys()


def test_output_columns_grow_with_features_if_pooled_and_with_lookups_if_not():
    shared = replace(GOOD, features=3)
    assert shared.output_columns == 3 * GOOD.dim
    assert replace(shared, pooled=False).output_columns == GOOD.pooling_factor * GOOD.dim
    assert replace(shared, pooled=False) != shared


@pytest.mark.parametrize(
    ("fields", "code", "where", "names"),
    [
        ({}, "field-missing", "table", ["'name'"]),
        ({"name": "a"}, "field-missing", "table 'a'", ["'rows'"]),
        ([], "value-outside-limits", "table", ["[]"]),
        (GOOD.to_json() | {"extra": 1}, "unknown-name", "table 'toy0'", ["'extra'"]),
    ],
)
def test_table_from_malformed_json_is_refused(fields, code, where, names):
    with refused(code, where=where, names=names):
        Table.from_json(fields)


def test_halvings_list_widths_down_to_four_columns():
    assert halvings(128) == (128, 64, 32, 16, 8, 4)
    with refused("max-dim-not-halvable", names=["max_dim", 96]):
        halvings(96)
