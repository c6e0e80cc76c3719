"""Costs that cross the bridge, in both directions: our models inside TorchRec's own planner."""

from dataclasses import replace

import pytest
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.estimator.estimator import EmbeddingPerfEstimatorFactory
from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.sharding_plan import get_default_sharders

import neuroshard as ns
from neuroshard import Simulator, Table, zipf_reuse
from neuroshard.plans.plan import assemble
from neuroshard.testing import ONCE, linear_models, toy_task
from neuroshard.torchrec import find_tables, register_perf_config, to_sharding_plan
from neuroshard.torchrec.estimators import SimulatorPerfModel, SimulatorShardEstimator
from neuroshard.torchrec.options import sharding_options
from tests.kit.plans import COPIES, laid_out
from tests.kit.searches import H100
from tests.kit.torchrec_models import bags, sequences, shaped_bags, topology


def _options(task, plan):
    """The plan as TorchRec's proposals are."""
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


def test_proposals_in_any_form_are_rated():
    task = toy_task(3, num_devices=2)
    for plan in (laid_out(task, range(2), 0, COPIES), laid_out(task, COPIES, range(2), 1)):
        assert SimulatorPerfModel(task, H100).rate(_options(task, plan)) == H100.cost(task, plan).total_ms


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
    SimulatorShardEstimator(task, H100).estimate(options, {})
    sequence, summed = (option.shards[0].perf.fwd_comms for option in options)
    assert sequence == pytest.approx(summed * 7.5 / 2)


ROWS, DIM, BATCH_SIZE = 10_000, 64, 512
NAME = "ours"


@pytest.fixture
def registry(monkeypatch):
    """TorchRec's, as it was before, after the test."""
    monkeypatch.setattr(EmbeddingPerfEstimatorFactory, "_registry", dict(EmbeddingPerfEstimatorFactory._registry))


def _enumerated(model, constraints=None, models="roofline:h100", gpus=None, **known):
    """All options of a model on four GPUs of two hosts, or on others, estimated."""
    register_perf_config(NAME, models, **known)
    gpus = gpus or topology(4, "cuda", 1 << 30, on_host=2)
    estimators = [
        EmbeddingPerfEstimatorFactory.create(NAME, topology=gpus, constraints=constraints),
        EmbeddingStorageEstimator(gpus, constraints),
    ]
    enumerator = EmbeddingEnumerator(gpus, BATCH_SIZE, constraints, estimators)
    return gpus, enumerator, enumerator.enumerate(model, get_default_sharders())


@pytest.fixture
def estimated(registry):
    """The options of one table, by other models, or with other statistics."""
    return lambda **settings: _enumerated(bags("a", rows=ROWS, dim=DIM), **settings)[2]


def _perf(options, kind, kernel="fused"):
    return next(one.shards[0].perf for one in options if (one.sharding_type, one.compute_kernel) == (kind, kernel))


def test_a_whole_table_costs_what_our_simulator_says(estimated):
    reuse = zipf_reuse(ROWS, 4.0 * BATCH_SIZE)
    task = ns.Task((Table("a", ROWS, DIM, 1.0, reuse, 4, 4 * BATCH_SIZE),), ns.Topology(4, 1 << 30), 4 * BATCH_SIZE)
    plan = assemble(task, [(0, DIM, 0)])
    ms = H100.cost(task, plan).compute[0]
    perf = _perf(estimated(), "table_wise")
    assert perf.fwd_compute + perf.bwd_compute == pytest.approx(ms)
    assert perf.bwd_compute == pytest.approx(2 * perf.fwd_compute)
    assert min(perf.fwd_comms, perf.bwd_comms) > 0


@pytest.mark.parametrize(("pods", "joined"), [(None, 2), (2, 4), (3, 2), (4, 8)])
def test_rows_of_a_pod_cost_what_our_simulator_says(pods, joined, estimated):
    reuse = zipf_reuse(ROWS, 8.0 * BATCH_SIZE)
    fast = ns.Topology(8, 1 << 30, devices_per_host=2, devices_per_domain=joined)
    task = ns.Task((Table("a", ROWS, DIM, 1.0, reuse, 4, 8 * BATCH_SIZE),), fast, 8 * BATCH_SIZE)
    cost = H100.cost(task, laid_out(task, range(joined)))
    perf = _perf(estimated(gpus=topology(8, "cuda", 1 << 30, on_host=2, pod_size=pods)), "table_row_wise")
    assert perf.fwd_compute + perf.bwd_compute == pytest.approx(cost.compute[0])
    assert (perf.fwd_comms, perf.bwd_comms) == pytest.approx((cost.forward[0], cost.backward[0]))


def test_forms_and_memories_cost_other_times(estimated):
    options = estimated()
    whole, rows = _perf(options, "table_wise"), _perf(options, "row_wise")
    assert rows.fwd_compute < whole.fwd_compute
    assert _perf(options, "table_wise", "fused_uvm").fwd_compute > whole.fwd_compute
    assert _perf(options, "data_parallel", "dense").fwd_comms == 0
    assert all(0 < shard.perf.total < 1e6 for one in options for shard in one.shards)


def test_what_models_do_not_know_is_left_for_the_last(estimated):
    options = estimated(models="cpu")
    assert _perf(options, "table_wise").total < 1e6
    assert _perf(options, "table_wise", "fused_uvm").total >= 1e9


def test_statistics_count_instead_of_guesses(estimated):
    known = Table("a", ROWS, DIM, 40.0, ONCE, 4, 4 * BATCH_SIZE)
    guessed, counted = (_perf(estimated(**given), "table_wise").total for given in ({}, {"tables": [known]}))
    assert counted > guessed


def test_torchrecs_planner_plans_with_it(registry):
    constraints = {"a": ParameterConstraints(pooling_factors=[50.0])}
    model = bags(*"abcd", rows=ROWS, dim=DIM)
    gpus, enumerator, _ = _enumerated(model, constraints)
    planner = EmbeddingShardingPlanner(
        topology=gpus,
        batch_size=BATCH_SIZE,
        enumerator=enumerator,
        storage_reservation=FixedPercentageStorageReservation(0.0),
        constraints=constraints,
        stats=[],
    )
    assert set(planner.plan(model, get_default_sharders()).plan[""]) == set("abcd")


def test_under_torchrecs_own_name_every_planner_has_it(registry):
    register_perf_config("default_estimator", "roofline:h100")
    gpus, model = topology(4, "cuda", 1 << 30), sequences("s", rows=ROWS, dim=DIM)
    options = EmbeddingEnumerator(gpus, BATCH_SIZE).enumerate(model, get_default_sharders())
    register_perf_config(NAME, "roofline:h100")
    assert _perf(options, "table_wise").bwd_compute > 0
