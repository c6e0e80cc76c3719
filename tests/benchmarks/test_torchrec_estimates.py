"""TorchRec's estimates behave as cost models do."""

import sys
from pathlib import Path

from torchrec.distributed.planner.types import Topology

import neuroshard as ns
from neuroshard.cost.loads import LoadSets
from neuroshard.models.simulator import Simulator
from neuroshard.testing import SumModelConformance, toy_task

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from torchrec_estimates import TorchRecCompute, torchrec_models

TOPOLOGY = Topology(4, "cuda", created_by_factory=True)


class TestTorchRecCompute(SumModelConformance):
    def make(self):
        return TorchRecCompute(TOPOLOGY)


def test_torchrecs_estimates_grow_with_what_is_read():
    few, many = ns.Table("t", 1000, 64, 1.0, (1.0, *(0.0,) * 16)), ns.Table("t", 1000, 64, 9.0, (1.0, *(0.0,) * 16))
    cost = TorchRecCompute(TOPOLOGY).predict(LoadSets.of([[few], [many], [few.with_dim(128)]], 4096))
    assert cost[0] < cost[1]
    assert cost[0] < cost[2]


def test_our_search_takes_their_models():
    task = toy_task(12)
    plan = ns.search(task, Simulator(torchrec_models(TOPOLOGY)), "neuroshard_published")
    assert plan.violations == ()
