"""Moved bytes between plans, of changed tables and devices too, and plans that are equivalent for the hardware."""

from dataclasses import replace

import pytest

from neuroshard import Constraints, MemoryUse, PinnedShard, Task, Topology
from neuroshard.plans.moves import TableChange, layout_key, moved_between, moved_bytes, table_changes
from neuroshard.testing import toy_task
from tests.kit.plans import DATA_PARALLEL, laid_out, table, tables, whole


def _task(names, devices=2, **fields):
    return Task(tables(names, 10, 8), Topology(devices, 1 << 20), 64, **fields)


def _shaped(*shapes):
    return Task(tuple(table(*shape) for shape in shapes), Topology(2, 1 << 30), 256)


def test_moves_match_tables_of_both_plans_by_name():
    before, after = whole(_task("abc"), 0, 1, 0), whole(_task("cab"), 0, 1, 1)
    assert moved_between(before, after).tolist() == [0, 10 * 8 * 4, 0]
    (only,) = table_changes(before, after)
    assert (only.table, only.before, only.after, only.size_bytes) == ("a", ((0, 8),), ((1, 8),), 320)
    assert str(only) == "table a: 320 bytes moved, device 0 (8 columns) -> device 1 (8 columns)"


def test_new_and_removed_tables_are_named_and_count_no_moved_bytes():
    before, after = whole(_task("ab")), laid_out(_task("bc", 3), {1: 4, 2: 4}, 2)
    changes = {change.table: change for change in table_changes(before, after)}
    assert [change.is_new for change in changes.values()] == [True, False, False]
    assert {name: change.size_bytes for name, change in changes.items()} == {"c": 320, "b": 160, "a": 0}
    assert moved_bytes(before, after) == 160
    assert str(changes["a"]) == "table a: gone"
    assert str(changes["c"]) == "table c: new, 320 bytes on device 2 (8 columns)"


def test_moved_bytes_count_changes_of_sharding_type_with_optimizer_state():
    task = _task("a", memory=MemoryUse("adam"))
    alone, rows, data_parallel = (laid_out(task, where) for where in (0, [0, 1], DATA_PARALLEL))
    assert moved_bytes(alone, rows) == 5 * 8 * 12
    assert moved_bytes(alone, data_parallel) == 10 * 8 * 12
    assert moved_bytes(data_parallel, rows) == 0
    assert moved_bytes(replace(alone, task=replace(task, memory=MemoryUse())), data_parallel) == 10 * 8 * 12


def test_table_changes_list_another_sharding_type_on_the_same_devices():
    task = _task("a")
    (only,) = table_changes(laid_out(task, DATA_PARALLEL), laid_out(task, [0, 1]))
    assert (only.before == only.after, only.size_bytes) == (True, 0)
    there = "device 0 (8 columns), device 1 (8 columns)"
    assert str(only) == f"table a: 0 bytes moved, {there}, data-parallel -> {there}, row-wise"


def test_table_changes_count_only_columns_that_are_new_to_a_device():
    task = _shaped(("a", 100, 32), ("b", 100, 16), ("c", 100, 8))
    before, after = whole(task, 0, 1, 1), laid_out(task, {0: 20, 1: 12}, 1, 0)
    assert table_changes(before, after) == (
        TableChange("a", ((0, 32),), ((0, 20), (1, 12)), 100 * 12 * 4),
        TableChange("c", ((1, 8),), ((0, 8),), 100 * 8 * 4),
    )
    assert table_changes(after, after) == ()
    assert moved_bytes(after, after) == 0


def test_table_changes_list_the_most_moved_bytes_first():
    task = _shaped(("narrow", 10_000, 4), ("b", 10, 64), ("a", 10, 64), ("wide", 100, 128))
    assert [move.table for move in table_changes(whole(task, 0), whole(task, 1))] == ["narrow", "wide", "a", "b"]


@pytest.mark.parametrize(("optimizer", "copies"), [("sgd", 1), ("adam", 3)])
def test_moved_bytes_count_weights_and_optimizer_state(optimizer, copies):
    task = replace(toy_task(3), memory=MemoryUse(optimizer))
    before, after = whole(task), whole(task, 0, 1, 3)
    assert moved_between(before, after).tolist() == [0, 0, copies * task.tables[2].size_bytes]
    assert moved_between(after, after).tolist() == [0, 0, 0]


def test_moved_bytes_count_rowwise_state_only_on_devices_without_a_shard_before():
    task = replace(toy_task(2), memory=MemoryUse("rowwise_adagrad"))
    dim, rows = task.tables[0].dim, task.tables[0].rows
    before, wider = laid_out(task, {0: dim - 4, 1: 4}, 0), laid_out(task, {0: dim - 8, 1: 8}, 0)
    elsewhere = laid_out(task, {0: dim - 8, 1: 4, 2: 4}, 0)
    assert moved_between(before, wider).tolist() == [rows * 4 * 4, 0]
    assert moved_between(before, elsewhere).tolist() == [rows * (4 * 4 + 4), 0]


