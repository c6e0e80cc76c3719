"""Carrying a plan over to a task with other tables, devices or limits."""

from dataclasses import replace

import pytest

from neuroshard import Constraints, PinnedShard, TableRule, Task, Tier, TierAssignment, Topology
from neuroshard.layouts import ROW_WISE_LAYOUT
from neuroshard.plans.carry_over import carried_over, restated
from neuroshard.stages.search.options.tier_changes import assign_tiers
from neuroshard.words.placement import ON_DEVICE
from tests.kit.messages import refused
from tests.kit.plans import DATA_PARALLEL, laid_out, tables


def _task(names, devices=4, memory=1 << 20, per_host=2, constraints=None, rows=10):
    topology = Topology(devices, memory, devices_per_host=per_host)
    return Task(tables(names, rows, 8), topology, 64, constraints=constraints or Constraints())


def _hosted(names, **fields):
    task = _task(names, **fields)
    return replace(task, topology=replace(task.topology, host_memory_bytes=1 << 20))


def test_unchanged_tables_keep_their_devices():
    before = laid_out(_task("abc"), 0, {1: 4, 3: 4}, 2)
    carried = carried_over(before, _task("cxb"))
    assert carried.columns == ((2, 4, 1), (2, 4, 3), (0, 8, 2))
    assert carried.plan is None  # x has no place
    assert carried.pinned.constraints.pinned == (
        PinnedShard("b", 4, (1,)),
        PinnedShard("b", 4, (3,)),
        PinnedShard("c", 8, (2,)),
    )
    assert replace(carried.pinned, constraints=Constraints()) == _task("cxb")
    assert carried_over(before, _task("cb")).plan == laid_out(_task("cb"), 2, {1: 4, 3: 4})


def test_carry_over_frees_shards_of_removed_devices_and_keeps_all_on_more_devices():
    before = laid_out(_task("ab"), 3, {1: 4, 3: 4})
    assert carried_over(before, _task("ab", 2)).columns == ((1, 4, 1),)
    assert carried_over(before, _task("ab", 8)).plan == laid_out(_task("ab", 8), 3, {1: 4, 3: 4})


def test_carry_over_keeps_row_wise_and_data_parallel_tables_if_devices_stay_the_same():
    task = _task("abcd")
    before = laid_out(task, range(4), [2, 3], DATA_PARALLEL, 1)
    assert sorted(carried_over(before, task).plan.placements) == sorted(before.placements)
    pinned = carried_over(before, _task("xabcd")).pinned
    assert pinned.constraints.rules == (
        TableRule("a", devices=(0, 1, 2, 3), sharding_types=ROW_WISE_LAYOUT.type_names),
        TableRule("b", devices=(2, 3), sharding_types=ROW_WISE_LAYOUT.type_names),
        TableRule("c", devices=(0, 1, 2, 3), sharding_types=("data_parallel",)),
    )
    for other in (_task("abcd", 8), _task("abcd", per_host=4)):
        carried = carried_over(before, other)
        assert (carried.columns, carried.others) == (((3, 8, 1),), ())


LAID_OUT = {"whole": 3, "cut": {1: 4, 3: 4}, "rows": range(4), "rows on a host": [2, 3], "copies": DATA_PARALLEL}
STATISTICS = {"pooling_factor": 9.0, "reuse": (0.5, 0.5, *[0.0] * 15)}


@pytest.mark.parametrize("where", LAID_OUT.values(), ids=LAID_OUT)
@pytest.mark.parametrize("other", [{"rows": 15}, {"rows": 7}, {"bytes_per_element": 2}, STATISTICS, {"dim": 16}])
def test_carrying_over_a_changed_table_keeps_its_devices(where, other):
    """A changed table keeps its devices unless it was split by columns and is now wider."""
    before, after = _task("ab"), _task("bxa")
    grown = {table.name: replace(table, **other) if table.name == "a" else table for table in after.tables}
    after = replace(after, tables=tuple(grown.values()))
    alone = replace(after, tables=(grown["b"], grown["a"]))
    kept = carried_over(laid_out(before, where, 1), alone)
    again = restated(laid_out(before, where, 1), alone)
    if where == LAID_OUT["cut"] and "dim" in other:
        assert (kept.columns, kept.plan, again) == (((0, 8, 1),), None, None)
    else:
        assert again == laid_out(alone, 1, where)
        assert sorted(kept.plan.placements) == sorted(again.placements)
    with refused("plan-tables-renamed"):
        restated(laid_out(before, where, 1), after)


def test_carrying_over_leaves_out_tables_with_too_few_rows_for_their_blocks():
    before, after = _task("ab"), _task("ab", rows=3)
    assert carried_over(laid_out(before, range(4), 1), after).columns == ((1, 8, 1),)
    assert restated(laid_out(before, range(4), 1), after) is None


def test_carry_over_keeps_a_wide_table_with_more_rows_on_its_device():
    """A table of more than 2,048 columns has several shards on its device."""
    before = _task("ab", memory=1 << 30)
    before = replace(before, tables=tuple(replace(table, dim=4096) for table in before.tables))
    after = replace(before, tables=(replace(before.tables[0], rows=20), before.tables[1]))
    assert carried_over(laid_out(before, 2, 1), after).plan == laid_out(after, 2, 1)


