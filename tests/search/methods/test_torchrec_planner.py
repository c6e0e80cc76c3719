"""TorchRec's planner as a searcher; its conformance is tested with everyone's."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from torchrec.distributed.planner.types import Shard as PlannerShard

from neuroshard.layouts import in_columns, in_copies, in_rows
from neuroshard.models import CostModels
from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import InfeasibleError, UserError
from neuroshard.stages.search.methods.torchrec_planner import TorchRecSearch
from neuroshard.tables import Table
from neuroshard.tasks.constraints import Constraints, TableRule
from neuroshard.tasks.memory import MemoryUse
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing import ONCE, linear_models, toy_task
from neuroshard.torchrec.estimators import TaskStorageEstimator
from neuroshard.words.form import Form


def _task(dims, cap=1 << 30, num_devices=2):
    tables = tuple(Table(f"odd name. {i}", 1000, dim, 2.0, ONCE) for i, dim in enumerate(dims))
    return Task(tables, Topology(num_devices, cap), 256)


def test_it_splits_what_does_not_fit_whole():
    task, simulator = _task([64, 8, 8], cap=1000 * 50 * 4), Simulator(linear_models(2))
    with pytest.raises(InfeasibleError):
        TorchRecSearch(split_factors=(1,)).find(task, simulator)
    plan = TorchRecSearch(split_factors=(1, 2)).find(task, simulator).plan
    assert plan.violations == ()
    assert sorted(p.shard.dim for p in plan.placements if p.shard.table == 0) == [32, 32]


def test_the_best_of_its_settings_counts():
    task, simulator = toy_task(8, seed=3), Simulator(linear_models())
    alone = [
        simulator.cost(task, TorchRecSearch((factor,), (sort,)).find(task, simulator).plan).total_ms
        for factor in (1, 2)
        for sort in ("storage", "perf")
    ]
    both = simulator.cost(task, TorchRecSearch((1, 2)).find(task, simulator).plan).total_ms
    assert both == min(alone)
    assert len(set(alone)) > 1


def test_our_estimates_make_its_plans_cheaper():
    """By our own simulator, on average."""
    simulator = Simulator(linear_models())
    theirs, ours = [], []
    for seed in range(2):
        task = toy_task(7, seed=seed)
        theirs.append(simulator.cost(task, TorchRecSearch((1, 2)).find(task, simulator).plan).total_ms)
        found = TorchRecSearch((1, 2), estimates="simulator").find(task, simulator).plan
        ours.append(simulator.cost(task, found).total_ms)
    assert sum(ours) < sum(theirs)


def test_unknown_words_are_named():
    with pytest.raises(UserError, match="unknown sort_by 'size'"):
        TorchRecSearch(sort_by=("size",))
    with pytest.raises(UserError, match="unknown estimates 'simulated'"):
        TorchRecSearch(estimates="simulated")


def test_it_uses_all_of_torchrecs_types_where_asked_to():
    """A table that fits in no cut of columns goes to rows, and small ones may be copied."""
    huge, small = Table("huge", 40_000, 8, 2.0, ONCE), [Table(f"small{i}", 10, 8, 2.0, ONCE) for i in range(3)]
    task = Task((huge, *small), Topology(4, 40_000 * 4 * 3), 256)
    simulator = Simulator(CostModels.load("roofline:h100"))
    with pytest.raises(InfeasibleError):
        TorchRecSearch((1, 2)).find(task, simulator)
    plan = TorchRecSearch((1, 2), forms=("columns", "rows", "copies")).find(task, simulator).plan
    assert plan.violations == ()
    assert plan.forms[0] is Form.ROWS
    in_columns = replace(task, constraints=Constraints((TableRule("small*", forms=("columns",)),)))
    kept = TorchRecSearch((1, 2), forms=("columns", "rows", "copies")).find(in_columns, simulator).plan
    assert set(kept.forms[1:]) == {Form.COLUMNS}


def test_its_rows_may_lie_on_one_host():
    """TorchRec chooses the type, we read it right."""
    tables = tuple(Table(f"t{i}", 100_000, 16, 20.0, ONCE) for i in range(6))
    rules = Constraints((TableRule("*", forms=("rows",)),))
    task = Task(tables, Topology(4, 1 << 30, devices_per_host=2), 256, constraints=rules)
    plan = TorchRecSearch((1,), forms=("columns", "rows")).find(task, Simulator(CostModels.load("roofline:h100"))).plan
    assert plan.violations == ()
    assert set(plan.forms) == {Form.ROWS}


def test_what_it_counts_of_memory_is_what_the_task_counts():
    """Of every form, shard by shard."""
    table = Table("a", 1000, 16, 2.0, ONCE)
    task = Task((table,), Topology(4, 1 << 30), 256, MemoryUse("adam", batches_in_flight=1))
    plans = {
        "row_wise": Plan(task, tuple(in_rows(task, 0, range(4)))),
        "data_parallel": Plan(task, tuple(in_copies(task, 0))),
        "column_wise": Plan(task, tuple(in_columns(task, [(0, 4, 0), (0, 12, 3)]))),
    }
    for plan in plans.values():
        shards = [PlannerShard([p.shard.rows, p.shard.dim], [p.shard.row, p.shard.column]) for p in plan.by_device]
        option = SimpleNamespace(name="a", shards=shards, compute_kernel="fused", cache_params=None)
        TaskStorageEstimator(task).estimate([option], {})
        counted = [0, 0, 0, 0]
        for placed, shard in zip(plan.by_device, shards, strict=True):
            counted[placed.device] += shard.storage.hbm
        assert list(plan.device_bytes) == counted
