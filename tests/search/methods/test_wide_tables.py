"""Tables wider than a shard may be: every planner splits them, with every sharding type, for every system."""

from dataclasses import replace

import numpy as np
import pytest

import neuroshard as ns
from neuroshard import Constraints, InfeasibleError, PinnedShard, Placement, Plan, Simulator, TableRule, Task, Topology
from neuroshard.layouts import place_column_wise
from neuroshard.layouts.widths import equal_parts, shard_widths
from neuroshard.plans.moves import moved_bytes
from neuroshard.plumbing.configs import choices
from neuroshard.plumbing.registry import build
from neuroshard.plumbing.schema import MAX_SHARD_DIM
from neuroshard.stages.augment.compute import ComputeAugmentation
from neuroshard.stages.augment.local import PlanAugmentation
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.stages.search.methods.replan import Replan
from neuroshard.stages.search.published.shard_table import fewest_shards
from neuroshard.stages.search.report.explanation import explain
from neuroshard.stages.search.space.memory_checks import packed
from neuroshard.stages.search.space.search_space import SearchSpace
from neuroshard.targets.target import TARGETS, target_named
from neuroshard.testing import linear_models, toy_tables
from neuroshard.words.placement import Shard
from tests.kit.messages import refused
from tests.kit.plans import DATA_PARALLEL, laid_out, read_back, table
from tests.kit.searches import H100, costed_space_of, found

LIMIT = 2048  # FBGEMM's, as its sources have it
SETTINGS = {
    "neuroshard": {"improvement": {"perturbations": 10}},
    "torchrec": {"split_factors": [1, 2], "sort_by": ["perf"]},
    "torchrec_all_types": {"split_factors": [1, 2], "sort_by": ["perf"]},
    "torchrec_simulated": {"split_factors": [1, 2], "sort_by": ["perf"]},
    "with_other_models": {"models": {"model": "cpu"}},
    "without_augmentation": {"models": {"model": "cpu"}},
}
SEARCHERS = [name for name in choices("searcher") if name != "replan"]
DIMS = (2048, 2052, 4096, 4100, 6000)


def wide_task(devices=2, dims=DIMS, memory_bytes=1 << 30, **fields):
    """Make a task of tables of these widths and of narrow tables."""
    wide = tuple(table(f"w{dim}", 300, dim, 1.5) for dim in dims)
    return Task((*wide, *toy_tables(3)), Topology(devices, memory_bytes), 256, **fields)


def widths_of(plan, index):
    """Return the widths of the shards of a table, in order of columns."""
    return [placed.shard.dim for placed in sorted(plan.by_table[index], key=lambda one: one.shard.column)]


