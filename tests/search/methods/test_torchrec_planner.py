"""TorchRec's planner as a searcher; conformance tests of all searchers are elsewhere."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from torchrec.distributed.planner.types import Shard as PlannerShard

from neuroshard import Constraints, InfeasibleError, MemoryUse, Simulator, TableRule, Task, Topology
from neuroshard.stages.search.methods.torchrec_estimators import TaskStorageEstimator
from neuroshard.stages.search.methods.torchrec_planner import TorchRecSearch
from neuroshard.testing import linear_models, toy_task
from neuroshard.words.form import Form
from tests.kit.messages import refused
from tests.kit.plans import DATA_PARALLEL, laid_out
from tests.kit.searches import H100, found, ms_of
from tests.kit.tasks import plain_tables, plain_task

EVERY_FORM = TorchRecSearch((1, 2), sharding_types=("column_wise", "row_wise", "data_parallel"))


def test_torchrec_planner_splits_tables_that_do_not_fit_whole():
    task, simulator = plain_task([64, 8, 8], memory_bytes=1000 * 50 * 4), Simulator(linear_models(2))
    task = replace(task, tables=tuple(replace(table, name=f"odd name. {table.name}") for table in task.tables))
    with refused("torchrec-search-no-plan", kind=InfeasibleError):
        TorchRecSearch(split_factors=(1,)).find(task, simulator)
    plan = found(TorchRecSearch(split_factors=(1, 2)), task, simulator)
    assert sorted(p.shard.dim for p in plan.placements if p.shard.table == 0) == [32, 32]


def test_torchrec_search_costs_as_much_as_its_best_setting():
    task, simulator = toy_task(8, seed=3), Simulator(linear_models())
    alone = [
        ms_of(TorchRecSearch((factor,), (sort,)).find(task, simulator).plan, simulator)
        for factor in (1, 2)
        for sort in ("storage", "perf")
    ]
    assert ms_of(TorchRecSearch((1, 2)).find(task, simulator).plan, simulator) == min(alone)
    assert len(set(alone)) > 1


def test_torchrec_search_with_simulator_estimates_costs_less_on_average():
    """Mean cost by NeuroShard's simulator."""
    simulator = Simulator(linear_models())
    theirs, ours = (
        sum(ms_of(searcher.find(toy_task(7, seed=seed), simulator).plan, simulator) for seed in range(2))
        for searcher in (TorchRecSearch((1, 2)), TorchRecSearch((1, 2), estimates="simulator"))
    )
    assert ours < theirs


def test_torchrec_search_refuses_unknown_settings():
    with refused("unknown-name", names=["sort_by", "'size'"]):
        TorchRecSearch(sort_by=("size",))
    with refused("unknown-name", names=["estimates", "'simulated'"]):
        TorchRecSearch(estimates="simulated")


def test_torchrec_planner_uses_all_types_if_requested():
    """A table that fits with no column split becomes row-wise, and small tables may be data-parallel."""
    task = plain_task(8, [40_000, 10, 10, 10], devices=4, memory_bytes=40_000 * 4 * 3)
    with refused("table-exceeds-device", names=["'t0'", "4 columns"], kind=InfeasibleError):
        TorchRecSearch((1, 2)).find(task, H100)
    assert found(EVERY_FORM, task).forms[0] is Form.ROW_WISE
    small_ones = Constraints((TableRule("t[1-3]", sharding_types=("column_wise",)),))
    kept = EVERY_FORM.find(replace(task, constraints=small_ones), H100).plan
    assert set(kept.forms[1:]) == {Form.COLUMN_WISE}


def test_error_names_buffers_that_leave_no_memory():
    with refused("device-buffers-too-large", names=["15 KiB"], kind=InfeasibleError):
        EVERY_FORM.find(plain_task([16], memory_bytes=1000, memory=MemoryUse("sgd", 1)), H100)


@pytest.mark.parametrize(("devices", "domain"), [(4, None), (8, 4), (4, 4)])
def test_torchrec_planner_may_place_rows_on_hosts_with_fast_links(devices, domain):
    """The plan has the sharding type that TorchRec chose."""
    rules = Constraints((TableRule("*", sharding_types=("row_wise",)),))
    topology = Topology(devices, 1 << 30, devices_per_host=2, devices_per_domain=domain)
    task = Task(plain_tables([16] * 6, 100_000, 20.0), topology, 256, constraints=rules)
    plan = found(TorchRecSearch((1,), sharding_types=("column_wise", "row_wise")), task)
    assert set(plan.forms) == {Form.ROW_WISE}
    assert {len(its) for its in plan.by_table} <= {topology.domain_size, devices}


def test_torchrec_planner_counts_the_memory_of_the_task():
    """The memory of each shard of every sharding type."""
    task = plain_task([16], devices=4, memory=MemoryUse("adam", batches_in_flight=1))
    for where in (range(4), DATA_PARALLEL, {0: 4, 3: 12}):
        plan = laid_out(task, where)
        shards = [PlannerShard([p.shard.rows, p.shard.dim], [p.shard.row, p.shard.column]) for p in plan.by_device]
        option = SimpleNamespace(name="t0", shards=shards, compute_kernel="fused", cache_params=None)
        TaskStorageEstimator(task).estimate([option], {})
        counted = [0, 0, 0, 0]
        for placed, shard in zip(plan.by_device, shards, strict=True):
            counted[placed.device] += shard.storage.hbm
        assert list(plan.device_bytes) == counted
