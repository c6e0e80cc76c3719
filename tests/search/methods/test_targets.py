"""Searches for a target: the best of what it can express, not a plan for everything that is cut down."""

from dataclasses import replace

import pytest

import neuroshard as ns
from neuroshard.errors import UserError
from neuroshard.plans.form import Form
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.targets.export import constrained
from neuroshard.tasks.constraints import TableRule
from neuroshard.testing import linear_models, toy_task
from neuroshard.testing.exhaustive import tiny_task

SIMULATOR = ns.Simulator(ns.CostModels.load("roofline:h100"))


def _hot_task():
    """One table that is worth cutting, among others."""
    task = toy_task(6)
    hot = replace(task.tables[0], name="hot", rows=2_000_000, dim=64, pooling_factor=300.0)
    topology = replace(task.topology, memory_bytes=1 << 34)
    return replace(task, tables=(hot, *task.tables[1:]), topology=topology, batch_size=65536)


def test_without_a_target_plans_are_what_few_targets_can_express():
    plan = ns.search(_hot_task(), SIMULATOR)
    for target in ("sok", "hugectr"):
        with pytest.raises(UserError):
            ns.export_plan(plan, target)


def test_a_target_is_searched_for():
    free = SIMULATOR.cost(_hot_task(), ns.search(_hot_task(), SIMULATOR)).total_ms
    for name in ("sok", "hugectr"):
        plan = ns.search(_hot_task(), SIMULATOR, target=name)
        assert plan.violations == ()
        ns.export_plan(plan, name)
        cost = SIMULATOR.cost(plan.task, plan).total_ms
        whole = ns.search(_hot_task(), SIMULATOR, searcher="dim_greedy", target=name)
        assert free * (1 - 1e-9) <= cost < SIMULATOR.cost(whole.task, whole).total_ms
        assert plan.forms[0] is Form.ROWS or len([p for p in plan.placements if p.shard.table == 0]) > 1


def test_torchrec_has_words_for_everything():
    assert ns.search(_hot_task(), SIMULATOR, target="torchrec") == ns.search(_hot_task(), SIMULATOR)


def test_equal_widths_have_plans_wherever_there_are_any():
    found, equal = 0, (TableRule("*", equal_widths=True),)
    searcher = NeuroShard(forms=("columns",))
    for seed in range(150):
        tiny = tiny_task(seed, rules=equal)
        try:
            task = tiny.task()
            plan = searcher.search(task, ns.Simulator(linear_models(task.topology.num_devices)))
        except UserError as error:
            assert "budget" in str(error) or not tiny.has_plan(), (seed, str(error))
        else:
            found += 1
            assert plan.violations == (), seed
            assert tiny.has_plan(), seed
            widths = {}
            for placed in plan.placements:
                widths.setdefault(placed.shard.table, set()).add(placed.shard.dim)
            assert all(len(its) == 1 for its in widths.values()), seed
    assert found > 20


def test_the_target_is_in_the_plan():
    (task,) = constrained([_hot_task()], "sok")
    assert ns.search(_hot_task(), SIMULATOR, target="sok").task == task
