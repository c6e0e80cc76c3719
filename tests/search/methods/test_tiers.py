"""Host tiers in searches: tables are in host memory only if devices lack memory, within the memory of hosts."""

import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import neuroshard as ns
from neuroshard import Constraints, InfeasibleError, PinnedShard, Plan, Simulator, Table, TableRule, Task, Topology
from neuroshard.plans.hosts import assigned_to_hosts, least_host_bytes
from neuroshard.plans.moves import moved_bytes
from neuroshard.plumbing.schema import to_bytes
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.heuristics import Greedy, Random
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.stages.search.methods.replan import Replan
from neuroshard.stages.search.options.tier_changes import assign_tiers, grow_caches, reassign_tiers
from neuroshard.stages.search.options.tiers import TierOptions
from neuroshard.stages.search.published.grid import GridSettings
from neuroshard.stages.search.report.explanation import explain
from neuroshard.tables.sources.dlrm_like import dlrm_like
from neuroshard.testing import linear_models
from neuroshard.words.form import Form
from neuroshard.words.placement import ON_DEVICE, Tier, TierAssignment
from tests.kit.messages import refused
from tests.kit.plans import laid_out, whole
from tests.kit.searches import H100, found, ms_of
from tests.kit.tasks import hot_table, plain_tables

BATCH = 4096
QUICKLY = NeuroShard(improvement=Improvement(perturbations=10))
GIB = 1 << 30
FEW_STEPS = Improvement(perturbations=3)
PLAIN = Random(), Greedy("size"), Greedy("size_lookup")
SEARCHERS = (*PLAIN, BeamSearch(max_splits=3), NeuroShard(improvement=FEW_STEPS))
EVERY = pytest.mark.parametrize("searcher", SEARCHERS, ids=lambda searcher: type(searcher).__name__)
ON_HOSTS = (TableRule("*", tiers=("uvm",)),)
LARGE = tuple(table.with_dim(32) for table in dlrm_like(seed=3, batch_size=BATCH) if table.rows > 50_000)


def _task(share, count=8, devices=4, host_share=2.0, devices_per_host=None, **fields):
    """Make a task on devices with memory for a share of the tables."""
    tables = LARGE[:count]
    total = sum(table.size_bytes for table in tables)
    memory = max(int(total * share / devices), 1)
    topology = Topology(devices, memory, devices_per_host=devices_per_host, host_memory_bytes=int(total * host_share))
    return Task(tables, topology, BATCH, **fields)


def _found(share, searcher=QUICKLY, simulator=H100, **fields):
    return found(searcher, _task(share, **fields), simulator)


def _tiers(plan):
    return {home.tier for home in plan.tier_assignments}


def test_tables_stay_on_devices_that_have_room():
    plan = _found(2.0)
    assert _tiers(plan) == {Tier.DEVICE}
    assert _found(2.0, host_share=0.0).placements == plan.placements
    knows_no_host = Simulator(replace(linear_models(), batch_size=BATCH))
    assert _tiers(_found(2.0, simulator=knows_no_host)) == {Tier.DEVICE}


def test_plan_costs_rise_as_device_memory_shrinks():
    plans = [_found(share) for share in (1.2, 0.7, 0.4, 0.2, 0.05)]
    costs = [ms_of(plan) for plan in plans]
    assert costs == sorted(costs)
    assert all(Tier.DEVICE not in _tiers(plan) or len(_tiers(plan)) > 1 for plan in plans[1:])


