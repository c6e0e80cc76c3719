"""A table that fits on no device: its plan, and TorchRec's modules of it, without memory, processes or devices."""

import math

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torchrec import EmbeddingBagCollection
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder, ShardedEmbeddingBagCollection
from torchrec.distributed.types import ShardingEnv

import neuroshard as ns
from neuroshard.models.simulator import Simulator
from neuroshard.tables import Table
from neuroshard.tables.reuse import zipf_reuse
from neuroshard.tables.sources.dlrm_like import dlrm_like
from neuroshard.tasks.memory import MemoryUse
from neuroshard.tasks.task import Task, Topology
from neuroshard.torchrec import from_sharding_plan, to_sharding_plan
from neuroshard.words.form import Form
from tests.kit.torchrec_models import META, bag

HOST, DEVICES, BATCH = 8, 16, 65536
ROWS, DIM = 5_000_000_000, 32
SHARDER = EmbeddingBagCollectionSharder()


def _task():
    huge = Table("huge", ROWS, DIM, 1.0, zipf_reuse(ROWS, BATCH, 1.05))
    use = MemoryUse("rowwise_adagrad", batches_in_flight=1)
    topology = Topology(DEVICES, "80GiB", devices_per_host=HOST)
    return Task((huge, *dlrm_like(num_tables=36, seed=1, batch_size=BATCH)), topology, BATCH, use)


@pytest.fixture(scope="module")
def plan():
    return ns.search(_task(), Simulator(ns.CostModels.load("roofline:h100")))


def _collection(task):
    return EmbeddingBagCollection([bag(table.name, table.rows, table.dim) for table in task.tables], device=META)


@pytest.fixture(params=[0, 9])
def group(request, monkeypatch):
    """All ranks' group as one of them sees it; nobody else is there."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(HOST))
    dist.init_process_group("fake", rank=request.param, world_size=DEVICES, store=FakeStore())
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_its_plan_names_every_parameter_as_torchrec_has_it(plan):
    assert plan.violations == ()
    assert plan.forms[0] is Form.ROWS
    exported = to_sharding_plan(plan, "ebc")
    parameters = SHARDER.shardable_parameters(_collection(plan.task))
    assert exported.plan["ebc"].keys() == parameters.keys()
    assert parameters["huge"].shape == (ROWS, DIM)
    kinds = {kind for parameter in parameters.values() for kind in SHARDER.sharding_types("cuda")}
    assert {sharding.sharding_type for sharding in exported.plan["ebc"].values()} <= kinds
    assert sorted(from_sharding_plan(plan.task, exported).placements) == sorted(plan.placements)


def test_torchrec_shards_a_module_by_it(plan, group):
    exported = to_sharding_plan(plan, "ebc").plan["ebc"]
    copied = {t.name for t, form in zip(plan.task.tables, plan.forms, strict=True) if form is Form.COPIES}
    env = ShardingEnv.from_process_group(group)
    sharded = SHARDER.shard(_collection(plan.task), dict(exported), env, META)
    assert isinstance(sharded, ShardedEmbeddingBagCollection)
    found = {}
    for lookup in sharded._lookups:
        for table, parameter in getattr(lookup, "module", lookup).named_parameters_by_table():
            found.setdefault(table, []).append(tuple(parameter.shape))
            assert parameter.device == META or table in copied
    expected = {}
    for placed in plan.placements:
        if placed.device == dist.get_rank(group):
            shard = placed.shard
            expected.setdefault(plan.task.tables[shard.table].name, []).append((shard.rows, shard.dim))
    assert found == expected
    assert found["huge"] == [(math.ceil(ROWS / DEVICES), DIM)]
