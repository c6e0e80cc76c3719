"""Moved bytes, against numbers worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

import neuroshard as ns
from neuroshard.layouts import in_copies, in_rows
from neuroshard.plans.moves import moved_between
from neuroshard.plans.plan import Plan, assemble
from neuroshard.stages.search.space.base import Base
from neuroshard.stages.search.space.items import Items
from neuroshard.stages.search.space.moved import moved_bytes
from neuroshard.stages.search.space.sizes import Sizes
from neuroshard.tasks.constraints import Constraints, PinnedShard
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing import toy_task


@pytest.mark.parametrize(("optimizer", "copies"), [("sgd", 1), ("adam", 3)])
def test_what_is_new_on_a_device_counts_with_its_optimizer_state(optimizer, copies):
    task = replace(toy_task(3), memory=ns.MemoryUse(optimizer))
    before = assemble(task, [(i, table.dim, i) for i, table in enumerate(task.tables)])
    after = assemble(task, [(i, table.dim, (0, 1, 3)[i]) for i, table in enumerate(task.tables)])
    assert moved_between(before, after).tolist() == [0, 0, copies * task.tables[2].size_bytes]
    assert moved_between(after, after).tolist() == [0, 0, 0]


def test_state_of_rows_counts_on_devices_that_had_no_shard():
    task = replace(toy_task(2), memory=ns.MemoryUse("rowwise_adagrad"))
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
    few, many = (Task((table,), Topology(count, 1 << 30), 64, ns.MemoryUse("rowwise_adagrad")) for count in (3, 4))
    thirds, quarters = Plan(few, tuple(in_rows(few, 0, range(3)))), Plan(many, tuple(in_rows(many, 0, range(4))))
    copies, alone = Plan(many, tuple(in_copies(many, 0))), assemble(many, [(0, 8, 1)])
    row = 8 * 4 + 4
    assert moved_between(thirds, quarters).tolist() == [(0 + 1 + 2 + 3) * row]  # of 0-2, 3-5, 6-8, 9-11
    assert moved_between(quarters, copies).tolist() == [4 * 9 * row]
    assert moved_between(copies, alone).tolist() == [0]
    assert moved_between(alone, copies).tolist() == [3 * 12 * row]
    assert moved_between(alone, quarters).tolist() == [3 * 3 * row]


@pytest.mark.parametrize("seed", range(4))
def test_plans_of_columns_count_as_searches_count_them(seed):
    task, rng = replace(toy_task(6, seed=seed), memory=ns.MemoryUse("rowwise_adagrad")), np.random.default_rng(seed)
    items = Items.of(Base.empty(task))
    sizes = Sizes.of(items)
    held = [rng.multinomial(sizes.full_width, [0.4, 0.3, 0.2, 0.1]) for _ in range(2)]
    expected = moved_bytes(sizes.state_bytes, sizes.first, *held)
    assert moved_between(*(items.plan(some) for some in held)).tolist() == expected.tolist()


@pytest.mark.parametrize("seed", range(4))
def test_columns_times_rows_where_nothing_else_is_counted(seed):
    task, rng = toy_task(6, seed=seed), np.random.default_rng(seed)
    sizes = Sizes.of(Items.of(Base.empty(task)))
    before, after = (rng.multinomial(sizes.full_width, [0.25] * 4) for _ in range(2))
    more = np.maximum(after - before, 0).sum(axis=1) * 4
    expected = [
        int(columns) * table.rows * table.bytes_per_element for columns, table in zip(more, task.tables, strict=True)
    ]
    assert moved_bytes(sizes.state_bytes, sizes.first, before, after).tolist() == expected
