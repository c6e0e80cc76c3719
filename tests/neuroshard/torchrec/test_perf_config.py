"""Our cost models inside TorchRec's own planner, by a hardware config."""

import pytest
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.estimator.estimator import EmbeddingPerfEstimatorFactory
from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.sharding_plan import get_default_sharders

import neuroshard as ns
from neuroshard.tables import Table
from neuroshard.torchrec import register_perf_config
from tests.kit.torchrec_models import bags, sequences

ROWS, DIM, BATCH_SIZE = 10_000, 64, 512
NAME = "ours"


@pytest.fixture
def registry(monkeypatch):
    """TorchRec's, as it was before, after the test."""
    monkeypatch.setattr(EmbeddingPerfEstimatorFactory, "_registry", dict(EmbeddingPerfEstimatorFactory._registry))


def _options(model, constraints=None, models="roofline:h100", **known):
    """All options of a model on four GPUs of two hosts, estimated."""
    register_perf_config(NAME, models, **known)
    topology = Topology(4, "cuda", hbm_cap=1 << 30, ddr_cap=1 << 30, local_world_size=2, created_by_factory=True)
    estimators = [
        EmbeddingPerfEstimatorFactory.create(NAME, topology=topology, constraints=constraints),
        EmbeddingStorageEstimator(topology, constraints),
    ]
    enumerator = EmbeddingEnumerator(topology, BATCH_SIZE, constraints, estimators)
    return topology, enumerator, enumerator.enumerate(model, get_default_sharders())


def _perf(options, kind, kernel="fused"):
    return next(one.shards[0].perf for one in options if (one.sharding_type, one.compute_kernel) == (kind, kernel))


def test_a_whole_table_costs_what_our_simulator_says(registry):
    _, _, options = _options(bags("a", rows=ROWS, dim=DIM))
    reuse = ns.tables.reuse.zipf_reuse(ROWS, 4.0 * BATCH_SIZE)
    task = ns.Task((Table("a", ROWS, DIM, 1.0, reuse, 4, 4 * BATCH_SIZE),), ns.Topology(4, 1 << 30), 4 * BATCH_SIZE)
    plan = ns.plans.plan.assemble(task, [(0, DIM, 0)])
    ms = ns.Simulator(ns.CostModels.load("roofline:h100")).cost(task, plan).compute[0]
    perf = _perf(options, "table_wise")
    assert perf.fwd_compute + perf.bwd_compute == pytest.approx(ms)
    assert perf.bwd_compute == pytest.approx(2 * perf.fwd_compute)
    assert min(perf.fwd_comms, perf.bwd_comms) > 0


def test_forms_and_memories_cost_other_times(registry):
    _, _, options = _options(bags("a", rows=ROWS, dim=DIM))
    whole, rows = _perf(options, "table_wise"), _perf(options, "row_wise")
    assert rows.fwd_compute < whole.fwd_compute
    assert _perf(options, "table_wise", "fused_uvm").fwd_compute > whole.fwd_compute
    assert _perf(options, "data_parallel", "dense").fwd_comms == 0
    assert all(0 < shard.perf.total < 1e6 for one in options for shard in one.shards)


def test_what_models_do_not_know_is_left_for_the_last(registry):
    _, _, options = _options(bags("a", rows=ROWS, dim=DIM), models="cpu")
    assert _perf(options, "table_wise").total < 1e6
    assert _perf(options, "table_wise", "fused_uvm").total >= 1e9


def test_statistics_count_instead_of_guesses(registry):
    known = Table("a", ROWS, DIM, 40.0, (1.0, *(0.0,) * 16), 4, 4 * BATCH_SIZE)
    guessed = _perf(_options(bags("a", rows=ROWS, dim=DIM))[2], "table_wise").total
    assert _perf(_options(bags("a", rows=ROWS, dim=DIM), tables=[known])[2], "table_wise").total > guessed


def test_torchrecs_planner_plans_with_it(registry):
    constraints = {"a": ParameterConstraints(pooling_factors=[50.0])}
    model = bags(*"abcd", rows=ROWS, dim=DIM)
    topology, enumerator, _ = _options(model, constraints)
    planner = EmbeddingShardingPlanner(
        topology=topology,
        batch_size=BATCH_SIZE,
        enumerator=enumerator,
        storage_reservation=FixedPercentageStorageReservation(0.0),
        constraints=constraints,
        stats=[],
    )
    assert set(planner.plan(model, get_default_sharders()).plan[""]) == set("abcd")


def test_under_torchrecs_own_name_every_planner_has_it(registry):
    register_perf_config("default_estimator", "roofline:h100")
    topology = Topology(4, "cuda", hbm_cap=1 << 30, created_by_factory=True)
    model = sequences("s", rows=ROWS, dim=DIM)
    options = EmbeddingEnumerator(topology, BATCH_SIZE).enumerate(model, get_default_sharders())
    register_perf_config(NAME, "roofline:h100")
    assert _perf(options, "table_wise").bwd_compute > 0
