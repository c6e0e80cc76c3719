"""Jobs as large as real ones, planned whole; DistributedModelParallel builds ranks of them without their memory."""

from contextlib import nullcontext
from copy import deepcopy

import pytest
import torch
import torch.distributed as dist
from torch.distributed.remote_device import _remote_device
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import ParameterConstraints, Topology
from torchrec.types import DataType

from neuroshard.hardware.mirror import mirrored_world
from neuroshard.torchrec import NeuroShardPlanner
from neuroshard.words.form import Form
from neuroshard.words.placement import Tier

META, GB, HOST = torch.device("meta"), 10**9, 8


class _Job:
    """A collection alone, what is known of its tables, and its devices; `factors` are lookups of each feature."""

    def __init__(self, kind, config, sharder, tables, devices, batch_size):
        self.kind, self.config, self.sharder = kind, config, sharder
        self.tables, self.devices, self.batch_size = tables, devices, batch_size

    def collection(self):
        configs = [
            self.config(name=name, num_embeddings=rows, embedding_dim=dim, data_type=of, feature_names=_of(name, its))
            for name, (rows, dim, of, its) in self.tables.items()
        ]
        return self.kind(configs, device=META)

    def planner(self):
        said = {name: ParameterConstraints(pooling_factors=its) for name, (*_, its) in self.tables.items()}
        caps = {"hbm_cap": 80 * GB, "ddr_cap": 250 * GB, "local_world_size": HOST}
        topology = Topology(self.devices, "cuda", created_by_factory=True, **caps)
        return NeuroShardPlanner(
            topology, self.batch_size // self.devices, "roofline:h100", said, pipeline="sparse_dist"
        )

    def built(self, plan, rank):
        """(table, shape) of what a rank of DistributedModelParallel holds."""
        with mirrored_world(rank, self.devices, HOST, lambda *_: nullcontext()):
            assert dist.get_world_size() == self.devices
            made = DistributedModelParallel(
                self.collection(), device=META, plan=_on_meta(plan), sharders=[self.sharder], init_data_parallel=False
            )
            found = [(name.split(".")[-2], held) for name, held in made.named_parameters() if held.numel()]
            sharded = [held for name, held in found if plan.plan[""][name].sharding_type != "data_parallel"]
            assert sharded
            assert all(held.device == META for held in sharded)  # copies are small, and are made at once
            return sorted((name, tuple(held.shape)) for name, held in found)


def _of(name, factors):
    return [f"{name}_{number}" for number in range(len(factors))]


def _on_meta(plan):
    """The same plan where shards lie nowhere: TorchRec compares their devices with the weights'."""
    plan = deepcopy(plan)
    for sharding in (its for module in plan.plan.values() for its in module.values()):
        for shard in sharding.sharding_spec.shards if sharding.sharding_spec else ():
            shard.placement = _remote_device(f"rank:{shard.placement.rank()}/meta")
    return plan


def _expected(plan, rank):
    """(table, shape) of what our plan has on a device, shards of columns side by side."""
    names = [table.name for table in plan.task.tables]
    return sorted(
        (names[placed.shard.table], (placed.shard.rows, placed.shard.dim))
        for placed in plan.placements
        if placed.device == rank
    )


def _hstu():
    """As large as MLPerf's DLRMv3: a terabyte of items, read by histories and candidates; 8 GPUs of 80 GB."""
    tables = {
        "item": (GB, 512, DataType.FP16, [1024.0, 64.0]),
        "user": (10_000_000, 512, DataType.FP16, [1.0]),
        "category": (128, 512, DataType.FP16, [1024.0]),
    }
    return _Job(EmbeddingCollection, EmbeddingConfig, EmbeddingCollectionSharder(), tables, 8, 256)


def _production():
    """66 tables of 18 G parameters, a few of which hold nearly all; 64 GPUs."""
    large = {f"large{i}": (20_000_000, 128, DataType.FP32, [20.0]) for i in range(6)}
    middle = {f"middle{i}": (1_000_000, 128, DataType.FP32, [4.0 + i]) for i in range(20)}
    small = {f"small{i}": (50 * 2 ** (i // 4), 64, DataType.FP32, [1.0]) for i in range(40)}
    tables = large | middle | small
    return _Job(EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingBagCollectionSharder(), tables, 64, 294_912)


def test_a_terabyte_of_sequence_tables_on_one_host():
    job, planner = _hstu(), _hstu().planner()
    plan = planner.plan(job.collection(), [job.sharder])
    ours = planner.last_plan
    assert ours.violations == ()
    assert [table.size_bytes for table in ours.task.tables] == [1024 * GB, 10_240_000_000, 131_072]
    assert ours.forms[0] is Form.ROWS
    assert {placed.home.tier for placed in ours.by_table[0]} <= {Tier.CACHED, Tier.HOST}
    assert plan.plan[""]["item"].compute_kernel in ("fused_uvm", "fused_uvm_caching")
    for rank in (0, 5):
        found = job.built(plan, rank)
        assert found == _expected(ours, rank)
        assert ("item", (GB // 8, 512)) in found


def test_a_production_shape_on_64_gpus():
    job, planner = _production(), _production().planner()
    plan = planner.plan(job.collection(), [job.sharder])
    ours = planner.last_plan
    assert ours.violations == ()
    assert len(ours.task.tables) == len(plan.plan[""]) == 66
    assert ours.task.batch_size == 294_912
    assert sum(table.rows * table.dim for table in ours.task.tables) == pytest.approx(18e9, rel=0.02)
    for rank in (0, 37):
        assert job.built(plan, rank) == _expected(ours, rank)
