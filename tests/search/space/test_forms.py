"""Which forms tables may have, and what is left to columns when others have their places."""

from dataclasses import replace

import numpy as np
import pytest

from neuroshard.stages.search.space.forms import allowed_forms, known_calls
from neuroshard.tables import Table
from neuroshard.tasks.constraints import Constraints, PinnedShard, TableRule
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing import ONCE, random_form_models
from neuroshard.words.form import CALLS, IN_COLUMNS, Call, Form

TABLES = tuple(Table(name, 100, 16, 2.0, ONCE) for name in "abcd")
TASK = Task(TABLES, Topology(4, 1 << 20, devices_per_host=2), 64)


def _allowed(task, calls=CALLS):
    """Initials of the forms of each table: m for columns, r for rows, p for copies."""
    letters = np.array(["m", "r", "p"])
    return ["".join(letters[may]) for may in allowed_forms(task, calls)]


@pytest.mark.parametrize(
    ("constraints", "first"),
    [
        (Constraints(), "mrp"),
        (Constraints((TableRule("a", forms=("columns", "copies")),)), "mp"),
        (Constraints((TableRule("a", forms=("rows",)),)), "r"),
        (Constraints((TableRule("a", devices=(0, 1, 2)),)), "m"),
        (Constraints((TableRule("a", devices=(0, 1, 2, 3)),)), "mrp"),
        (Constraints((TableRule("a", max_shards=3),)), "mp"),
        (Constraints((TableRule("a", min_shards=2),)), "mr"),
        (Constraints(pinned=(PinnedShard("a", 4, (0,)),)), "m"),
        (Constraints(together=(("a", "b"),)), "mp"),
        (Constraints((TableRule("b", forms=("columns",)),), together=(("a", "b"),)), "m"),
        (Constraints(apart=(("a", "b"),)), "m"),
    ],
)
def test_constraints_say_which_forms_a_table_may_have(constraints, first):
    found = _allowed(replace(TASK, constraints=constraints))
    assert found[0] == first
    assert found[2:] == ["mrp", "mrp"]


@pytest.mark.parametrize(("rows", "may"), [(1, "mp"), (3, "mp"), (4, "mrp"), (5, "mp"), (7, "mrp")])
def test_rows_must_be_enough_for_blocks(rows, may):
    """Five rows make blocks of two, two and one: the fourth would be empty."""
    assert _allowed(Task((replace(TABLES[0], rows=rows),), TASK.topology, 64)) == [may]


def test_one_device_and_settings_leave_columns_only():
    assert _allowed(Task(TABLES, Topology(1, 1 << 20), 64)) == ["m"] * 4
    assert _allowed(TASK, {IN_COLUMNS}) == ["m"] * 4


def test_sequence_tables_are_never_copied():
    task = replace(TASK, tables=(replace(TABLES[0], pooled=False), *TABLES[1:]))
    assert _allowed(task) == ["mr", "mrp", "mrp", "mrp"]
    assert _allowed(task, {*map(Call, Form), Call(Form.COLUMNS, False)}) == ["m", "mrp", "mrp", "mrp"]


def test_calls_are_known_where_their_exchanges_are():
    models = random_form_models()
    assert known_calls(models) == set(CALLS)
    assert known_calls(models, ["columns"]) == {call for call in CALLS if call.form is Form.COLUMNS}
    backward = replace(models.backward, serves=frozenset({Form.COLUMNS, Form.ROWS}))
    assert known_calls(replace(models, backward=backward)) == {*CALLS} - {Call(Form.COPIES)}
