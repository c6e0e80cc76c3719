"""Tables in host memory: put there where devices have too little, and no more of them than need be."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import neuroshard as ns
from neuroshard.layouts import in_columns, in_rows
from neuroshard.models.simulator import Simulator
from neuroshard.plans.moves import moved_bytes
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import InfeasibleError
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.heuristics import Greedy
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.methods.replan import Replan
from neuroshard.stages.search.report.explanation import explain
from neuroshard.stages.search.space.homes import HomeOptions, caches_grown, rehomed
from neuroshard.tables.sources.dlrm_like import dlrm_like
from neuroshard.tasks.constraints import Constraints, TableRule
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing import linear_models
from neuroshard.words.placement import ON_DEVICE, Home, Tier

SIMULATOR = Simulator(ns.CostModels.load("roofline:h100"))
BATCH = 4096
QUICKLY = NeuroShard(improvement=Improvement(shakes=10))
LARGE = tuple(table.with_dim(32) for table in dlrm_like(seed=3, batch_size=BATCH) if table.rows > 50_000)


def _task(share, count=8, devices=4, host_share=2.0, **fields):
    """Devices with room for a share of the tables."""
    tables = LARGE[:count]
    total = sum(table.size_bytes for table in tables)
    memory = max(int(total * share / devices), 1)
    return Task(tables, Topology(devices, memory, host_memory_bytes=int(total * host_share)), BATCH, **fields)


def _cost(plan):
    return SIMULATOR.cost(plan.task, plan).total_ms


def _tiers(plan):
    return {home.tier for home in plan.homes}


def test_tables_stay_on_devices_that_have_room():
    plan = QUICKLY.find(_task(2.0), SIMULATOR).plan
    assert _tiers(plan) == {Tier.DEVICE}
    without = _task(2.0)
    without = replace(without, topology=replace(without.topology, host_memory_bytes=0))
    assert QUICKLY.find(without, SIMULATOR).plan.placements == plan.placements


def test_less_memory_costs_more():
    plans = [QUICKLY.find(_task(share), SIMULATOR).plan for share in (1.2, 0.7, 0.4, 0.2, 0.05)]
    costs = [_cost(plan) for plan in plans]
    assert not any(plan.violations for plan in plans)
    assert costs == sorted(costs)
    assert all(Tier.DEVICE not in _tiers(plan) or len(_tiers(plan)) > 1 for plan in plans[1:])


def test_plans_without_room_on_devices_need_host_memory():
    task = _task(0.5, host_share=0.0)
    with pytest.raises(InfeasibleError, match="the tables take"):
        QUICKLY.find(task, SIMULATOR)
    assert QUICKLY.find(_task(0.5), SIMULATOR).plan.fits


def test_plans_of_tiny_tasks_are_near_the_best():
    """Of whole tables on 2 devices in a few memories; searches may also cut tables and choose other caches."""
    homes = (ON_DEVICE, *(Home(Tier.CACHED, share) for share in (0.05, 0.2, 0.6)), Home(Tier.HOST))
    gaps = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        task = _task(rng.uniform(0.15, 0.6), count=3, devices=2)
        task = replace(task, tables=tuple(LARGE[i] for i in rng.choice(len(LARGE), 3, replace=False)))
        total = sum(table.size_bytes for table in task.tables)
        memory = int(total * rng.uniform(0.15, 0.6) / 2)
        task = replace(task, topology=Topology(2, memory, host_memory_bytes=total))
        dims = [table.dim for table in task.tables]
        whole = [
            Plan(task, tuple(in_columns(task, zip(range(3), dims, (0, *places), strict=True))))
            for places in product(range(2), repeat=2)
        ]
        every = [rehomed(plan, task, chosen) for plan in whole for chosen in product(homes, repeat=3)]
        fitting = [plan for plan in every if plan.fits]
        best = min(cost.total_ms for cost in SIMULATOR.costs(task, fitting))
        gaps.append(_cost(QUICKLY.find(task, SIMULATOR).plan) / best - 1)
    assert np.mean(gaps) < 0.02
    assert max(gaps) < 0.1


def test_rules_are_kept():
    names = [table.name for table in LARGE[:8]]
    rules = Constraints((TableRule(names[0], tiers=("host",)), TableRule(names[1], tiers=("cached",), cached=0.35)))
    for share in (0.4, 1.5):
        plan = QUICKLY.find(_task(share, constraints=rules), SIMULATOR).plan
        assert plan.homes[0] == Home(Tier.HOST)
        assert plan.homes[1] == Home(Tier.CACHED, 0.35)
        assert plan.violations == ()


@pytest.mark.parametrize("rule", [TableRule("*", tiers=("device", "host")), TableRule("*", tiers=("cached",))])
def test_every_table_may_be_kept_out_of_a_memory(rule):
    plan = QUICKLY.find(_task(0.5, constraints=Constraints((rule,))), SIMULATOR).plan
    assert _tiers(plan) <= {Tier(tier) for tier in rule.tiers}
    assert plan.violations == ()


def test_other_searchers_leave_tables_where_rules_put_them():
    names = [table.name for table in LARGE[:8]]
    rules = Constraints(tuple(TableRule(name, tiers=("host",)) for name in names[:6]))
    plan = Greedy("dim").find(_task(2.0, constraints=rules), SIMULATOR).plan
    assert plan.homes == (Home(Tier.HOST),) * 6 + (ON_DEVICE,) * 2
    assert plan.violations == ()


@pytest.mark.parametrize(
    ("share", "host_share", "rules", "why"),
    [
        (0.3, 0.3, (), "device and host memory are both short: the tables take"),
        (0.3, 2.0, (TableRule("*", tiers=("device",)),), "device memory is short: with all tables on hosts"),
        (1.5, 0.5, (TableRule("*", tiers=("host",)),), "host memory is short: tables that must lie there take"),
    ],
)
def test_the_memory_that_is_short_is_named(share, host_share, rules, why):
    with pytest.raises(InfeasibleError, match=why):
        QUICKLY.find(_task(share, host_share=host_share, constraints=Constraints(rules)), SIMULATOR)


def test_caches_of_tables_on_several_devices_take_what_is_left():
    task = _task(0.5, count=3)
    placed = [placed for table in range(3) for placed in in_rows(task, table, range(4))]
    plan = rehomed(Plan(task, tuple(placed)), task, (Home(Tier.CACHED, 0.01), Home(Tier.HOST), Home(Tier.CACHED, 0.2)))
    grown = caches_grown(plan, HomeOptions.of(task, SIMULATOR.models.compute), SIMULATOR)
    assert grown.violations == ()
    assert _cost(grown) < _cost(plan)
    assert min(grown.device_bytes) > max(plan.device_bytes)


def test_every_host_has_room_for_its_own():
    task = _task(0.3, host_share=0.55)
    task = replace(task, topology=replace(task.topology, devices_per_host=2))
    plan = QUICKLY.find(task, SIMULATOR).plan
    assert max(plan.host_bytes) <= task.topology.host_bytes
    assert plan.violations == ()


def test_models_that_know_no_host_memory_leave_it_alone():
    plan = QUICKLY.find(_task(2.0), Simulator(replace(linear_models(), batch_size=BATCH))).plan
    assert _tiers(plan) == {Tier.DEVICE}


def test_running_jobs_keep_their_memories():
    plan = replace(QUICKLY, forms=("columns",)).find(_task(0.4), SIMULATOR).plan
    worse = Plan(plan.task, tuple(replace(placed, device=(placed.device + 1) % 4) for placed in plan.placements))
    moved = Replan(worse, improvement=Improvement(shakes=5)).find(plan.task, SIMULATOR).plan
    assert moved.homes == plan.homes
    assert moved.task == plan.task
    assert moved.violations == ()
    assert _cost(moved) <= _cost(worse)


def test_memories_stay_where_a_table_goes():
    plan = QUICKLY.find(_task(0.4), SIMULATOR).plan
    fewer = replace(plan.task, tables=plan.task.tables[1:])
    assert len(set(plan.homes[1:])) > 1
    changed = Replan(plan, improvement=Improvement(shakes=1), least_gain=1e9).find(fewer, SIMULATOR).plan
    assert changed.homes == plan.homes[1:]
    assert moved_bytes(plan, changed) == 0


def test_plans_are_explained_and_have_finalists():
    plan = QUICKLY.find(_task(0.4), SIMULATOR).plan
    found = explain(plan, SIMULATOR)
    homes = {plan.task.tables[table].name: home for table, home in enumerate(plan.homes)}
    assert {share.table.name: share.placed.home for share in found.shards} == homes
    finalists = QUICKLY.finalists(plan, SIMULATOR, 4)
    assert finalists[0] is plan
    assert {one.homes for one in finalists} == {plan.homes}
    assert all(one.task == plan.task for one in finalists)


def test_plans_repeat():
    assert QUICKLY.find(_task(0.4), SIMULATOR).plan == QUICKLY.find(_task(0.4), SIMULATOR).plan
