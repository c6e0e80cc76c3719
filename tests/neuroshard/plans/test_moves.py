"""What is moved between plans whose tables or devices are others."""

from dataclasses import replace

import pytest

from neuroshard.layouts import in_copies, in_rows
from neuroshard.plans.moves import TableChange, moved_between, moved_bytes, table_changes
from neuroshard.plans.plan import Plan, assemble
from neuroshard.tables import Table
from neuroshard.tasks.constraints import Constraints, PinnedShard
from neuroshard.tasks.memory import MemoryUse
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing import ONCE, toy_task


def _task(names, devices=2, **fields):
    tables = tuple(Table(name, 10, 8, 1.0, ONCE) for name in names)
    return Task(tables, Topology(devices, 1 << 20), 64, **fields)


def _shaped(*tables):
    made = tuple(Table(name, rows, dim, 1.0, ONCE) for name, rows, dim in tables)
    return Task(made, Topology(2, 1 << 30), 256)


def test_tables_are_known_by_their_names():
    before = assemble(_task("abc"), [(0, 8, 0), (1, 8, 1), (2, 8, 0)])
    after = assemble(_task("cab"), [(0, 8, 0), (1, 8, 1), (2, 8, 1)])
    assert moved_between(before, after).tolist() == [0, 10 * 8 * 4, 0]
    (only,) = table_changes(before, after)
    assert (only.table, only.before, only.after, only.size_bytes) == ("a", ((0, 8),), ((1, 8),), 320)
    assert str(only) == "table a: 320 bytes moved, device 0 (8 columns) -> device 1 (8 columns)"


def test_what_comes_and_goes_is_named_and_not_moved():
    before = assemble(_task("ab"), [(0, 8, 0), (1, 8, 1)])
    after = assemble(_task("bc", 3), [(0, 4, 1), (0, 4, 2), (1, 8, 2)])
    changes = {change.table: change for change in table_changes(before, after)}
    assert [change.is_new for change in changes.values()] == [True, False, False]
    assert {name: change.size_bytes for name, change in changes.items()} == {"c": 320, "b": 160, "a": 0}
    assert moved_bytes(before, after) == 160
    assert str(changes["a"]) == "table a: gone"
    assert str(changes["c"]) == "table c: new, 320 bytes on device 2 (8 columns)"


def test_what_is_kept_is_no_change():
    plan = assemble(_task("ab"), [(0, 8, 0), (1, 4, 0), (1, 4, 1)])
    assert table_changes(plan, plan) == ()
    assert moved_bytes(plan, plan) == 0


def test_other_forms_and_optimizers_count():
    task = _task("a", memory=MemoryUse("adam"))
    whole = assemble(task, [(0, 8, 0)])
    rows, copies = Plan(task, tuple(in_rows(task, 0, [0, 1]))), Plan(task, tuple(in_copies(task, 0)))
    assert moved_bytes(whole, rows) == 5 * 8 * 12
    assert moved_bytes(whole, copies) == 10 * 8 * 12
    assert moved_bytes(copies, rows) == 0
    assert moved_bytes(replace(whole, task=replace(task, memory=MemoryUse())), copies) == 10 * 8 * 12


def test_only_columns_that_are_not_there_yet_are_moved():
    task = _shaped(("a", 100, 32), ("b", 100, 16), ("c", 100, 8))
    before = assemble(task, [(0, 32, 0), (1, 16, 1), (2, 8, 1)])
    after = assemble(task, [(0, 20, 0), (0, 12, 1), (1, 16, 1), (2, 8, 0)])
    assert table_changes(before, after) == (
        TableChange("a", ((0, 32),), ((0, 20), (1, 12)), 100 * 12 * 4),
        TableChange("c", ((1, 8),), ((0, 8),), 100 * 8 * 4),
    )
    assert table_changes(after, after) == ()


def test_the_most_bytes_come_first():
    task = _shaped(("narrow", 10_000, 4), ("b", 10, 64), ("a", 10, 64), ("wide", 100, 128))
    before = assemble(task, [(i, table.dim, 0) for i, table in enumerate(task.tables)])
    after = assemble(task, [(i, table.dim, 1) for i, table in enumerate(task.tables)])
    assert [move.table for move in table_changes(before, after)] == ["narrow", "wide", "a", "b"]


