"""Which forms tables may have, and what is left to columns when others have their places."""

from dataclasses import replace

import numpy as np
import pytest

from neuroshard.errors import InfeasibleError
from neuroshard.plans.form import FORMS, Form
from neuroshard.simulator import Simulator
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.stages.search.space.forms import COLUMNS, COPIES, ROWS, FormedTask, Spread, allowed_forms
from neuroshard.tables import Table
from neuroshard.tasks.constraints import Constraints, PinnedShard, TableRule
from neuroshard.tasks.memory import MemoryUse
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing import linear_models

TABLES = tuple(Table(name, 100, 16, 2.0, (1.0, *(0.0,) * 16)) for name in "abcd")
TASK = Task(TABLES, Topology(4, 1 << 20, devices_per_host=2), 64)


def _allowed(task, forms=FORMS):
    """Initials of the forms of each table: m for columns, r for rows, p for copies."""
    letters = np.array(["m", "r", "p"])
    return ["".join(letters[may]) for may in allowed_forms(task, forms)]


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
        (Constraints(together=(("a", "b"),)), "m"),
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
    assert _allowed(TASK, {Form.COLUMNS}) == ["m"] * 4


@pytest.mark.parametrize("use", [MemoryUse(), MemoryUse("adam", batches_in_flight=2)])
def test_columns_get_exactly_the_memory_that_others_leave(use):
    task = replace(TASK, memory=use, topology=Topology(4, (10**6, 2 * 10**6, 10**6, 10**6), 1000, 2))
    formed = FormedTask(task, np.array([COPIES, COLUMNS, ROWS, COLUMNS]), Spread(task))
    rest = formed.columns_task()
    assert [table.name for table in rest.tables] == ["b", "d"]
    assert rest.topology.devices_per_host == 2
    columns = BeamSearch().search(rest, Simulator(replace(linear_models(4), batch_size=None)))
    plan = formed.whole_plan(columns)
    assert plan.forms == (Form.COPIES, Form.COLUMNS, Form.ROWS, Form.COLUMNS)
    for device in range(4):
        left = rest.shard_memory[device] - columns.device_bytes[device]
        assert left == task.shard_memory[device] - plan.device_bytes[device]


def test_constraints_of_the_rest_stay():
    rules = Constraints((TableRule("a", forms=("copies",)), TableRule("b", max_shards=1)), apart=(("b", "d"),))
    task = replace(TASK, constraints=rules)
    rest = FormedTask(task, np.array([COPIES, COLUMNS, ROWS, COLUMNS]), Spread(task)).columns_task()
    assert rest.constraints == Constraints((TableRule("b", max_shards=1),), apart=(("b", "d"),))


def test_what_leaves_no_memory_is_refused():
    size = TABLES[0].size_bytes
    for memory, forms, columns in ((size, [COPIES, COLUMNS], True), (2 * size - 1, [COPIES, COPIES], False)):
        task = Task(TABLES[:2], Topology(4, memory), 64)
        formed = FormedTask(task, np.array(forms), Spread(task))
        with pytest.raises(InfeasibleError, match="tables in rows and copies"):
            formed.columns_task() if columns else formed.whole_plan(None)
    task = Task(TABLES[:2], Topology(4, 2 * size), 64)
    assert FormedTask(task, np.array([COPIES, COPIES]), Spread(task)).whole_plan(None).fits
