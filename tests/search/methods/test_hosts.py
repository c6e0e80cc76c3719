"""No searcher hands out a plan that breaks its task: hosts are filled, not overfilled."""

from dataclasses import replace

import numpy as np
import pytest

import neuroshard as ns
from neuroshard.models.simulator import Simulator
from neuroshard.plans.hosts import given_to_hosts, least_host_bytes
from neuroshard.plans.plan import assemble
from neuroshard.plumbing.errors import InfeasibleError
from neuroshard.plumbing.schema import to_bytes
from neuroshard.searching.searcher import Found, Searcher
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.heuristics import Greedy, Random
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.stages.search.methods.replan import Replan
from neuroshard.tables import Table
from neuroshard.tasks.constraints import Constraints, PinnedShard, TableRule
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing import ONCE

SIMULATOR = Simulator(ns.CostModels.load("roofline:h100"))
GIB = 1 << 30
FEW_STEPS = Improvement(shakes=3)
SEARCHERS = (
    Random(),
    Greedy("size"),
    Greedy("size_lookup"),
    BeamSearch(max_splits=3),
    NeuroShard(improvement=FEW_STEPS),
)


ON_HOSTS = (TableRule("*", tiers=("host",)),)


def _task(sizes_gib, host_gib, rules=ON_HOSTS, **constraints):
    tables = tuple(Table(f"t{i}", int(size * GIB / 4 / 64), 64, 2.0 + i, ONCE) for i, size in enumerate(sizes_gib))
    topology = Topology(8, 16 * GIB, devices_per_host=4, host_memory_bytes=int(host_gib * GIB))
    return Task(tables, topology, 4096, constraints=Constraints(rules, **constraints))


@pytest.mark.parametrize("searcher", SEARCHERS, ids=lambda searcher: type(searcher).__name__)
def test_random_tasks_have_plans_that_overfill_no_host(searcher):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        sizes = rng.integers(5, 70, int(rng.integers(3, 8)))
        share = rng.uniform(1.02, 1.3)
        rules = [TableRule("*", tiers=("host",))]
        if seed % 2:
            rules = [
                TableRule(f"t{i}", tiers=("host",) if rng.random() < 0.7 else ("cached",)) for i in range(len(sizes))
            ]
        task = _task(sizes.tolist(), sizes.sum() / 2 * share, tuple(rules))
        plan = searcher.find(task, SIMULATOR).plan
        assert plan.task == task
        assert plan.violations == ()


@pytest.mark.parametrize("searcher", SEARCHERS, ids=lambda searcher: type(searcher).__name__)
def test_whole_tables_fill_hosts_where_they_can(searcher):
    plan = searcher.find(_task([20, 60, 10, 10, 30, 20], 83), SIMULATOR).plan
    assert plan.violations == ()
    assert max(plan.host_bytes) > 70 * GIB


def test_tables_that_no_host_has_room_for_are_divided():
    for sizes, host_gib in (([60, 60, 60], 91), ([100], 51), ([70, 70, 10], 76)):
        for searcher in SEARCHERS:
            assert searcher.find(_task(sizes, host_gib), SIMULATOR).plan.violations == ()


def test_what_is_given_to_hosts_fits_and_keeps_the_rules():
    pinned = (PinnedShard("t0", 32, (5, 6)),)
    rules = (TableRule("*", tiers=("host",)), TableRule("t1", devices=(0, 1, 2)), TableRule("t2", equal_widths=True))
    task = _task([20, 30, 50], 62, rules, pinned=pinned)
    plan = Greedy("size").find(task, SIMULATOR).plan
    assert plan.violations == ()
    together = _task([20, 30, 50], 51, together=(("t0", "t1"),))
    assert Greedy("size").find(together, SIMULATOR).plan.violations == ()
    assert given_to_hosts(_task([20, 30, 50], 101)) is None  # one host holds all
    assert given_to_hosts(_task([20, 30, 50], 40)) is None  # both together don't
    assert given_to_hosts(_task([20, 30, 50], 60, rules=())) is None  # nothing lies there


def test_the_host_memory_that_is_named_suffices():
    task = _task([60, 60, 60], 80)
    with pytest.raises(InfeasibleError, match="tables in host memory take 180 GiB") as caught:
        Greedy("size").find(task, SIMULATOR)
    enough = to_bytes(str(caught.value).split("; ")[1].split(" on each")[0], "named")
    assert enough < 91 * GIB
    given = replace(task, topology=replace(task.topology, host_memory_bytes=enough))
    for searcher in SEARCHERS:
        assert searcher.find(given, SIMULATOR).plan.violations == ()
    whole = _task([60, 60, 60], 80, (TableRule("*", tiers=("host",), max_shards=1),))
    assert least_host_bytes(whole) == pytest.approx(120 * GIB, rel=0.01)


def test_an_accident_of_placement_is_no_proof():
    """Where nothing is found, it is said of what was found, not of all plans."""
    task = _task([60, 60, 60], 91, (TableRule("*", tiers=("host",), max_shards=1),))
    for searcher in SEARCHERS:
        with pytest.raises(InfeasibleError) as caught:
            searcher.find(task, SIMULATOR)
        assert "no plan exists" not in str(caught.value)
        assert "host" in str(caught.value)


class _Careless(Searcher):
    def find(self, task, simulator):
        return Found(assemble(task, [(index, table.dim, 0) for index, table in enumerate(task.tables)]))


def test_nobodys_plan_is_handed_out_with_violations():
    rules = (TableRule("*", devices=(1,)),)
    for task in (_task([10, 10], 91, rules), _task([10, 10], 91, ())):
        with pytest.raises(InfeasibleError, match="none of the plans found keeps all limits: of the best one"):
            ns.search(task, SIMULATOR, _Careless())


def test_running_jobs_keep_within_hosts():
    task = _task([60, 60, 60], 91)
    start = Greedy("size").find(task, SIMULATOR).plan
    worse = replace(
        start, placements=tuple(replace(p, device=p.device // 4 * 4 + 3 - p.device % 4) for p in start.placements)
    )
    for most in (None, 10 * GIB):
        found = Replan(worse, max_moved_bytes=most, improvement=FEW_STEPS).find(task, SIMULATOR).plan
        assert found.task == task
        assert found.violations == ()