def test_carry_over_frees_the_grown_table_if_a_device_lacks_memory():
    """Of two tables on a device that no longer has room for both, the one that changed moves, though it is larger."""
    before = laid_out(_task("abc"), 0, 0, 1)
    grown = _task("abc", memory=800)
    grown = replace(grown, tables=(replace(grown.tables[0], rows=20), *grown.tables[1:]))
    assert carried_over(before, grown).fitting.columns == ((1, 8, 0), (2, 8, 1))


def test_fitting_shards_fill_the_memory_that_data_parallel_tables_leave():
    before = laid_out(_task("abc"), DATA_PARALLEL, 0, 1)
    assert carried_over(before, _task("abc", memory=640)).fitting.columns == ((1, 8, 0), (2, 8, 1))
    assert carried_over(before, _task("abc", memory=639)).fitting.columns == ()


def test_carry_over_frees_tables_whose_placement_breaks_limits_of_the_task():
    before = laid_out(_task("ab"), 3, 1)
    for rule in (TableRule("a", devices=(0, 1)), TableRule("a", sharding_types=("row_wise",))):
        assert carried_over(before, _task("ab", constraints=Constraints((rule,)))).columns == ((1, 8, 1),)
    assert carried_over(before, _task("ab", memory=100)).plan is None
    own = Constraints(pinned=(PinnedShard("b", 8, (1,)),), together=(("a", "c"),))
    assert carried_over(before, _task("abc", constraints=own)).pinned.constraints == own


TASK_OF_TWO_HOSTS = Task(tables("ab", 10, 8), Topology(4, 1 << 20, devices_per_host=2), 64)
FORBIDDEN = {
    "split": ({0: 4, 2: 4}, {"max_shards": 1}),
    "split, table-wise": ({0: 4, 2: 4}, {"sharding_types": ("table_wise",)}),
    "split over hosts": ({0: 4, 2: 4}, {"sharding_types": ("table_column_wise",)}),
    "narrow": ({0: 4, 2: 4}, {"min_dim": 8}),
    "whole": (3, {"min_shards": 2}),
    "row-wise": (range(4), {"sharding_types": ("table_row_wise", "column_wise")}),
    "rows on a host": ([2, 3], {"sharding_types": ("row_wise",)}),
    "data-parallel": (DATA_PARALLEL, {"min_shards": 2}),
}


@pytest.mark.parametrize(("where", "limits"), FORBIDDEN.values(), ids=FORBIDDEN)
def test_carry_over_frees_only_the_table_whose_rule_forbids_its_placement(where, limits):
    """A table keeps its placement if and only if the plan's check of limits accepts the placement."""
    before = laid_out(TASK_OF_TWO_HOSTS, where, 1)
    task = replace(TASK_OF_TWO_HOSTS, constraints=Constraints((TableRule("a", **limits),)))
    assert replace(before, task=task).violations
    kept = carried_over(before, task)
    assert (kept.columns, kept.others) == (((1, 8, 1),), ())
    free = carried_over(before, replace(TASK_OF_TWO_HOSTS, constraints=Constraints((TableRule("b", **limits),))))
    assert {table for table, _, _ in free.columns} | {placed.shard.table for placed in free.others} >= {0}


def test_largest_keeps_the_largest_shards_first():
    carried = carried_over(laid_out(_task("abc"), 3, {0: 4, 1: 4}, 2), _task("abcx"))
    assert carried.largest(1).columns == ((0, 8, 3), (2, 8, 2), (1, 4, 0), (1, 4, 1))
    assert carried.largest(0.7).columns == ((0, 8, 3), (2, 8, 2))
    assert carried.largest(0).columns == ()


def test_fitting_drops_the_smallest_shards_of_devices_without_memory():
    before = laid_out(_task("abcd"), 3, {0: 4, 1: 4}, 0, {0: 4, 3: 4})
    columns = carried_over(before, _task("abcd")).columns
    assert carried_over(before, _task("abcd", memory=640)).fitting.columns == columns
    assert set(columns) - set(carried_over(before, _task("abcd", memory=600)).fitting.columns) == {(3, 4, 0)}
    assert carried_over(before, _task("abcd", memory=100)).fitting.columns == ()


def test_carry_over_keeps_host_tiers_if_the_task_has_and_allows_host_memory():
    cached = TierAssignment(Tier.UVM_CACHING, 0.5)
    before = laid_out(assign_tiers(_hosted("ab"), (cached, ON_DEVICE)), 0, 1)
    carried = carried_over(before, _hosted("xa"))
    assert carried.tier_assignments == {1: cached}
    assert TableRule("a", tiers=(Tier.UVM_CACHING,), cache_load_factor=0.5) in carried.pinned.constraints.rules
    assert carried_over(before, _hosted("ab")).plan.tier_assignments == (cached, ON_DEVICE)
    assert carried_over(before, _task("ab")).columns == ((1, 8, 1),)
    never = Constraints((TableRule("a", tiers=(Tier.DEVICE,)),))
    assert carried_over(before, _hosted("ab", constraints=never)).columns == ((1, 8, 1),)
