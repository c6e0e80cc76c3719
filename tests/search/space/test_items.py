"""Constraints as the search sees them."""

from dataclasses import replace

import numpy as np
import pytest

from neuroshard.app.searching import search
from neuroshard.layouts import in_columns, in_copies, in_rows
from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan, assemble
from neuroshard.plumbing.errors import UserError
from neuroshard.stages.search.space.base import Base
from neuroshard.stages.search.space.items import Items
from neuroshard.stages.search.space.packing import pack
from neuroshard.stages.search.space.sizes import Sizes
from neuroshard.tables import Table
from neuroshard.tasks.constraints import Constraints, PinnedShard, TableRule
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing import ONCE, constrained_task, linear_models, toy_task


def _task(constraints, dims=(16, 16, 32, 8), num_devices=3):
    tables = tuple(Table(f"t{i}", 100, dim, 2.0, ONCE) for i, dim in enumerate(dims))
    return Task(tables, Topology(num_devices, 1 << 30), 64, constraints=constraints)


def test_without_constraints_items_are_tables():
    task = toy_task(7)
    items = Items.of(Base.empty(task))
    assert [item.parts for item in items.items] == [((i, t.dim // 4),) for i, t in enumerate(task.tables)]
    assert items.limits.allowed.all()
    assert not items.confined.any()


def test_tables_kept_together_are_one_item_that_is_not_split():
    rules = (TableRule("t1", devices=(0, 2)), TableRule("t3", devices=(1, 2)))
    items = Items.of(Base.empty(_task(Constraints(rules, together=(("t3", "t1"),)))))
    assert [item.parts for item in items.items] == [((0, 4),), ((1, 4), (3, 2)), ((2, 8),)]
    assert items.items[1].devices == (2,)
    assert items.items[1].max_shards == 1
    plan = items.plan(np.array([[4, 0, 0], [0, 0, 6], [3, 5, 0]]))
    assert plan == assemble(items.task, [(0, 16, 0), (1, 16, 2), (3, 8, 2), (2, 12, 0), (2, 20, 1)])
    assert plan.violations == ()


def test_pinned_shards_are_items_apart_from_the_rest_of_their_table():
    constraints = Constraints((TableRule("t2", min_shards=3),), (PinnedShard("t2", 8, (1,)),))
    items = Items.of(Base.empty(_task(constraints)))
    assert [item.parts for item in items.items] == [((0, 4),), ((1, 4),), ((2, 2),), ((2, 6),), ((3, 2),)]
    assert items.items[2].devices == (1,)
    assert (items.items[3].min_shards, items.items[3].max_shards) == (2, 6)
    assert items.rivals_of(2).tolist() == [3]
    assert items.rivals_of(3).tolist() == [2]


def test_tables_kept_apart_are_rivals():
    items = Items.of(Base.empty(_task(Constraints(apart=(("t0", "t1"), ("t1", "t3")), together=(("t2", "t3"),)))))
    assert [items.rivals_of(i).tolist() for i in range(3)] == [[1], [0, 2], [1]]


@pytest.mark.parametrize("seed", range(20))
def test_plans_become_matrices_and_back(seed):
    task = constrained_task(seed)
    sizes = Sizes.of(Items.of(Base.empty(task)))
    held = pack(sizes, np.full(task.topology.num_devices, 1 << 40))
    plan = sizes.items.plan(held)
    assert sizes.items.plan(sizes.items.held(plan)) == plan


def test_a_whole_table_may_be_pinned_and_kept_together():
    tables = tuple(replace(table, dim=12) for table in toy_task(2).tables)
    rules = Constraints(
        together=((tables[0].name, tables[1].name),), pinned=(PinnedShard(tables[0].name, 12, devices=(1, 2)),)
    )
    task = Task(tables, Topology(4, 1 << 30), 256, constraints=rules)
    (item,) = Items.of(Base.empty(task)).items
    assert item.devices == (1, 2)
    plan = search(task, Simulator(linear_models()), searcher="dim_greedy")
    assert plan.violations == ()
    with pytest.raises(UserError, match="kept together tables aren't split"):
        Task(tables, task.topology, 256, constraints=replace(rules, pinned=(PinnedShard(tables[0].name, 8, (1,)),)))


def test_tables_that_may_not_lie_in_columns_are_refused():
    task = toy_task(3)
    rules = Constraints((TableRule("toy1", forms=("rows", "copies")),))
    with pytest.raises(
        UserError, match="'toy1' may lie in copies or rows only, and searches lay tables out in columns"
    ):
        Items.of(Base.empty(replace(task, constraints=rules)))


def test_plans_with_rows_or_copies_are_no_items():
    task = toy_task(2)
    whole = in_columns(task, [(1, task.tables[1].dim, 0)])
    for placed, form in ((in_rows(task, 0, range(4)), "rows"), (in_copies(task, 0), "copies")):
        with pytest.raises(UserError, match=f"table 'toy0' lies in {form}, and searches set out from columns only"):
            Items.of(Base.empty(task)).held(Plan(task, (*placed, *whole)))
