"""Which forms tables may have, and what is left to columns when others have their places."""

from dataclasses import replace

import numpy as np
import pytest

from neuroshard.models.simulator import Simulator
from neuroshard.plans.lay_out import in_columns, in_copies, in_rows
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import InfeasibleError
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.stages.search.space.forms import COLUMNS, COPIES, ROWS, FormedTask, Spread, allowed_forms, known_calls
from neuroshard.tables import Table
from neuroshard.tasks.constraints import Constraints, PinnedShard, TableRule
from neuroshard.tasks.memory import MemoryUse
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing import linear_models, random_form_models
from neuroshard.words.form import CALLS, IN_COLUMNS, Call, Form

TABLES = tuple(Table(name, 100, 16, 2.0, (1.0, *(0.0,) * 16)) for name in "abcd")
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


@pytest.mark.parametrize("use", [MemoryUse(), MemoryUse("adam", batches_in_flight=2)])
def test_columns_get_exactly_the_memory_that_others_leave(use):
    task = replace(TASK, memory=use, topology=Topology(4, (10**6, 2 * 10**6, 10**6, 10**6), 1000, 2))
    formed = FormedTask.of(task, np.array([COPIES, COLUMNS, ROWS, COLUMNS]), Spread(task))
    rest = formed.columns_task()
    assert [table.name for table in rest.tables] == ["b", "d"]
    assert rest.topology.devices_per_host == 2
    columns = BeamSearch().find(rest, Simulator(replace(linear_models(4), batch_size=None))).plan
    plan = formed.whole_plan(columns)
    assert plan.forms == (Form.COPIES, Form.COLUMNS, Form.ROWS, Form.COLUMNS)
    for device in range(4):
        left = rest.shard_memory[device] - columns.device_bytes[device]
        assert left == task.shard_memory[device] - plan.device_bytes[device]


def test_constraints_of_the_rest_stay():
    rules = Constraints((TableRule("a", forms=("copies",)), TableRule("b", max_shards=1)), apart=(("b", "d"),))
    task = replace(TASK, constraints=rules)
    rest = FormedTask.of(task, np.array([COPIES, COLUMNS, ROWS, COLUMNS]), Spread(task)).columns_task()
    assert rest.constraints == Constraints((TableRule("b", max_shards=1),), apart=(("b", "d"),))


def test_what_leaves_no_memory_is_refused():
    size = TABLES[0].size_bytes
    for memory, forms, columns in ((size - 1, [COPIES, COLUMNS], True), (2 * size - 1, [COPIES, COPIES], False)):
        task = Task(TABLES[:2], Topology(4, memory), 64)
        formed = FormedTask.of(task, np.array(forms), Spread(task))
        with pytest.raises(InfeasibleError, match="tables in rows and copies"):
            formed.columns_task() if columns else formed.whole_plan(None)
    task = Task(TABLES[:2], Topology(4, 2 * size), 64)
    assert FormedTask.of(task, np.array([COPIES, COPIES]), Spread(task)).whole_plan(None).fits


def _mixed(task):
    """A copy of the first table, columns of the second and fourth, rows of the third on the second host."""
    columns = in_columns(task, [(1, 4, 0), (1, 12, 3), (3, 16, 1)])
    return Plan(task, (*in_copies(task, 0), *in_rows(task, 2, [2, 3]), *columns))


@pytest.mark.parametrize("use", [MemoryUse(), MemoryUse("adam", batches_in_flight=2)])
def test_a_plan_is_its_columns_and_the_rest(use):
    plan = _mixed(replace(TASK, memory=use))
    formed = FormedTask.of_plan(plan)
    columns = formed.columns_plan(plan)
    assert [table.name for table in columns.task.tables] == ["b", "d"]
    assert columns.device_dims == plan.device_dims
    for device in range(4):
        left = columns.task.shard_memory[device] - columns.device_bytes[device]
        assert left == plan.task.shard_memory[device] - plan.device_bytes[device]
    again = formed.whole_plan(columns)
    assert sorted(again.placements) == sorted(plan.placements)


def test_a_plan_in_columns_is_its_own():
    columns = Plan(TASK, tuple(in_columns(TASK, [(table, 16, table) for table in range(4)])))
    formed = FormedTask.of_plan(columns)
    assert formed.columns_task() is TASK
    assert formed.columns_plan(columns) == formed.whole_plan(columns) == columns


def test_columns_stay_off_the_devices_of_rows_that_they_are_kept_apart_from():
    tables = (*TABLES[:3], replace(TABLES[3], name="d[1]*"))
    task = replace(TASK, tables=tables, constraints=Constraints(apart=(("c", "d[1]*"),)))
    plan = _mixed(task)
    assert plan.violations == ()
    rest = FormedTask.of_plan(plan).columns_task()
    assert [rest.constraints.limits(table, 4).devices for table in rest.tables] == [(0, 1, 2, 3), (0, 1)]


def test_rows_and_copies_may_take_all_of_a_device():
    task = Task(TABLES[:2], Topology(2, (TABLES[0].size_bytes, 1 << 20)), 64)
    plan = Plan(task, (*in_copies(task, 0), *in_columns(task, [(1, 16, 1)])))
    formed = FormedTask.of_plan(plan)
    assert formed.columns_task().shard_memory == (1, (1 << 20) - TABLES[0].size_bytes)
    assert formed.whole_plan(formed.columns_plan(plan)).fits
