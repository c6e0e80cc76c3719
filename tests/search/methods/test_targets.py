"""Searches for a target find the best plan that the target can express."""

from dataclasses import replace

import pytest

from neuroshard import Plan, Simulator, TableRule, export_plan, search
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.targets.target import constrained
from neuroshard.testing import linear_models, sequence_task, toy_task
from neuroshard.words.form import Form
from tests.kit.exhaustive import checked_plan, tiny_task
from tests.kit.messages import refused
from tests.kit.searches import H100


def _hot_task():
    """Make a task with a table that is best split in three, on three devices."""
    task = toy_task(4, 3)
    hot, *rest = (replace(table, dim=4, pooling_factor=1.0) for table in task.tables)
    return replace(task, tables=(replace(hot, name="hot", dim=64, pooling_factor=30.0), *rest))


def _searched(target):
    plan = search(_hot_task(), Simulator(linear_models(3)), target=target)
    return plan, sorted(placed.shard.dim for placed in plan.placements if placed.shard.table == 0)


def test_search_for_a_target_finds_a_plan_that_the_target_can_express():
    (free, thirds), (equal, halves), (whole, alone) = map(_searched, (None, "hugectr", "sok"))
    assert (len(thirds), halves, alone) == (3, [32, 32], [64])
    assert [whole.task] == list(constrained([_hot_task()], "sok"))
    costs = [plan.prediction.cost_ms for plan in (free, equal, whole)]
    assert costs == sorted(costs)
    for name, plan, others in (("hugectr", equal, [free]), ("sok", whole, [free, equal])):
        assert plan.violations == ()
        export_plan(plan, name)
        for other in others:
            with refused("export-table-unsupported", where="plan", names=["'hot'", f"target={name}"]):
                export_plan(other, name)


def test_large_tables_for_sok_are_row_wise():
    """A table is row-wise if models know row-wise tables, and no device has memory for the whole table."""
    task = _hot_task()
    large = replace(task.tables[0], rows=10_000)
    task = replace(task, tables=(large, *task.tables[1:]), topology=replace(task.topology, memory_bytes=1_500_000))
    plan = search(task, H100, target="sok")
    assert plan.forms[0] is Form.ROW_WISE
    assert export_plan(plan, "sok").content["variables"][0]["mode"] == "distributed"


@pytest.mark.parametrize("target", ["sok", "hugectr"])
def test_search_for_a_target_makes_sequence_tables_row_wise(target):
    task = sequence_task(6, 3)
    plan = search(task, H100, target=target)
    assert plan.violations == ()
    forms = {table.pooled: form for table, form in zip(task.tables, plan.forms, strict=True)}
    assert forms[False] is Form.ROW_WISE
    export_plan(plan, target)


def test_search_for_torchrec_finds_the_plan_without_a_target():
    assert search(_hot_task(), H100, target="torchrec") == search(_hot_task(), H100)


@pytest.mark.parametrize("tasks", [50, pytest.param(150, marks=pytest.mark.slow)])
def test_search_with_equal_widths_finds_a_plan_if_there_is_one(tasks):
    found, equal = 0, (TableRule("*", max_shards=2, equal_widths=True),)
    searcher = NeuroShard(sharding_types=("column_wise",))
    for seed in range(tasks):
        plan = checked_plan(searcher, tiny_task(seed, rules=equal), seed)
        if isinstance(plan, Plan):
            found += 1
            shapes = {(placed.shard.table, placed.shard.dim) for placed in plan.placements}
            assert len(shapes) == len(plan.task.tables), seed
    assert found > tasks / 8
