"""Rows on one host: found if they lower the cost, and never more expensive."""

from dataclasses import replace

import numpy as np
import pytest

from neuroshard import Constraints, MemoryUse, Simulator, TableRule, Task, Topology
from neuroshard.layouts import place_column_wise, place_row_wise
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.acceptance import Acceptance
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.options.tier_changes import fix_tiers
from neuroshard.stages.search.options.type_changes import move_rows_to_hosts
from neuroshard.stages.search.space.fixed_load import FixedLoad
from neuroshard.targets.target import target_named
from neuroshard.torchrec import to_sharding_plan
from neuroshard.words.collective import Collective
from neuroshard.words.form import FORMS, Form
from tests.kit.messages import refused
from tests.kit.plans import laid_out
from tests.kit.random_models import random_by_collective, random_form_models
from tests.kit.searches import H100, best_ms, found, ms_of, uncertain
from tests.kit.tasks import hot_table

BATCH = 65536
IN_ROWS = Constraints((TableRule("rows*", sharding_types=("row_wise", "table_row_wise")),))
SEARCH = NeuroShard(
    improvement=Improvement(perturbations=10), sharding_types=(*FORMS, "table_row_wise"), acceptance=None
)


def _task(dims, num_devices=32, host=8, constraints=IN_ROWS, memory="80GiB"):
    rows = (hot_table(f"rows{i}", 10_000_000, dim, 1) for i, dim in enumerate(dims))
    tables = (*rows, hot_table("columns", 1000, 16, 1))
    return Task(tables, Topology(num_devices, memory, devices_per_host=host), BATCH, constraints=constraints)


def _everywhere(task):
    """Return the plan with all tables but the last row-wise on all devices."""
    return laid_out(task, *[range(task.topology.num_devices)] * (len(task.tables) - 1), 0)


