"""Rows on one host: where they pay they are found, and no plan gets dearer for them."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import neuroshard as ns
from neuroshard.layouts import in_columns, in_rows
from neuroshard.models.simulator import Simulator
from neuroshard.models.trust import Margin, Margins
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import UserError
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.form_changes import rows_on_hosts
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.tables import Table
from neuroshard.tables.reuse import zipf_reuse
from neuroshard.targets.target import target_named
from neuroshard.tasks.constraints import Constraints, TableRule
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing.toys import random_by_collective, random_form_models
from neuroshard.torchrec import to_sharding_plan
from neuroshard.words.collective import Collective
from neuroshard.words.form import Form

BATCH = 65536
MODELS = ns.CostModels.load("roofline:h100")
SIMULATOR = Simulator(MODELS)
IN_ROWS = Constraints((TableRule("rows*", forms=("rows",)),))
SEARCH = NeuroShard(improvement=Improvement(shakes=10), rows_over="hosts")


def _task(dims, num_devices=32, host=8, constraints=IN_ROWS, memory="80GiB"):
    reuse = zipf_reuse(10_000_000, BATCH, 1.05)
    tables = [Table(f"rows{i}", 10_000_000, dim, 1.0, reuse) for i, dim in enumerate(dims)]
    tables.append(Table("columns", 1000, 16, 1.0, zipf_reuse(1000, BATCH, 1.05)))
    return Task(tuple(tables), Topology(num_devices, memory, devices_per_host=host), BATCH, constraints=constraints)


def _everywhere(task):
    """All tables but the last in rows on all devices."""
    count, devices = len(task.tables) - 1, range(task.topology.num_devices)
    rows = [placed for table in range(count) for placed in in_rows(task, table, devices)]
    return Plan(task, (*rows, *in_columns(task, [(count, 16, 0)])))


def _hosts(plan):
    """Of each table, the hosts that it lies on."""
    size = plan.task.topology.host_size
    found = [set() for _ in plan.task.tables]
    for placed in plan.placements:
        found[placed.shard.table].add(placed.device // size)
    return found


def _ms(plan):
    return SIMULATOR.cost(plan.task, plan).total_ms


def test_tables_alike_are_spread_over_the_hosts_as_the_best_of_all_plans_has_them():
    task = _task([128] * 4)
    found, start = rows_on_hosts(_everywhere(task), SIMULATOR), _everywhere(task)
    groups = (*(range(first, first + 8) for first in range(0, 32, 8)), range(32))
    columns = in_columns(task, [(4, 16, 0)])
    best = min(
        _ms(Plan(task, (*columns, *(p for table, group in enumerate(chosen) for p in in_rows(task, table, group)))))
        for chosen in product(groups, repeat=4)
    )
    assert _ms(found) == pytest.approx(best, rel=1e-3)
    assert _ms(found) < 0.95 * _ms(start)
    assert sorted(map(min, _hosts(found)[:4])) == [0, 1, 2, 3]
    assert {len(hosts) for hosts in _hosts(found)[:4]} == {1}


def test_the_search_finds_them_if_asked_to():
    task = _task([128] * 4)
    plan, alone = (searcher.find(task, SIMULATOR).plan for searcher in (SEARCH, replace(SEARCH, rows_over="all")))
    assert {len(hosts) for hosts in _hosts(alone)[:4]} == {4}
    assert _ms(plan) < 0.95 * _ms(alone)
    assert plan.violations == ()
    assert set(plan.forms[:4]) == {Form.ROWS}
    assert {len(hosts) for hosts in _hosts(plan)[:4]} == {1}
    with pytest.raises(UserError, match="rows_over"):
        NeuroShard(rows_over="racks")
    assert to_sharding_plan(plan).plan[""]["rows0"].sharding_type == "table_row_wise"


def test_no_plan_gets_dearer():
    """Narrow tables: what two exchanges more take by themselves is more than what they save."""
    start = _everywhere(_task([4] * 4))
    assert rows_on_hosts(start, SIMULATOR) is start
    for seed in range(6):
        rng = np.random.default_rng(seed)
        start = _everywhere(_task(rng.choice([4, 32, 128], size=rng.integers(1, 6)).tolist()))
        assert _ms(rows_on_hosts(start, SIMULATOR)) <= _ms(start)


@pytest.mark.parametrize(
    "task",
    [
        _task([128] * 4, host=32),
        _task([128] * 4, host=1),
        _task([128] * 4, constraints=Constraints((*IN_ROWS.rules, TableRule("rows*", min_shards=9)))),
        target_named("sok").constrained(_task([128] * 4)),
    ],
    ids=["one host", "hosts of one device", "more shards wanted", "all devices wanted"],
)
def test_rows_stay_on_all_devices_where_hosts_will_not_do(task):
    start = _everywhere(task)
    assert start.violations == ()
    assert rows_on_hosts(start, SIMULATOR) is start


def test_a_host_has_no_more_than_its_memory_holds():
    """Seven tables of 5.12 GB: in blocks on all 32 devices 1.12 GB on each, two of them on one host 1.28 GB."""
    for memory, moved in ((80 << 30, range(7, 8)), (1_200_000_000, range(7))):
        plan = rows_on_hosts(_everywhere(_task([128] * 7, memory=memory)), SIMULATOR)
        assert plan.violations == ()
        assert sum(len(hosts) == 1 for hosts in _hosts(plan)[:7]) in moved


def test_models_that_do_not_know_hosts_exchanges_are_not_asked():
    known = random_form_models()
    some = {one: model for one, model in random_by_collective().exchanges.items() if "HOST" not in one.name}
    unknown = replace(known, forward=replace(known.forward, exchanges=some))
    assert Collective.REDUCE_SCATTER in unknown.forward.collectives
    start = _everywhere(_task([128] * 4))
    assert rows_on_hosts(start, Simulator(unknown)) is start


def test_gains_within_the_margins_are_not_taken():
    task = _task([128] * 4)
    for relative, hosts in ((1.0, 4), (0.0, 1)):
        margin = Margin(relative, 1.0)
        plan = SEARCH.find(task, Simulator(replace(MODELS, margins=Margins(margin, margin, margin)))).plan
        assert {len(found) for found in _hosts(plan)[:4]} == {hosts}


def test_sequence_tables_stay_on_all_devices():
    task = _task([128] * 5)
    task = replace(task, tables=(replace(task.tables[0], pooled=False), *task.tables[1:]))
    plan = rows_on_hosts(_everywhere(task), SIMULATOR)
    assert [len(hosts) for hosts in _hosts(plan)[:5]] == [4, 1, 1, 1, 1]
    assert plan.violations == ()
