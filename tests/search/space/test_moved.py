"""Moved bytes, against numbers worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

import neuroshard as ns
from neuroshard.plans.plan import assemble
from neuroshard.stages.search.space.items import Items
from neuroshard.stages.search.space.moved import moved_between, moved_bytes
from neuroshard.stages.search.space.sizes import Sizes
from neuroshard.tasks.constraints import Constraints, PinnedShard
from neuroshard.tasks.task import Topology
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
    swapped = replace(plan, shards=(plan.shards[1], plan.shards[0], plan.shards[2]), devices=plan.devices)
    assert moved_between(plan, swapped).tolist() == [0, 0]


def test_plans_may_be_for_different_numbers_of_devices():
    few, many = (replace(toy_task(2), topology=Topology(count, 1 << 30)) for count in (2, 4))
    before, after = (
        assemble(task, [(i, t.dim, d) for i, t in enumerate(task.tables)]) for task, d in ((few, 1), (many, 3))
    )
    assert moved_between(before, after).tolist() == [table.size_bytes for table in few.tables]
    assert moved_between(after, before).tolist() == [table.size_bytes for table in few.tables]


@pytest.mark.parametrize("seed", range(4))
def test_columns_times_rows_where_nothing_else_is_counted(seed):
    task, rng = toy_task(6, seed=seed), np.random.default_rng(seed)
    sizes = Sizes.of(Items.of(task))
    before, after = (rng.multinomial(sizes.full_width, [0.25] * 4) for _ in range(2))
    more = np.maximum(after - before, 0).sum(axis=1) * 4
    expected = [
        int(columns) * table.rows * table.bytes_per_element for columns, table in zip(more, task.tables, strict=True)
    ]
    assert moved_bytes(sizes.state_bytes, sizes.first, before, after).tolist() == expected