def _hosts(plan):
    """Return the hosts of the shards of each table."""
    return [{placed.device // plan.task.topology.host_size for placed in its} for its in plan.by_table]


def test_move_rows_to_hosts_spreads_equal_tables_like_the_best_plan():
    task = _task([128] * 4)
    start = _everywhere(task)
    plan = move_rows_to_hosts(start, H100)
    groups = (*(range(first, first + 8) for first in range(0, 32, 8)), range(32))
    rows = [[place_row_wise(task, table, group) for group in groups] for table in range(4)]
    best = best_ms(task, [*rows, [place_column_wise(task, [(4, 16, 0)])]])
    assert ms_of(plan) == pytest.approx(best, rel=1e-3)
    assert ms_of(plan) < 0.95 * ms_of(start)
    assert sorted(map(min, _hosts(plan)[:4])) == [0, 1, 2, 3]
    assert {len(hosts) for hosts in _hosts(plan)[:4]} == {1}


def test_search_finds_table_row_wise_plans_if_requested():
    task = _task([128] * 4)
    plan, alone = (found(searcher, task) for searcher in (SEARCH, replace(SEARCH, sharding_types=FORMS)))
    assert {len(hosts) for hosts in _hosts(alone)[:4]} == {4}
    assert ms_of(plan) < 0.95 * ms_of(alone)
    assert set(plan.forms[:4]) == {Form.ROW_WISE}
    assert {len(hosts) for hosts in _hosts(plan)[:4]} == {1}
    with refused("unknown-name", names=["'racks'"]):
        NeuroShard(sharding_types=("column_wise", "racks"))
    assert to_sharding_plan(plan).plan[""]["rows0"].sharding_type == "table_row_wise"


def test_moving_rows_to_hosts_makes_no_plan_more_expensive():
    for seed in range(6):
        rng = np.random.default_rng(seed)
        start = _everywhere(_task(rng.choice([4, 32, 128], size=rng.integers(1, 6)).tolist()))
        assert ms_of(move_rows_to_hosts(start, H100)) <= ms_of(start)


@pytest.mark.parametrize(
    "task",
    [
        _task([128] * 4, host=32),
        _task([128] * 4, host=1),
        _task([128] * 4, constraints=Constraints((*IN_ROWS.rules, TableRule("rows*", min_shards=9)))),
        target_named("sok").constrained(_task([128] * 4)),
        _task([4], num_devices=4, host=2),  # the fixed times of two exchanges more exceed the savings
    ],
    ids=["one host", "hosts of one device", "more shards wanted", "all devices wanted", "narrow tables"],
)
def test_rows_stay_on_all_devices_if_one_host_is_too_small(task):
    start = _everywhere(task)
    assert start.violations == ()
    assert move_rows_to_hosts(start, H100) is start


def test_move_rows_to_hosts_stays_within_device_memory():
    """Seven tables of 5.12 GB take 1.12 GB per device if row-wise on all 32 devices; two on one host take 1.28 GB."""
    for memory, moved in ((80 << 30, range(7, 8)), (1_200_000_000, range(7))):
        plan = move_rows_to_hosts(_everywhere(_task([128] * 7, memory=memory)), H100)
        assert plan.violations == ()
        assert sum(len(hosts) == 1 for hosts in _hosts(plan)[:7]) in moved


def test_move_rows_to_hosts_returns_the_plan_if_models_lack_host_collectives():
    known = random_form_models()
    some = {one: model for one, model in random_by_collective().exchanges.items() if "HOST" not in one.name}
    unknown = replace(known, forward=replace(known.forward, exchanges=some))
    assert Collective.REDUCE_SCATTER in unknown.forward.collectives
    start = _everywhere(_task([128] * 4))
    assert move_rows_to_hosts(start, Simulator(unknown)) is start


def test_search_rejects_rows_on_hosts_that_gain_less_than_the_margins():
    task = _task([128] * 4)
    for relative, hosts in ((1.0, 4), (0.0, 1)):
        plan = found(replace(SEARCH, acceptance=Acceptance()), task, uncertain(H100, relative))
        assert {len(its) for its in _hosts(plan)[:4]} == {hosts}


def test_sequence_tables_stay_on_all_devices():
    task = _task([128] * 5)
    task = replace(task, tables=(replace(task.tables[0], pooled=False), *task.tables[1:]))
    plan = move_rows_to_hosts(_everywhere(task), H100)
    assert [len(hosts) for hosts in _hosts(plan)[:5]] == [4, 1, 1, 1, 1]
    assert plan.violations == ()


@pytest.mark.parametrize("types", [("table_row_wise",), ("row_wise", "table_row_wise")])
@pytest.mark.parametrize("columns", [0, 5])
def test_search_puts_rows_on_hosts_if_rows_on_all_devices_do_not_fit(types, columns):
    """Each device with rows of a table has buffers for the samples of all devices that exchange with it."""
    rows = tuple(replace(hot_table(f"rows{i}", 200_000, 128, 4), features=1) for i in range(8))
    tables = (*rows, *(hot_table(f"columns{i}", 1000, 16 * (1 + i), 1) for i in range(columns)))
    rules = Constraints((TableRule("rows*", sharding_types=types),))
    task = Task(tables, Topology(8, "64GiB", devices_per_host=2), BATCH, MemoryUse("sgd", 1), rules)
    on_hosts, everywhere = (
        laid_out(task, *where, *(i % 8 for i in range(columns)))
        for where in ([task.topology.hosts[i % 4] for i in range(8)], [range(8)] * 8)
    )
    needs = max(on_hosts.device_bytes)
    assert needs < 0.9 * min(everywhere.device_bytes)
    buffers = task.topology.device_memory[0] - task.shard_memory[0]
    tight = replace(task, topology=replace(task.topology, memory_bytes=int(1.05 * needs) + buffers))
    plan = found(SEARCH, tight)
    assert plan.violations == ()
    assert {len(hosts) for hosts in _hosts(plan)[:8]} == {1}


@pytest.mark.parametrize("seed", [2, 3, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 1, 4, 5))])
def test_columns_are_placed_well_beside_rows_on_hosts(seed):
    """Placing the column-wise tables of the plan again gains less than 1%, also if rules move rows to hosts."""
    rng = np.random.default_rng(seed)
    rows = (hot_table(f"rows{i}", int(rng.integers(1e4, 1e7)), 64, int(rng.integers(1, 20))) for i in range(3))
    columns = (hot_table(f"columns{i}", 100_000, int(rng.choice([16, 64])), int(rng.integers(1, 9))) for i in range(6))
    rules = Constraints((TableRule("rows*", sharding_types=("table_row_wise",)),)) if seed % 2 else None
    task = Task((*rows, *columns), Topology(8, "80GiB", devices_per_host=4), BATCH, constraints=rules or Constraints())
    plan = found(SEARCH, task)
    start = fix_tiers(plan)
    again = SEARCH.column_search.found(FixedLoad.of_plan(start, H100.compute_for(start.task)), H100).plan
    assert ms_of(plan) <= ms_of(again) * 1.01


def test_columns_leave_the_host_to_which_a_rule_moves_rows():
    tables = hot_table("rows", 50, 8, 30), hot_table("columns0", 158, 4, 3), hot_table("columns1", 100, 4, 1)
    types = {"rows": ("table_row_wise",), "columns*": ("column_wise",)}
    rules = Constraints(tuple(TableRule(name, sharding_types=allowed) for name, allowed in types.items()))
    task = Task(tables, Topology(4, "1MiB", devices_per_host=2), 64, constraints=rules)
    plan = found(SEARCH, task)
    rows, *columns = [{placed.device for placed in its} for its in plan.by_table]
    assert set.union(*columns) == {0, 1, 2, 3} - rows
