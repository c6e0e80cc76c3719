"""Tables that may only be split into equal parts, and for which more than two parts pay."""

from dataclasses import replace

import pytest

import neuroshard as ns
from neuroshard import Constraints, InfeasibleError, PinnedShard, Simulator, TableRule
from neuroshard.plumbing.registry import build
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.targets.target import constrained
from neuroshard.testing import linear_models, toy_task
from tests.kit.messages import refused
from tests.kit.searches import H100, ms_of

SIMULATOR = Simulator(linear_models(4))
SEARCH = build("searcher", "neuroshard")


def _task(constraints=None, **hot):
    """Make a task with a table that is best split in four, on four devices."""
    task = toy_task(5, 4)
    first, *rest = (replace(table, dim=4, pooling_factor=1.0) for table in task.tables)
    wide = replace(first, **{"name": "hot", "rows": 1000, "dim": 64, "pooling_factor": 30.0} | hot)
    (kept,) = constrained([replace(task, tables=(wide, *rest), constraints=constraints or Constraints())], "hugectr")
    return kept


def _widths(plan):
    return sorted(placed.shard.dim for placed in plan.placements if placed.shard.table == 0)


def test_search_splits_a_hot_table_into_four_parts_and_adds_the_rule_to_the_plan():
    halves, found = (SEARCH.find(task, SIMULATOR).plan for task in (_halved(_task()), _task()))
    assert (_widths(halves), _widths(found)) == ([32, 32], [16, 16, 16, 16])
    assert ms_of(found, SIMULATOR) < ms_of(halves, SIMULATOR)
    assert found.violations == ()
    assert found.task.constraints.rules[-1] == TableRule("hot", min_shards=4)
    assert ns.export_plan(found, "hugectr").content["shard_strategy"][0][1][0] == ["hot", 4]
    assert found == SEARCH.find(_task(), SIMULATOR).plan
    assert SIMULATOR.cost(_task(), found).total_ms == ms_of(found, SIMULATOR)


@pytest.mark.parametrize(
    ("constraints", "most"),
    [
        (Constraints((TableRule("hot", max_shards=2),)), 2),
        (Constraints((TableRule("hot", max_shards=3),)), 2),
        (Constraints((TableRule("hot", min_dim=32),)), 2),
        (Constraints((TableRule("hot", devices=(0, 1)),)), 2),
        (Constraints((), (PinnedShard("hot", 32, (0,)),)), 2),
        (Constraints((), (), (("hot", "toy1"),)), 1),
    ],
)
def test_search_splits_a_table_into_no_more_parts_than_its_rules_allow(constraints, most):
    plan = SEARCH.find(_task(constraints), SIMULATOR).plan
    assert plan.violations == ()
    assert len(_widths(plan)) <= most


def _halved(task):
    """Return the task with at most two parts per table."""
    return task.with_rules([TableRule("*", max_shards=2)])


@pytest.mark.slow
def test_search_with_more_parts_finds_no_more_expensive_plan():
    for seed in range(4):
        (task,) = constrained([toy_task(12, 4, seed=seed)], "hugectr")
        halves, found = (SEARCH.find(one, SIMULATOR).plan for one in (_halved(task), task))
        assert found.violations == ()
        assert ms_of(found, SIMULATOR) <= ms_of(halves, SIMULATOR)


def test_search_splits_a_table_into_four_parts_if_halves_exceed_a_device():
    task = _task(rows=10_000)
    part = 10_000 * 16 * 4
    task = replace(task, topology=replace(task.topology, memory_bytes=part + 200_000))
    with refused("table-exceeds-device", names=["'hot'", "32 columns"], kind=InfeasibleError):
        SEARCH.find(_halved(task), SIMULATOR)
    assert _widths(SEARCH.find(task, SIMULATOR).plan) == [16] * 4
    tighter = replace(task, topology=replace(task.topology, memory_bytes=part // 2))
    with refused("tables-exceed-devices", names=["4 devices"], kind=InfeasibleError):
        SEARCH.find(tighter, SIMULATOR)


def test_search_makes_a_small_table_data_parallel_instead_of_splitting_it():
    task = replace(_task(rows=50), batch_size=65536)
    plan = NeuroShard().find(task, H100).plan
    assert plan.forms[0] == "data_parallel"


def test_candidate_plans_have_the_task_of_the_found_plan():
    plan = SEARCH.find(_task(), SIMULATOR).plan
    found = SEARCH.candidate_plans(plan, SIMULATOR, 4)
    assert found[0] == plan
    assert len(found) > 1
    assert {one.task == plan.task for one in found} == {True}
    assert not any(one.violations for one in found)
