"""Costs that cross the bridge, in both directions."""

from dataclasses import replace

import numpy as np
import pytest
from torchrec.distributed.planner.types import Shard, ShardingOption, Topology

import neuroshard as ns
from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import assemble
from neuroshard.testing import ONCE, linear_models, toy_task
from neuroshard.torchrec.estimators import SimulatorPerfModel, SimulatorShardEstimator, TaskStorageEstimator

TOPOLOGY = Topology(4, "cuda", created_by_factory=True)


def _options(task, plan):
    """The plan as TorchRec's proposals are."""
    options = []
    for index, table in enumerate(task.tables):
        shards = [
            Shard([placed.shard.rows, placed.shard.dim], [placed.shard.row, placed.shard.column], rank=placed.device)
            for placed in plan.placements
            if placed.shard.table == index
        ]
        option = object.__new__(ShardingOption)
        option.name, option.shards, option.compute_kernel, option.cache_params = table.name, shards, "fused", None
        options.append(option)
    return options


@pytest.fixture
def planned():
    task = toy_task(5, num_devices=2)
    placed = [(i, dim, d) for i, t in enumerate(task.tables) for d, dim in enumerate((4, t.dim - 4)) if dim]
    return task, assemble(task, placed), Simulator(linear_models(2))


def test_proposals_are_rated_by_their_plan_cost(planned):
    task, plan, simulator = planned
    assert SimulatorPerfModel(task, simulator).rate(_options(task, plan)) == simulator.cost(task, plan).total_ms


def test_shards_are_estimated_alone(planned):
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
    SimulatorShardEstimator(task, Simulator(ns.CostModels.load("roofline:h100"))).estimate(options, {})
    sequence, summed = (option.shards[0].perf.fwd_comms for option in options)
    assert sequence == pytest.approx(summed * 7.5 / 2)


def test_storage_is_what_the_task_counts(planned):
    task, plan, _ = planned
    options = _options(task, plan)
    TaskStorageEstimator(task).estimate(options, {})
    device_bytes = np.zeros(2, dtype=int)
    for option in options:
        for shard in option.shards:
            device_bytes[shard.rank] += shard.storage.hbm
    assert tuple(device_bytes) == plan.device_bytes