def check_width(plan):
    """Check that no shard exceeds the width limit, and that devices have as few shards as this limit allows."""
    assert plan.violations == ()
    assert max(placed.shard.dim for placed in plan.placements) <= LIMIT
    for whole, placed in zip(plan.task.tables, plan.by_table, strict=True):
        for device in {one.device for one in placed}:
            here = [one.shard.dim for one in placed if one.device == device]
            assert len(here) == -(-sum(here) // LIMIT) or not whole.pooled


@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("name", SEARCHERS)
def test_every_searcher_splits_tables_above_the_width_limit(name, devices):
    task = wide_task(devices)
    simulator = H100 if name != "without_augmentation" else Simulator(ns.CostModels.load("cpu"))
    plan = build("searcher", name, **SETTINGS.get(name, {})).find(task, simulator).plan
    check_width(plan)
    assert read_back(plan) == plan


@pytest.mark.parametrize("name", ["neuroshard", "neuroshard_published", "dim_greedy", "random"])
def test_wide_tables_in_host_memory_are_cut_too(name):
    topology = Topology(4, 60 << 20, devices_per_host=2, host_memory_bytes=24 << 20)
    rules = Constraints((TableRule("w*", tiers=("uvm",)),))
    task = replace(wide_task(4, constraints=Constraints()), topology=topology, constraints=rules)
    check_width(build("searcher", name, **SETTINGS.get(name, {})).find(task, H100).plan)


@pytest.mark.parametrize("dim", [2052, 2056, 4096, 4100, 4104, 6000, 8192])
def test_searchers_give_all_shards_of_wide_sequence_tables_one_width(dim):
    sequences = tuple(table(f"s{i}", 300, dim, 1.5, pooled=False) for i in range(2))
    for devices in (1, 2, 4):
        task = Task((*sequences, *toy_tables(2)), Topology(devices, 1 << 30), 256)
        for searcher in (NeuroShard(), BeamSearch()):
            plan = searcher.find(task, H100).plan
            check_width(plan)
            assert len({*widths_of(plan, 0), *widths_of(plan, 1)}) == 1


def test_shard_widths_are_as_few_and_even_as_possible():
    assert [*shard_widths(table(dim=4096), 4096)] == [2048, 2048]
    assert [*shard_widths(table(dim=4100), 4100)] == [1364, 1368, 1368]
    assert [*shard_widths(table(dim=4100), 2048)] == [2048]
    assert [*shard_widths(table(dim=4100, pooled=False), 4100)] == [820] * 5
    assert [*shard_widths(table(dim=2048, pooled=False), 1024)] == [1024]
    assert (equal_parts(4096), equal_parts(4104), equal_parts(4096, 3), equal_parts(64)) == (2, 3, 4, 1)


def test_published_search_starts_from_the_fewest_shards():
    space = costed_space_of(wide_task(4), H100)
    layout = fewest_shards(space.shards)
    widths = 4 * (layout - space.shards.first[space.shards.item[layout]])
    of_each = [sorted(widths[space.shards.item[layout] == item].tolist()) for item in range(len(DIMS))]
    assert of_each == [[2048], [1024, 1028], [2048, 2048], [1364, 1368, 1368], [2000] * 3]
    check_width(found(BeamSearch(max_splits=0), wide_task(4)))


def test_device_bytes_and_costs_of_widths_equal_those_of_the_plan():
    rng = np.random.default_rng(0)
    task = wide_task(3, memory_bytes=1 << 32, memory=ns.MemoryUse("rowwise_adagrad", 2))
    space = costed_space_of(task, H100)
    for _ in range(20):
        held = np.zeros((len(task.tables), 3), dtype=np.int64)
        for item, width in enumerate(space.shards.full_width.tolist()):
            cuts = np.sort(rng.integers(0, width + 1, size=2))
            held[item] = np.diff([0, *cuts, width])[rng.permutation(3)]
        plan = space.plan(held)
        check_width(plan)
        assert space.shards.device_bytes(held).tolist() == [*plan.device_bytes]
        assert space.widths(plan).tolist() == held.tolist()
        assert space.costs([held])[0].total_ms == pytest.approx(H100.cost(task, plan).total_ms, rel=1e-6)
        assert moved_bytes(plan, plan) == 0


def test_search_reports_no_plan_for_wide_tables_only_if_no_split_fits():
    task = wide_task(2, dims=(4096, 6000))
    space = SearchSpace.of_task(task)
    total = int(space.shards.size_bytes[space.shards.whole].sum())
    for free, fits in ((total * 0.51, True), (total * 0.49, False)):
        tight = replace(task, topology=Topology(2, int(free)))
        if fits:
            check_width(costed_space_of(tight, H100).plan(packed(costed_space_of(tight, H100))))
        else:
            with refused("tables-exceed-devices", kind=InfeasibleError):
                BeamSearch().find(tight, H100)


@pytest.mark.parametrize("where", [range(2), DATA_PARALLEL], ids=["row_wise", "data_parallel"])
def test_plans_of_wide_row_wise_and_data_parallel_tables_break_their_task(where):
    task = wide_task(2, dims=(2048, 4096))
    narrow, wide = laid_out(task, where, 0, 0, 0, 0), laid_out(task, 0, where, 0, 0, 0)
    assert narrow.violations == ()
    assert any("4096 columns" in broken for broken in wide.violations)
    with refused("export-plan-breaks-task", where="plan", names=["'w4096'", 4096, 2048]):
        ns.export_plan(wide, "json")


def test_plans_that_were_saved_with_wide_shards_break_their_task():
    task = wide_task(2, dims=(4096,))
    rest = [placed for placed in laid_out(task, 0, 0, 0, 0).placements if placed.shard.table]
    plan = Plan(task, (Placement(Shard(0, 0, 4096, 0, 300), 0), *rest))
    again = read_back(plan)
    assert any("4096 columns" in broken for broken in again.violations)
    for target in TARGETS:
        with refused("export-plan-breaks-task", where="plan", names=["'w4096'", 4096, 2048]):
            ns.export_plan(again, target)
    replanned = Replan(again).find(task, H100).plan
    check_width(replanned)


def test_shards_on_one_device_are_refused_if_one_shard_could_replace_them():
    task = Task((table(dim=4096),), Topology(2, 1 << 30), 256)

    def plan(*shards):
        column, placed = 0, []
        for width, device in shards:
            placed.append(Placement(Shard(0, column, width, 0, 100), device))
            column += width
        return Plan(task, tuple(placed))

    assert plan((2048, 0), (2048, 0)).device_dims == (4096, 0)
    assert plan((2048, 1), (1024, 0), (1024, 1)).violations == ()
    with refused("plan-shards-on-one-device", names=["'t'", "device 0"]):
        plan((1024, 0), (1024, 0), (2048, 1))


CONTRADICTIONS = {
    "one shard": (TableRule("w4096", max_shards=1), "wide-table-max-shards", 4096),
    "too few shards": (TableRule("w6000", max_shards=2), "wide-table-max-shards", 6000),
    "wide shards": (TableRule("w4096", min_dim=2052), "wide-table-min-dim", 4096),
    "no two as wide as that": (TableRule("w4100", min_dim=1400), "wide-table-min-dim", 4100),
    "row_wise": (TableRule("*", sharding_types=("row_wise",)), "wide-table-sharding-types", 2052),
    "data_parallel": (TableRule("w4096", sharding_types=("data_parallel",)), "wide-table-sharding-types", 4096),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_rules_that_require_too_wide_shards_are_refused(name):
    rule, code, columns = CONTRADICTIONS[name]
    with refused(code, where="constraints", names=[f"'w{columns}'", f"{columns} columns", repr(rule.tables), 2048]):
        wide_task(4, constraints=Constraints((rule,)))


def test_pin_of_a_shard_above_the_width_limit_is_refused():
    with refused("pin-dim-too-wide", names=["'w4096'", 2052, 2048]):
        PinnedShard("w4096", 2052, (0,))
    pins = PinnedShard("w4096", 2048, (0,)), PinnedShard("w4096", 2048, (1,))
    check_width(found(NeuroShard(), wide_task(2, constraints=Constraints(pinned=pins))))


@pytest.mark.parametrize(
    "rule",
    [
        TableRule("w*", min_shards=2),
        TableRule("w*", devices=(1,)),
        TableRule("w*", max_shards=3),
        TableRule("w4096", min_dim=1200),
        TableRule("w6000", min_dim=1200),
        TableRule("w4???", equal_widths=True),
    ],
    ids=str,
)
def test_searchers_keep_rules_that_wide_tables_can_keep(rule):
    plan = NeuroShard().find(wide_task(5, constraints=Constraints((rule,))), H100).plan
    check_width(plan)
    for index, its in enumerate(plan.task.tables):
        if rule.concerns([its.name]) and (rule.min_dim or rule.equal_widths):
            assert min(widths_of(plan, index)) >= (rule.min_dim or 4)
            assert not rule.equal_widths or len(set(widths_of(plan, index))) == 1


def test_tables_that_are_kept_together_are_cut_on_their_device():
    together = Constraints(together=(("w4096", "w2048"),))
    plan = found(NeuroShard(), wide_task(2, dims=(2048, 4096), constraints=together))
    check_width(plan)
    assert widths_of(plan, 1) == [2048, 2048]


@pytest.mark.parametrize("target", TARGETS)
def test_search_for_a_target_splits_wide_tables_or_the_target_refuses_them(target):
    task = wide_task(6, dims=(2048, 2056, 4096, 6000))
    its = target_named(target)
    if "column_wise" not in its.sharding_types:
        with refused("target-table-wide", names=["'w2056'", "2056 columns", 2048]):
            its.constrained(task)
        return
    plan = NeuroShard().find(its.constrained(task), H100).plan
    check_width(plan)
    its.check(plan)
    if its.equal_widths:
        assert [len(set(widths_of(plan, index))) for index in range(4)] == [1] * 4


def test_hugectr_refuses_two_shards_of_a_table_on_a_gpu():
    task = target_named("hugectr").constrained(wide_task(2, dims=(4096,)))
    assert {placed.device for placed in NeuroShard().find(task, H100).plan.by_table[0]} == {0, 1}
    with refused("table-shard-counts", names=["'w4096'", "2 shards", 2048]):
        target_named("hugectr").constrained(wide_task(1, dims=(4096,)))
    one = wide_task(1, dims=(4096,))
    with refused("export-table-unsupported", where="plan", names=["'w4096'"]):
        target_named("hugectr").check(found(NeuroShard(), one))


def test_replan_without_moved_bytes_keeps_wide_tables_and_else_splits_them():
    before = found(NeuroShard(), wide_task(2))
    kept = found(Replan(before, max_moved_bytes=0), before.task)
    assert moved_bytes(before, kept) == 0
    more = replace(before.task, topology=Topology(3, 1 << 30))
    check_width(found(Replan(before), more))
    fewer = replace(before.task, tables=before.task.tables[1:])
    check_width(found(Replan(before), fewer))


def test_plans_with_wide_tables_are_explained():
    plan = found(NeuroShard(), wide_task(2))
    assert len(explain(plan, H100).shards) == len(plan.placements)


@pytest.mark.parametrize("stage", ["compute", "local"])
def test_wide_shards_are_never_drawn_for_measurement(stage):
    drawn = {"compute": ComputeAugmentation, "local": PlanAugmentation}[stage]
    assert drawn(max_dim=2048).max_dim == LIMIT == MAX_SHARD_DIM
    with refused("value-outside-limits", names=["max_dim", 4096, 2048]):
        drawn(max_dim=4096)


def test_search_with_linear_models_splits_wide_tables():
    task = wide_task(2)
    check_width(found(NeuroShard(), task, Simulator(linear_models(2))))
    placed = place_column_wise(task, [(2, 4096, 1)])
    assert [one.shard.dim for one in placed] == [2048, 2048]
