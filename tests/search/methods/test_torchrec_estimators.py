"""NeuroShard's cost models inside TorchRec's planner."""

from dataclasses import replace

import pytest

import neuroshard as ns
from neuroshard import Simulator
from neuroshard.plans.plan import assemble
from neuroshard.stages.search.methods.torchrec_estimators import SimulatorPerfModel, SimulatorShardEstimator
from neuroshard.testing import ONCE, linear_models, toy_task
from neuroshard.torchrec import find_tables, to_sharding_plan
from neuroshard.torchrec.options import sharding_options
from tests.kit.plans import DATA_PARALLEL, laid_out
from tests.kit.searches import H100
from tests.kit.torchrec_models import shaped_bags, topology


def _options(task, plan):
    """Return a plan in the form of TorchRec's proposals."""
    tables = find_tables(shaped_bags({table.name: (table.rows, table.dim) for table in task.tables}))
    return sharding_options(to_sharding_plan(plan), tables, task.batch_size, topology(task.topology.num_devices))


@pytest.fixture
def planned():
    task = toy_task(5, num_devices=2)
    placed = [(i, dim, d) for i, t in enumerate(task.tables) for d, dim in enumerate((4, t.dim - 4)) if dim]
    return task, assemble(task, placed), Simulator(linear_models(2))


def test_proposals_are_rated_by_their_plan_cost(planned):
    task, plan, simulator = planned
    assert SimulatorPerfModel(task, simulator).rate(_options(task, plan)) == simulator.cost(task, plan).total_ms


def test_proposals_of_any_sharding_type_are_rated():
    task = toy_task(3, num_devices=2)
    for plan in (laid_out(task, range(2), 0, DATA_PARALLEL), laid_out(task, DATA_PARALLEL, range(2), 1)):
        assert SimulatorPerfModel(task, H100).rate(_options(task, plan)) == H100.cost(task, plan).total_ms


def test_shard_estimator_predicts_the_cost_of_each_shard_alone(planned):
    task, plan, simulator = planned
    options = _options(task, plan)
    SimulatorShardEstimator(task, simulator).estimate(options, {})
    per_column = 2 * 0.002  # both directions
    for option, table in zip(options, task.tables, strict=True):
        for shard in option.shards:
            dim = shard.size[1]
            expected = 0.05 + 0.01 * dim * table.pooling_factor + per_column * dim
            assert shard.perf.total == pytest.approx(expected, rel=1e-5)


def test_sequence_tables_exchange_a_row_for_every_lookup():
    pooled = ns.Table("p", 1000, 16, 7.5, ONCE, features=2)
    task = ns.Task((replace(pooled, name="s", pooled=False), pooled), ns.Topology(2, 1 << 30), 256)
    options = _options(task, assemble(task, [(0, 16, 0), (1, 16, 1)]))
    SimulatorShardEstimator(task, H100).estimate(options, {})
    sequence, summed = (option.shards[0].perf.fwd_comms for option in options)
    assert sequence == pytest.approx(summed * 7.5 / 2)
