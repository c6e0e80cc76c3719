"""Measured statistics in place of guesses."""

from dataclasses import replace

import pytest
from torchrec.distributed.planner import ParameterConstraints
from torchrec.types import DataType

from neuroshard.plumbing.errors import UserError
from neuroshard.tables import Table
from tests.kit.torchrec_models import bags, planner

REUSE = (*(0.0,) * 16, 1.0)


def _search(tables, constraints=None, **settings):
    ours = planner(constraints=constraints, tables=tables, **settings)
    ours.plan(bags("a", "b", rows=100, dim=8, data_type=DataType.FP16))
    return ours.last_plan.task.tables


def _table(name="b", rows=100, dim=8):
    return Table(name, rows, dim, 7.5, REUSE, 4, 8, row_lookups=(0.25, 0.75))


def test_known_tables_count_by_their_names(caplog):
    guessed, known = _search([_table(), _table("elsewhere")], {"b": ParameterConstraints(pooling_factors=[2.0])})
    assert guessed.pooling_factor == 1.0
    assert known == replace(_table(), bytes_per_element=2)  # what the weights are is the model's to say
    assert known.reuse_batch_size == 8
    assert "'elsewhere' that is not planned here" in caplog.text
    assert "'b' that" not in caplog.text
    assert "one lookup a sample and feature is assumed of 1 of 2 tables, of which nothing is known (a)" in caplog.text


@pytest.mark.parametrize(
    ("given", "assumed"),
    [
        (
            None,
            "2 of 2 tables, of which nothing is known (a, b): give tables=neuroshard.torchrec.profile(model, batches)",
        ),
        ({"b": ParameterConstraints(pooling_factors=[2.0])}, "1 of 2 tables, of which nothing is known (a)"),
        ({"b": ParameterConstraints(min_partition=4)}, "2 of 2 tables, of which nothing is known (a, b)"),
        ({name: ParameterConstraints(pooling_factors=[1.0]) for name in "ab"}, None),
        ({name: ParameterConstraints(num_poolings=[3.0], min_partition=4) for name in "ab"}, None),
    ],
)
def test_lookups_that_nobody_named_are_said_once(caplog, tmp_path, given, assumed):
    _search(None, given, keep=tmp_path / "plan.json")
    assert caplog.text.count("one lookup a sample and feature is assumed of") == (assumed is not None)
    assert assumed is None or assumed in caplog.text
    assert "no statistics" not in caplog.text


def test_known_tables_beside_constraints_are_told_apart(caplog):
    _search([_table()], {"a": ParameterConstraints(pooling_factors=[2.0])})
    assert "no statistics of 1 of 2 tables, such as 'a': guessed" in caplog.text
    assert "is assumed" not in caplog.text
    caplog.clear()
    _search([_table("a"), _table("b")])
    assert caplog.text == ""


def test_tables_may_stand_in_a_file(tmp_path):
    path = tmp_path / "tables.csv"
    path.write_text("name,rows,dim,pooling_factor\na,100,8,3.5\n")
    assert [table.pooling_factor for table in _search(path)] == [3.5, 1.0]
    assert [table.pooling_factor for table in _search(str(path))] == [3.5, 1.0]
    assert _search(path)[0].reuse_batch_size == 8


def test_other_shapes_are_a_mistake():
    with pytest.raises(UserError, match="'b' are those of 101 rows and 8 columns, the model's has 100 and 8"):
        _search([_table(rows=101)])
    with pytest.raises(UserError, match="two tables are named 'b'"):
        _search([_table(), _table()])
