"""What a job's training pipeline hides and holds in memory, in plans for TorchRec."""

import pytest
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import ParameterConstraints, Topology

from neuroshard.plumbing.errors import InfeasibleError, UserError
from neuroshard.tasks.memory import MemoryUse
from neuroshard.testing import linear_models
from neuroshard.torchrec import NeuroShardPlanner
from tests.kit.torchrec_models import bags

SHARDERS = [EmbeddingBagCollectionSharder()]
ROWS, DIM, LOOKUPS, BATCH = 1000, 64, 50.0, 128


def _collection():
    return bags("t", rows=ROWS, dim=DIM)


def _planner(pipeline, memory=1 << 24, models="roofline:h100", use=None):
    said = {"t": ParameterConstraints(sharding_types=["column_wise"], pooling_factors=[LOOKUPS])}
    topology = Topology(2, "cuda", hbm_cap=memory, ddr_cap=1, local_world_size=2, created_by_factory=True)
    return NeuroShardPlanner(topology, BATCH, models, said, memory=use, pipeline=pipeline)


def _counted(cost):
    return {part.name for part in cost.parts if part.counts}


def test_only_without_a_pipeline_costs_count_the_exchange_of_indices():
    costs = {}
    for pipeline in (None, "none", "sparse_dist", "prefetch", "semi_sync"):
        planner = _planner(pipeline)
        planner.search(_collection(), SHARDERS)
        assert planner.last_cost.ms("input").max() > 0
        costs[pipeline] = _counted(planner.last_cost)
    assert "input" in costs.pop("none")
    assert all("input" not in counted for counted in costs.values())


def test_models_without_that_exchange_leave_it_out_and_say_so(caplog):
    planner = _planner("none", models=linear_models(2))
    assert "costs leave it out" in caplog.text
    assert planner.search(_collection(), SHARDERS).task.memory.pipeline == "none"


def test_memory_of_a_pipeline_replaces_that_of_a_batch():
    def use(pipeline, memory=None):
        return _planner(pipeline, use=memory).search(_collection(), SHARDERS).task.memory

    assert use(None) == MemoryUse("sgd", 1)
    assert use("prefetch").in_flight == MemoryUse(pipeline="prefetch").in_flight
    assert use("sparse_dist") == MemoryUse("sgd", 1, "sparse_dist")
    assert use("sparse_dist", MemoryUse("adam", 1)) == MemoryUse("adam", 1, "sparse_dist")
    with pytest.raises(UserError, match="unknown pipeline 'fast'"):
        _planner("fast")


def test_a_plan_that_would_run_out_of_memory_in_a_pipeline_is_none():
    """Half of 256 KB of weights on each device; 104 KB of indices and lengths on both, for each permuted batch."""
    weights, outputs, batch = ROWS * DIM * 4 // 2, 2 * 4 * 2 * BATCH * DIM, 8 * 2 * BATCH * (LOOKUPS + 1)
    room = int((weights + outputs + 2 * batch) / 0.85)
    assert _planner(None, memory=room).search(_collection(), SHARDERS).fits
    with pytest.raises(InfeasibleError):
        _planner("sparse_dist", memory=room).search(_collection(), SHARDERS)
    more = int((weights + outputs + 6 * batch) / 0.85)
    assert _planner("sparse_dist", memory=more).search(_collection(), SHARDERS).fits