def test_another_form_in_the_same_places_is_a_change():
    task = _task("a")
    copies, rows = Plan(task, tuple(in_copies(task, 0))), Plan(task, tuple(in_rows(task, 0, [0, 1])))
    (only,) = table_changes(copies, rows)
    assert (only.before == only.after, only.size_bytes) == (True, 0)
    there = "device 0 (8 columns), device 1 (8 columns)"
    assert str(only) == f"table a: 0 bytes moved, {there}, in copies -> {there}, in rows"


@pytest.mark.parametrize(("optimizer", "copies"), [("sgd", 1), ("adam", 3)])
def test_what_is_new_on_a_device_counts_with_its_optimizer_state(optimizer, copies):
    task = replace(toy_task(3), memory=MemoryUse(optimizer))
    before = assemble(task, [(i, table.dim, i) for i, table in enumerate(task.tables)])
    after = assemble(task, [(i, table.dim, (0, 1, 3)[i]) for i, table in enumerate(task.tables)])
    assert moved_between(before, after).tolist() == [0, 0, copies * task.tables[2].size_bytes]
    assert moved_between(after, after).tolist() == [0, 0, 0]


def test_state_of_rows_counts_on_devices_that_had_no_shard():
    task = replace(toy_task(2), memory=MemoryUse("rowwise_adagrad"))
    dim, rows = task.tables[0].dim, task.tables[0].rows
    other = (1, task.tables[1].dim, 0)
    before = assemble(task, [(0, dim - 4, 0), (0, 4, 1), other])
    wider = assemble(task, [(0, dim - 8, 0), (0, 8, 1), other])
    elsewhere = assemble(task, [(0, dim - 8, 0), (0, 4, 1), (0, 4, 2), other])
    assert moved_between(before, wider).tolist() == [rows * 4 * 4, 0]
    assert moved_between(before, elsewhere).tolist() == [rows * (4 * 4 + 4), 0]


def test_pinned_shards_are_columns_like_any():
    """Two devices change their parts of a table, as wide: nothing moves, whichever part is pinned."""
    task = toy_task(2)
    table, other = replace(task.tables[0], dim=8), task.tables[1]
    pinned = Constraints(pinned=(PinnedShard(table.name, 4, (0, 1)), PinnedShard(table.name, 4, (0, 1))))
    task = replace(task, tables=(table, other), constraints=pinned)
    plan = assemble(task, [(0, 4, 0), (0, 4, 1), (1, other.dim, 0)])
    one, two, whole = plan.placements
    swapped = replace(plan, placements=(replace(one, device=two.device), replace(two, device=one.device), whole))
    assert moved_between(plan, swapped).tolist() == [0, 0]


def test_plans_may_be_for_different_numbers_of_devices():
    few, many = (replace(toy_task(2), topology=Topology(count, 1 << 30)) for count in (2, 4))
    before, after = (
        assemble(task, [(i, t.dim, d) for i, t in enumerate(task.tables)]) for task, d in ((few, 1), (many, 3))
    )
    assert moved_between(before, after).tolist() == [table.size_bytes for table in few.tables]
    assert moved_between(after, before).tolist() == [table.size_bytes for table in few.tables]


def test_rows_stay_where_they_are_in_both_plans():
    """Three blocks of rows on three devices become four on four; then copies, and one of them alone."""
    table = replace(toy_task(1).tables[0], rows=12, dim=8)
    few, many = (Task((table,), Topology(count, 1 << 30), 64, MemoryUse("rowwise_adagrad")) for count in (3, 4))
    thirds, quarters = Plan(few, tuple(in_rows(few, 0, range(3)))), Plan(many, tuple(in_rows(many, 0, range(4))))
    copies, alone = Plan(many, tuple(in_copies(many, 0))), assemble(many, [(0, 8, 1)])
    row = 8 * 4 + 4
    assert moved_between(thirds, quarters).tolist() == [(0 + 1 + 2 + 3) * row]  # of 0-2, 3-5, 6-8, 9-11
    assert moved_between(quarters, copies).tolist() == [4 * 9 * row]
    assert moved_between(copies, alone).tolist() == [0]
    assert moved_between(alone, copies).tolist() == [3 * 12 * row]
    assert moved_between(alone, quarters).tolist() == [3 * 3 * row]