@pytest.mark.parametrize("tasks", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_plans_of_tiny_tasks_are_near_the_best(tasks):
    """Plans of whole tables on 2 devices with a few tiers; searches may also split tables and choose other caches."""
    homes = (
        ON_DEVICE,
        *(TierAssignment(Tier.UVM_CACHING, share) for share in (0.05, 0.2, 0.6)),
        TierAssignment(Tier.UVM),
    )
    gaps = []
    for seed in range(tasks):
        rng = np.random.default_rng(seed)
        tables = tuple(LARGE[i] for i in rng.choice(len(LARGE), 3, replace=False))
        total = sum(table.size_bytes for table in tables)
        memory = int(total * rng.uniform(0.15, 0.6) / 2)
        task = Task(tables, Topology(2, memory, host_memory_bytes=total), BATCH)
        plans = [laid_out(task, 0, *places) for places in product(range(2), repeat=2)]
        every = [reassign_tiers(plan, task, chosen) for plan in plans for chosen in product(homes, repeat=3)]
        fitting = [plan for plan in every if plan.fits]
        best = min(cost.total_ms for cost in H100.costs(task, fitting))
        gaps.append(ms_of(found(QUICKLY, task)) / best - 1)
    assert np.mean(gaps) < 0.02
    assert max(gaps) < 0.1


@pytest.mark.parametrize(
    ("share", "count"), [(0.8, 6), *(pytest.param(share, 8, marks=pytest.mark.slow) for share in (0.3, 0.6))]
)
def test_search_costs_at_most_1_percent_more_than_any_fixed_choice_of_tiers(share, count):
    """Each choice is searched by the same search, with rules that fix the tier of every table."""
    task = _task(share, count)
    options = TierOptions.of(task, H100.compute_for(task))
    bound = (
        assign_tiers(task, tuple(options.tier_assignments[option] for option in chosen))
        for chosen in options.choices(task)
    )
    each = [ms_of(QUICKLY.find(one, H100).plan) for one in bound]
    assert len(each) > 2
    assert ms_of(found(QUICKLY, task)) <= min(each) * 1.01


def test_search_keeps_the_tiers_that_rules_set():
    first, second = (table.name for table in LARGE[:2])
    rules = Constraints(
        (TableRule(first, tiers=("uvm",)), TableRule(second, tiers=("uvm_caching",), cache_load_factor=0.35))
    )
    for share in (0.4, 1.5):
        plan = _found(share, constraints=rules)
        assert plan.tier_assignments[:2] == (TierAssignment(Tier.UVM), TierAssignment(Tier.UVM_CACHING, 0.35))


@pytest.mark.parametrize("rule", [TableRule("*", tiers=("device", "uvm")), TableRule("*", tiers=("uvm_caching",))])
def test_search_uses_only_the_tiers_that_a_rule_for_all_tables_allows(rule):
    assert _tiers(_found(0.5, constraints=Constraints((rule,)))) <= {Tier(tier) for tier in rule.tiers}


def test_greedy_keeps_the_tiers_that_rules_set():
    rules = Constraints(tuple(TableRule(table.name, tiers=("uvm",)) for table in LARGE[:6]))
    assert (
        _found(2.0, Greedy("dim"), constraints=rules).tier_assignments
        == (TierAssignment(Tier.UVM),) * 6 + (ON_DEVICE,) * 2
    )


@pytest.mark.parametrize(
    ("share", "host_share", "rules", "code"),
    [
        (0.5, 0.0, (), "tables-exceed-devices"),
        (0.3, 0.3, (), "both-memories-too-small"),
        (0.3, 2.0, (TableRule("*", tiers=("device",)),), "device-memory-too-small"),
        (1.5, 0.5, (TableRule("*", tiers=("uvm",)),), "host-memory-required-tables"),
    ],
)
def test_error_names_the_memory_that_is_too_small(share, host_share, rules, code):
    with refused(code, names=["595 MiB"], kind=InfeasibleError):
        _found(share, host_share=host_share, constraints=Constraints(rules))


def test_caches_on_several_devices_grow_into_the_free_memory():
    task = _task(0.5, count=3)
    rows = laid_out(task, *[range(4)] * 3)
    plan = reassign_tiers(
        rows,
        task,
        (TierAssignment(Tier.UVM_CACHING, 0.01), TierAssignment(Tier.UVM), TierAssignment(Tier.UVM_CACHING, 0.2)),
    )
    grown = grow_caches(plan, TierOptions.of(task, H100.models.compute), H100)
    assert grown.violations == ()
    assert ms_of(grown) < ms_of(plan)
    assert min(grown.device_bytes) > max(plan.device_bytes)


def test_plan_with_several_hosts_stays_within_the_memory_of_each_host():
    plan = _found(0.3, host_share=0.55, devices_per_host=2)
    assert max(plan.host_bytes) <= plan.task.topology.host_bytes


def test_replan_keeps_the_tiers_of_the_running_job():
    plan = _found(0.4, replace(QUICKLY, sharding_types=("column_wise",)))
    worse = Plan(plan.task, tuple(replace(placed, device=(placed.device + 1) % 4) for placed in plan.placements))
    moved = found(Replan(worse, improvement=Improvement(perturbations=5)), plan.task)
    assert moved.tier_assignments == plan.tier_assignments
    assert ms_of(moved) <= ms_of(worse)


def test_replan_keeps_the_tiers_of_other_tables_if_a_table_is_removed():
    plan = _found(0.4)
    fewer = replace(plan.task, tables=plan.task.tables[1:])
    assert len(set(plan.tier_assignments[1:])) > 1
    changed = Replan(plan, improvement=Improvement(perturbations=1), min_gain=1e9).find(fewer, H100).plan
    assert changed.tier_assignments == plan.tier_assignments[1:]
    assert moved_bytes(plan, changed) == 0


def test_plans_are_explained_and_have_candidate_plans():
    plan = _found(0.4)
    explained = explain(plan, H100)
    homes = {plan.task.tables[table].name: home for table, home in enumerate(plan.tier_assignments)}
    assert {share.table.name: share.placed.tier_assignment for share in explained.shards} == homes
    candidate_plans = QUICKLY.candidate_plans(plan, H100, 4)
    assert candidate_plans[0] is plan
    assert {one.tier_assignments for one in candidate_plans} == {plan.tier_assignments}
    assert all(one.task == plan.task for one in candidate_plans)


def test_search_with_tiers_finds_the_same_plan_twice():
    assert _found(0.4) == _found(0.4)


def _in_gib(sizes_gib, host_gib, rules=ON_HOSTS, **constraints):
    tables = plain_tables(64, [int(size * GIB / 4 / 64) for size in sizes_gib], 2.0 + np.arange(len(sizes_gib)))
    topology = Topology(8, 16 * GIB, devices_per_host=4, host_memory_bytes=int(host_gib * GIB))
    return Task(tables, topology, 4096, constraints=Constraints(rules, **constraints))


@EVERY
def test_random_tasks_have_plans_that_overfill_no_host(searcher):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        sizes = rng.integers(5, 70, int(rng.integers(3, 8)))
        share = rng.uniform(1.02, 1.3)
        tiers = ["uvm" if rng.random() < 0.7 else "uvm_caching" for _ in sizes]
        mixed = tuple(TableRule(f"t{i}", tiers=(tier,)) for i, tier in enumerate(tiers))
        found(searcher, _in_gib(sizes.tolist(), sizes.sum() / 2 * share, mixed if seed % 2 else ON_HOSTS))


@EVERY
def test_searchers_fill_a_host_with_whole_tables(searcher):
    assert max(found(searcher, _in_gib([20, 60, 10, 10, 30, 20], 83)).host_bytes) > 70 * GIB


@EVERY
def test_searchers_divide_tables_that_exceed_a_host(searcher):
    for sizes, host_gib in (([60, 60, 60], 91), ([100], 51), ([70, 70, 10], 76)):
        found(searcher, _in_gib(sizes, host_gib))


def test_tables_assigned_to_hosts_fit_and_keep_the_rules():
    pinned = (PinnedShard("t0", 32, (5, 6)),)
    rules = (TableRule("*", tiers=("uvm",)), TableRule("t1", devices=(0, 1, 2)), TableRule("t2", equal_widths=True))
    found(Greedy("size"), _in_gib([20, 30, 50], 62, rules, pinned=pinned))
    found(Greedy("size"), _in_gib([20, 30, 50], 51, together=(("t0", "t1"),)))
    assert assigned_to_hosts(_in_gib([20, 30, 50], 101)) is None  # one host holds all
    assert assigned_to_hosts(_in_gib([20, 30, 50], 40)) is None  # both together don't
    assert assigned_to_hosts(_in_gib([20, 30, 50], 60, rules=())) is None  # no table is on hosts


def test_host_memory_named_by_an_error_suffices():
    task = _in_gib([60, 60, 60], 80)
    with refused("host-memory-too-small", names=["180 GiB"], kind=InfeasibleError) as caught:
        Greedy("size").find(task, H100)
    enough = to_bytes(re.search(r"[\d.]+ GiB", caught.value.message.remedy)[0], "named")
    assert enough < 91 * GIB
    given = replace(task, topology=replace(task.topology, host_memory_bytes=enough))
    for searcher in SEARCHERS:
        found(searcher, given)
    whole = _in_gib([60, 60, 60], 80, (TableRule("*", tiers=("uvm",), max_shards=1),))
    assert least_host_bytes(whole) == pytest.approx(120 * GIB, rel=0.01)


@EVERY
def test_plan_that_exceeds_host_memory_is_refused_without_a_claim_about_all_plans(searcher):
    """The error is about the plan that was found, and does not claim that no plan exists."""
    task = _in_gib([60, 60, 60], 91, (TableRule("*", tiers=("uvm",), max_shards=1),))
    with refused("plan-breaks-limits", names=["host 0"], kind=InfeasibleError):
        searcher.find(task, H100)


class _Careless(ns.Searcher):
    def find(self, task, simulator):
        return ns.Found(whole(task, 0))


def test_search_refuses_to_return_a_plan_that_breaks_limits():
    rules = (TableRule("*", devices=(1,)),)
    for task in (_in_gib([10, 10], 91, rules), _in_gib([10, 10], 91, ())):
        with refused("plan-breaks-limits", kind=InfeasibleError):
            ns.search(task, H100, _Careless())


def test_replan_keeps_tables_within_the_memory_of_hosts():
    task = _in_gib([60, 60, 60], 91)
    start = found(Greedy("size"), task)
    turned = tuple(replace(p, device=p.device // 4 * 4 + 3 - p.device % 4) for p in start.placements)
    for most in (None, 10 * GIB):
        found(Replan(replace(start, placements=turned), max_moved_bytes=most, improvement=FEW_STEPS), task)


def test_search_keeps_a_large_table_on_a_device_if_hosts_have_no_room_for_it():
    shapes = ("big", 200_000, 64), ("small", 30_000, 8)
    tables = tuple(hot_table(*shape, 1.0, 64, bytes_per_element=2) for shape in shapes)
    topology = Topology(2, 64_500_000, host_memory_bytes=2_500_000)
    plan = found(QUICKLY, Task(tables, topology, 64, ns.MemoryUse("adam")), H100)
    assert plan.tier_assignments == (ON_DEVICE, TierAssignment(Tier.UVM))
    assert plan.violations == ()
    with refused("both-memories-too-small", kind=InfeasibleError):
        found(QUICKLY, Task(tables, replace(topology, memory_bytes=10_000_000), 64), H100)


@EVERY
@pytest.mark.parametrize("pooled", [True, False])
def test_searchers_place_two_equal_parts_on_two_hosts(searcher, pooled):
    tables = tuple(replace(its, pooled=pooled) for its in plain_tables([64], 100_000))
    rule = TableRule("t0", tiers=("uvm",), sharding_types=("column_wise",), min_shards=2, equal_widths=True)
    topology = Topology(4, GIB, devices_per_host=2, host_memory_bytes=tables[0].size_bytes // 2)
    plan = searcher.find(Task(tables, topology, 1024, constraints=Constraints((rule,))), H100).plan
    assert plan.violations == ()
    assert sorted(placed.device // 2 for placed in plan.placements)[:: len(plan.placements) - 1] == [0, 1]


def test_small_tables_are_data_parallel_beside_a_large_uvm_table_if_column_wise_needs_too_many_buffers():
    def table(name, rows, pooling):
        return Table(name, rows, 64, pooling, ns.zipf_reuse(rows, 65_536 * pooling))

    tables = (table("big", 20_000_000, 0.5), *(table(f"small{number}", 1000, 20.0) for number in range(32)))
    task = Task(tables, Topology(4, "560MiB", host_memory_bytes=1 << 40), 65_536, ns.MemoryUse("sgd", 1))
    plan = found(QUICKLY, task, H100)
    assert plan.forms == (Form.COLUMN_WISE, *(Form.DATA_PARALLEL,) * 32)
    assert plan.tier_assignments[0].tier is not Tier.DEVICE


@pytest.mark.parametrize(("share", "host_share"), [(1.05, 0), (1.05, 1), (0.9, 1)])
def test_search_fits_a_required_data_parallel_table_beside_a_larger_one(share, host_share):
    tables = plain_tables([64] * 2, [600, 5000])
    copied, other = (table.size_bytes for table in tables)
    topology = Topology(2, int((copied + other / 2) * share), host_memory_bytes=other * host_share)
    task = Task(tables, topology, 64, constraints=Constraints((TableRule("t0", sharding_types=("data_parallel",)),)))
    assert TierOptions.of(task, H100.models.compute).device_bytes[:, 0].tolist() == [2 * copied, other]
    plan = found(replace(QUICKLY, grid=GridSettings(points=2)), task, H100)
    assert plan.forms[0] is Form.DATA_PARALLEL
    assert plan.tier_assignments[0] == ON_DEVICE
    assert (plan.tier_assignments[1] == ON_DEVICE) == (share > 1)