def test_moved_bytes_are_0_if_equal_pinned_and_free_shards_swap_devices():
    """Two devices swap equally wide shards of a table: nothing moves, whichever shard is pinned."""
    pinned = Constraints(pinned=(PinnedShard("a", 4, (0, 1)), PinnedShard("a", 4, (0, 1))))
    plan = laid_out(_task("ab", constraints=pinned), {0: 4, 1: 4}, 0)
    one, two, other = plan.placements
    swapped = replace(plan, placements=(replace(one, device=two.device), replace(two, device=one.device), other))
    assert moved_between(plan, swapped).tolist() == [0, 0]


def test_plans_may_be_for_different_numbers_of_devices():
    few, many = (replace(toy_task(2), topology=Topology(count, 1 << 30)) for count in (2, 4))
    before, after = whole(few, 1), whole(many, 3)
    assert moved_between(before, after).tolist() == [its.size_bytes for its in few.tables]
    assert moved_between(after, before).tolist() == [its.size_bytes for its in few.tables]


def test_moved_bytes_leave_out_rows_that_a_device_has_in_both_plans():
    """Three blocks of rows on three devices become four on four; then data-parallel, then table-wise."""
    few, many = (
        Task((table("t", 12, 8),), Topology(count, 1 << 30), 64, MemoryUse("rowwise_adagrad")) for count in (3, 4)
    )
    thirds = laid_out(few, range(3))
    quarters, data_parallel, alone = (laid_out(many, where) for where in (range(4), DATA_PARALLEL, 1))
    row = 8 * 4 + 4
    assert moved_between(thirds, quarters).tolist() == [(0 + 1 + 2 + 3) * row]  # of 0-2, 3-5, 6-8, 9-11
    assert moved_between(quarters, data_parallel).tolist() == [4 * 9 * row]
    assert moved_between(data_parallel, alone).tolist() == [0]
    assert moved_between(alone, data_parallel).tolist() == [3 * 12 * row]
    assert moved_between(alone, quarters).tolist() == [3 * 3 * row]


@pytest.mark.parametrize(
    ("host_size", "devices", "alike", "others"),
    [
        (None, [0, 1, 2, 2], [3, 0, 1, 1], [[0, 1, 2, 3], [0, 2, 1, 2]]),
        (2, [0, 1, 2, 3], [3, 2, 0, 1], [[0, 2, 1, 3]]),  # the hosts, and the first one's devices
    ],
)
def test_layout_key_ignores_the_order_of_devices_in_a_host_and_of_hosts(host_size, devices, alike, others):
    task = replace(toy_task(4), topology=Topology(4, 1 << 30, devices_per_host=host_size))
    assert layout_key(whole(task, *devices)) == layout_key(whole(task, *alike))
    assert layout_key(whole(task, *devices)) not in [layout_key(whole(task, *other)) for other in others]


def test_moved_bytes_ignore_the_order_of_columns_but_not_of_rows():
    task = toy_task(3, num_devices=2)
    wide = next(i for i, its in enumerate(task.tables) if its.dim >= 16)
    dim = task.tables[wide].dim
    places = {0: 4, 1: dim - 4}, {0: dim - 4, 1: 4}, [0, 1], [1, 0]
    one, other, *blocks = (laid_out(task, *(where if i == wide else 0 for i in range(3))) for where in places)
    assert layout_key(one) != layout_key(other)
    in_order = layout_key(blocks[0]) == layout_key(blocks[1])
    assert in_order == (blocks[0] == blocks[1])  # the block beside the others is another one
    assert layout_key(blocks[0]) != layout_key(one)


GREW = {"rows": ({"rows": 20}, 320), "dim": ({"dim": 16}, 320), "data type": ({"bytes_per_element": 2}, 160)}


@pytest.mark.parametrize(("other", "moved"), GREW.values(), ids=GREW)
def test_table_that_grew_moves_only_its_old_rows_and_columns(other, moved):
    """New rows and columns are made where they are; a converted table moves as it is afterwards."""
    before = whole(_task("ab"))
    changed = replace(before.task, tables=(before.task.tables[0], replace(before.task.tables[1], **other)))
    stayed, went = whole(changed), whole(changed, 0)
    assert moved_bytes(before, stayed) == 0
    assert moved_bytes(before, went) == moved
    (only,) = table_changes(before, went)
    assert (only.table, only.is_new, only.size_bytes) == ("b", False, moved)


def test_moved_bytes_of_a_grown_row_wise_table_are_old_rows_that_change_blocks():
    """Two blocks of 5 rows become two of 8: rows 5 to 7 move from the second to the first block; other rows are new."""
    before = laid_out(_task("a"), [0, 1])
    after = replace(before.task, tables=(replace(before.task.tables[0], rows=16),))
    assert moved_bytes(before, laid_out(after, [0, 1])) == 3 * 8 * 4
    assert moved_bytes(before, laid_out(after, DATA_PARALLEL)) == (5 + 5) * 8 * 4
