"""TorchRec's planner as a searcher; its conformance is tested with everyone's."""

import pytest

from neuroshard.errors import InfeasibleError, UserError
from neuroshard.simulator import Simulator
from neuroshard.stages.search.methods.torchrec import SimulatorEstimates, TorchRecSearch
from neuroshard.tables import Table
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing import linear_models, toy_task

ONCE = (1.0, *(0.0,) * 16)


def _task(dims, cap=1 << 30, num_devices=2):
    tables = tuple(Table(f"odd name. {i}", 1000, dim, 2.0, ONCE) for i, dim in enumerate(dims))
    return Task(tables, Topology(num_devices, cap), 256)


def test_it_splits_what_does_not_fit_whole():
    task, simulator = _task([64, 8, 8], cap=1000 * 50 * 4), Simulator(linear_models(2))
    with pytest.raises(InfeasibleError):
        TorchRecSearch(split_factors=(1,)).search(task, simulator)
    plan = TorchRecSearch(split_factors=(1, 2)).search(task, simulator)
    assert plan.violations == ()
    assert sorted(p.shard.dim for p in plan.placements if p.shard.table == 0) == [32, 32]


def test_the_best_of_its_settings_counts():
    task, simulator = toy_task(14, seed=3), Simulator(linear_models())
    alone = [
        simulator.cost(task, TorchRecSearch((factor,), (sort,)).search(task, simulator)).total_ms
        for factor in (1, 2)
        for sort in ("storage", "perf")
    ]
    both = simulator.cost(task, TorchRecSearch((1, 2)).search(task, simulator)).total_ms
    assert both == min(alone)
    assert len(set(alone)) > 1


def test_our_estimates_make_its_plans_cheaper():
    """By our own simulator, on average."""
    simulator = Simulator(linear_models())
    theirs, ours = [], []
    for seed in range(2):
        task = toy_task(12, seed=seed)
        theirs.append(simulator.cost(task, TorchRecSearch((1, 2)).search(task, simulator)).total_ms)
        found = TorchRecSearch((1, 2), estimates=SimulatorEstimates()).search(task, simulator)
        ours.append(simulator.cost(task, found).total_ms)
    assert sum(ours) < sum(theirs)


def test_unknown_orders_are_named():
    with pytest.raises(UserError, match="unknown sort_by 'size'"):
        TorchRecSearch(sort_by=("size",))
