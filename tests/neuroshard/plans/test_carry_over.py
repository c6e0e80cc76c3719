"""What of a plan stays when tables come and go, or devices do."""

from dataclasses import replace

from neuroshard.layouts import in_columns, in_copies, in_rows
from neuroshard.plans.carry_over import carried_over
from neuroshard.plans.plan import Plan, assemble
from neuroshard.tables import Table
from neuroshard.tasks.constraints import Constraints, PinnedShard, TableRule
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing import ONCE
from neuroshard.words.form import Form
from neuroshard.words.placement import ON_DEVICE, Home, Tier


def _task(names, devices=4, memory=1 << 20, per_host=2, constraints=None, rows=10):
    tables = tuple(Table(name, rows, 8, 1.0, ONCE) for name in names)
    topology = Topology(devices, memory, devices_per_host=per_host)
    return Task(tables, topology, 64, constraints=constraints or Constraints())


def test_tables_that_stay_stay_where_they_are():
    before = assemble(_task("abc"), [(0, 8, 0), (1, 4, 1), (1, 4, 3), (2, 8, 2)])
    carried = carried_over(before, _task("cxb"))
    assert carried.columns == ((2, 4, 1), (2, 4, 3), (0, 8, 2))
    assert carried.plan is None  # x has no place
    assert carried.pinned.constraints.pinned == (
        PinnedShard("b", 4, (1,)),
        PinnedShard("b", 4, (3,)),
        PinnedShard("c", 8, (2,)),
    )
    fewer = carried_over(before, _task("cb"))
    assert fewer.plan == assemble(_task("cb"), [(0, 8, 2), (1, 4, 1), (1, 4, 3)])


def test_shards_of_devices_that_go_are_free():
    before = assemble(_task("ab"), [(0, 8, 3), (1, 4, 1), (1, 4, 3)])
    assert carried_over(before, _task("ab", 2)).columns == ((1, 4, 1),)
    assert carried_over(before, _task("ab", 8)).plan == assemble(_task("ab", 8), [(0, 8, 3), (1, 4, 1), (1, 4, 3)])


def test_tables_of_another_shape_are_others():
    before = assemble(_task("a"), [(0, 8, 1)])
    assert carried_over(before, _task("a", rows=11)).columns == ()


def test_rows_and_copies_stay_on_as_many_devices():
    task = _task("abcd")
    placed = [
        *in_rows(task, 0, range(4)),
        *in_rows(task, 1, [2, 3]),
        *in_copies(task, 2),
        *in_columns(task, [(3, 8, 1)]),
    ]
    before = Plan(task, tuple(placed))
    assert sorted(carried_over(before, task).plan.placements) == sorted(before.placements)
    pinned = carried_over(before, _task("xabcd")).pinned
    assert pinned.constraints.rules == (
        TableRule("a", devices=(0, 1, 2, 3), forms=(Form.ROWS,)),
        TableRule("b", devices=(2, 3), forms=(Form.ROWS,)),
        TableRule("c", devices=(0, 1, 2, 3), forms=(Form.COPIES,)),
    )
    for other in (_task("abcd", 8), _task("abcd", per_host=4)):
        carried = carried_over(before, other)
        assert (carried.columns, carried.others) == (((3, 8, 1),), ())


def test_limits_come_first():
    before = assemble(_task("ab"), [(0, 8, 3), (1, 8, 1)])
    rules = Constraints((TableRule("a", devices=(0, 1)),))
    assert carried_over(before, _task("ab", constraints=rules)).columns == ((1, 8, 1),)
    no_columns = Constraints((TableRule("a", forms=("rows",)),))
    assert carried_over(before, _task("ab", constraints=no_columns)).columns == ((1, 8, 1),)
    assert carried_over(before, _task("ab", memory=100)).plan is None
    own = Constraints(pinned=(PinnedShard("b", 8, (1,)),), together=(("a", "c"),))
    assert carried_over(before, _task("abc", constraints=own)).pinned.constraints == own


def test_the_largest_shards_are_held_first():
    before = assemble(_task("abc"), [(0, 8, 3), (1, 4, 0), (1, 4, 1), (2, 8, 2)])
    carried = carried_over(before, _task("abcx"))
    assert carried.largest(1).columns == ((0, 8, 3), (2, 8, 2), (1, 4, 0), (1, 4, 1))
    assert carried.largest(0.7).columns == ((0, 8, 3), (2, 8, 2))
    assert carried.largest(0).columns == ()


def test_the_smallest_shards_leave_devices_without_room():
    before = assemble(_task("abcd"), [(0, 8, 3), (1, 4, 0), (1, 4, 1), (2, 8, 0), (3, 4, 0), (3, 4, 3)])
    columns = carried_over(before, _task("abcd")).columns
    assert carried_over(before, _task("abcd", memory=640)).fitting.columns == columns
    assert set(columns) - set(carried_over(before, _task("abcd", memory=600)).fitting.columns) == {(3, 4, 0)}
    assert carried_over(before, _task("abcd", memory=100)).fitting.columns == ()


def test_the_task_is_otherwise_the_same():
    before = assemble(_task("ab"), [(0, 8, 3), (1, 8, 1)])
    task = _task("abx")
    assert replace(carried_over(before, task).pinned, constraints=task.constraints) == task


def test_tables_stay_in_host_memory_where_there_is_any():
    hosted = replace(_task("ab").topology, host_memory_bytes=1 << 20)
    cached = Home(Tier.CACHED, 0.5)
    task = replace(_task("ab"), topology=hosted, fixed_homes=(cached, ON_DEVICE))
    before = assemble(task, [(0, 8, 0), (1, 8, 1)])
    fewer = replace(_task("xa"), topology=hosted)
    carried = carried_over(before, fewer)
    assert carried.homes == {1: cached}
    assert TableRule("a", tiers=(Tier.CACHED,), cached=0.5) in carried.pinned.constraints.rules
    assert carried_over(before, replace(_task("ab"), topology=hosted)).plan.homes == (cached, ON_DEVICE)
    assert carried_over(before, _task("ab")).columns == ((1, 8, 1),)
    never = Constraints((TableRule("a", tiers=(Tier.DEVICE,)),))
    assert carried_over(before, replace(_task("ab", constraints=never), topology=hosted)).columns == ((1, 8, 1),)
