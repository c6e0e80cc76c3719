"""Plans of jobs of production size; DistributedModelParallel builds some of their ranks on the meta device."""

import math
from contextlib import nullcontext
from copy import deepcopy

import pytest
import torch.distributed as dist
from torch.distributed.remote_device import _remote_device
from torchrec import EmbeddingCollection
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import ParameterConstraints
from torchrec.distributed.types import ShardingPlan
from torchrec.types import DataType

from neuroshard import Constraints, MemoryUse, Table, TableRule, Tier, zipf_reuse
from neuroshard.measure.steps._mirror import mirrored_world
from neuroshard.tables.sources.dlrm_like import dlrm_like
from neuroshard.torchrec import from_sharding_plan
from neuroshard.words.form import Form
from tests.kit.torchrec_models import META, planned, sequence, shaped_bags, topology

GB, HOST = 10**9, 8


def _planned(collection, sharder, devices, batch_size, ranks, **settings):
    """Plan a model of one collection; return our plan, the sharding of its tables, and (table, shape) on some ranks."""
    gpus = topology(devices, "cuda", 80 * GB, HOST, ddr_cap=250 * GB)
    given = {"models": "roofline:h100", "batch_size": batch_size // devices, "storage_reservation": None}
    planner, whole = planned(collection, [sharder], topology=gpus, **given, **settings)
    ours, plan = planner.last_plan, whole.plan[""]
    assert ours.violations == ()
    assert ours.task.batch_size == batch_size
    shapes = {name: tuple(weights.shape) for name, weights in sharder.shardable_parameters(collection).items()}
    assert shapes == {table.name: (table.rows, table.dim) for table in ours.task.tables}
    assert plan.keys() == shapes.keys()
    assert {sharding.sharding_type for sharding in plan.values()} <= set(sharder.sharding_types("cuda"))
    held = [_built(collection, sharder, whole, rank, devices) for rank in ranks]
    assert held == [_expected(ours, rank) for rank in ranks]
    return ours, plan, held


def _built(collection, sharder, plan, rank, devices):
    """Return (table, shape) of each shard that DistributedModelParallel has on a rank."""
    with mirrored_world(rank, devices, HOST, lambda *_: nullcontext()):
        assert dist.get_world_size() == devices
        made = DistributedModelParallel(
            collection, device=META, plan=_on_meta(plan), sharders=[sharder], init_data_parallel=False
        )
        found = [(name.split(".")[-2], held) for name, held in made.named_parameters() if held.numel()]
        sharded = [held for name, held in found if plan.plan[""][name].sharding_type != "data_parallel"]
        assert sharded
        assert all(held.device == META for held in sharded)  # data-parallel tables are small, and are made at once
        return sorted((name, tuple(held.shape)) for name, held in found)


def _on_meta(plan):
    """Return the plan with all shards on the meta device: TorchRec requires the device of the weights."""
    plan = deepcopy(plan)
    for sharding in (its for module in plan.plan.values() for its in module.values()):
        for shard in sharding.sharding_spec.shards if sharding.sharding_spec else ():
            shard.placement = _remote_device(f"rank:{shard.placement.rank()}/meta")
    return plan


def _expected(plan, rank):
    """Return (table, shape) of each shard that our plan has on a device."""
    names = [table.name for table in plan.task.tables]
    return sorted(
        (names[placed.shard.table], (placed.shard.rows, placed.shard.dim))
        for placed in plan.placements
        if placed.device == rank
    )


def _said(tables):
    """Return the settings of a planner for a job with the pipeline sparse_dist, given the lookups of each feature."""
    constraints = {name: ParameterConstraints(pooling_factors=lookups) for name, (*_, lookups) in tables.items()}
    return {"constraints": constraints, "pipeline": "sparse_dist"}


def test_terabyte_sequence_table_is_row_wise_in_host_memory_on_one_host():
    """The size of MLPerf's DLRMv3: a terabyte of items, looked up by histories and candidates, on 8 GPUs of 80 GB."""
    tables = {"item": (GB, [1024.0, 64.0]), "user": (10_000_000, [1.0]), "category": (128, [1024.0])}
    configs = [
        sequence(name, rows, 512, [f"{name}_{number}" for number in range(len(lookups))], data_type=DataType.FP16)
        for name, (rows, lookups) in tables.items()
    ]
    collection, sharder = EmbeddingCollection(configs, device=META), EmbeddingCollectionSharder()
    ours, plan, held = _planned(collection, sharder, 8, 256, (0, 5), **_said(tables))
    assert [table.size_bytes for table in ours.task.tables] == [1024 * GB, 10_240_000_000, 131_072]
    assert ours.forms[0] is Form.ROW_WISE
    assert {placed.tier_assignment.tier for placed in ours.by_table[0]} <= {Tier.UVM_CACHING, Tier.UVM}
    assert plan["item"].compute_kernel in ("fused_uvm", "fused_uvm_caching")
    assert all(("item", (GB // 8, 512)) in its for its in held)


def test_planner_plans_66_tables_on_64_gpus():
    """66 tables with 18 billion parameters, most of them in six tables."""
    large = {f"large{i}": (20_000_000, 128, [20.0]) for i in range(6)}
    middle = {f"middle{i}": (1_000_000, 128, [4.0 + i]) for i in range(20)}
    small = {f"small{i}": (50 * 2 ** (i // 4), 64, [1.0]) for i in range(40)}
    tables = large | middle | small
    collection = shaped_bags({name: (rows, dim) for name, (rows, dim, _) in tables.items()})
    ours, plan, _ = _planned(collection, EmbeddingBagCollectionSharder(), 64, 294_912, (0, 37), **_said(tables))
    assert len(ours.task.tables) == len(plan) == 66
    assert sum(table.rows * table.dim for table in ours.task.tables) == pytest.approx(18e9, rel=0.02)


def test_a_table_that_fits_on_no_device_is_row_wise_on_all():
    """A table of 6.5 billion rows, of which not even 4 columns fit on a device, beside ordinary tables."""
    rows, batch_size = 6_500_000_000, 65_536
    huge = Table("huge", rows, 32, 1.0, zipf_reuse(rows, batch_size, 1.05))
    tables = [huge, *dlrm_like(num_tables=36, seed=1, batch_size=batch_size)]
    on_device = Constraints((TableRule("huge", tiers=("device",)),))
    known = {"tables": tables, "memory": MemoryUse("rowwise_adagrad", batches_in_flight=1), "rules": on_device}
    collection = shaped_bags({table.name: (table.rows, table.dim) for table in tables})
    ours, plan, held = _planned(collection, EmbeddingBagCollectionSharder(), 16, batch_size, (0, 9), **known)
    assert ours.forms[0] is Form.ROW_WISE
    assert all([shape for name, shape in its if name == "huge"] == [(math.ceil(rows / 16), 32)] for its in held)
    assert sorted(from_sharding_plan(ours.task, ShardingPlan({"": plan})).placements) == sorted(ours.placements)
