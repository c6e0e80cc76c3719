"""Tables in key-value stores and virtual ones: TorchRec's, in blocks that they allow, with their memory counted."""

import pytest
import torch
from torch import nn
from torchrec import EmbeddingBagCollection
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import ParameterConstraints
from torchrec.distributed.types import KeyValueParams
from torchrec.modules.hash_mc_modules import HashZchManagedCollisionModule
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection
from torchrec.modules.mc_modules import ManagedCollisionCollection

from neuroshard.plumbing.errors import UserError
from tests.kit.torchrec_models import META, bag, bags, planner

ROWS, DIM, CAP = 1 << 20, 64, 1 << 30
VIRTUAL = {"use_virtual_table": True, "total_num_buckets": 4}


def _model(**fields):
    """A table `v` beside ordinary ones."""
    stored = EmbeddingBagCollection([bag("v", rows=ROWS, dim=DIM, **fields)], device=META)
    return nn.ModuleDict({"stored": stored, "bags": bags("a", "b", rows=1000, dim=DIM)})


def _planned(model, on_host=4 << 30, **settings):
    """The plan of a model on four GPUs of two hosts, and what it left: bytes of each device, and of a host."""
    ours = planner(4, "cuda", CAP, on_host=2, **settings)
    for device in ours._asked[0].topology.devices:
        device.storage.ddr = on_host // 2
    plan = ours.plan(model)
    topology = ours.last_plan.task.topology
    return plan, topology.device_memory, topology.host_memory_bytes


@pytest.mark.parametrize("kernel", ["ssd_virtual_table", "dram_virtual_table", "dram_ssd_virtual_table"])
def test_virtual_tables_are_delegated_with_their_caches(kernel, caplog):
    caches = KeyValueParams(max_l1_cache_size=100, l2_cache_size=1)
    said = ParameterConstraints(compute_kernels=[kernel], key_value_params=caches, use_virtual_table=True)
    plan, devices, host = _planned(_model(**VIRTUAL), constraints={"v": said})
    table = plan.plan["stored"]["v"]
    assert (table.sharding_type, table.compute_kernel, table.ranks) == ("row_wise", kernel, [0, 1, 2, 3])
    assert "delegated to TorchRec's EmbeddingShardingPlanner: stored.v (a virtual table)" in caplog.text
    cached = ROWS // 5 * DIM * 4  # TorchRec's share of the rows; less than max_l1_cache_size
    assert all(CAP - free == pytest.approx(cached, rel=1e-3) for free in devices)
    assert host == (4 << 30) - 2 * (1 << 30)


def test_virtual_tables_stay_in_rows_whatever_torchrec_would_choose():
    plan, _, _ = _planned(_model(**VIRTUAL))
    assert plan.plan["stored"]["v"].sharding_type == "row_wise"
    with pytest.raises(UserError, match=r"a virtual table, .*sharding_types=\['table_wise'\]; allow 'row_wise'"):
        _planned(_model(**VIRTUAL), constraints={"v": ParameterConstraints(sharding_types=["table_wise"])})


def test_uneven_buckets_are_an_error_of_one_line():
    with pytest.raises(UserError, match=r"stored\.v.*divisible by num_buckets"):
        _planned(_model(use_virtual_table=True, total_num_buckets=6))


def test_tables_on_ssd_are_delegated_with_their_caches(caplog):
    caches = KeyValueParams(max_l1_cache_size=10, l2_cache_size=1)
    said = ParameterConstraints(compute_kernels=["key_value"], key_value_params=caches)
    plan, devices, host = _planned(_model(), constraints={"v": said})
    held = set(plan.plan["stored"]["v"].ranks)
    assert "stored.v (compute_kernels=['key_value'])" in caplog.text
    assert {rank for rank, free in enumerate(devices) if CAP - free >= 10 << 20} == held
    assert host == (4 << 30) - max(len(held & {0, 1}), len(held & {2, 3})) * (1 << 30)


def test_delegated_tables_in_host_memory_leave_less_of_it():
    said = ParameterConstraints(sharding_types=["table_row_wise"], compute_kernels=["fused_uvm"])
    _, _, host = _planned(_model(), constraints={"v": said})
    assert host == (4 << 30) - ROWS * DIM * 4


class _Triton(EmbeddingBagCollectionSharder):
    """A sharder whose tables may be served by the kernels in Triton."""

    def compute_kernels(self, sharding_type, compute_device_type):
        return [*super().compute_kernels(sharding_type, compute_device_type), "fused_triton"]


def test_triton_kernels_are_delegated_where_sharders_have_them(caplog):
    said = {"v": ParameterConstraints(compute_kernels=["fused_triton"], sharding_types=["table_wise"])}
    ours = planner(4, "cuda", CAP, constraints=said)
    plan = ours.plan(_model(), [_Triton()])
    table = plan.plan["stored"]["v"]
    assert (table.compute_kernel, "compute_kernels=['fused_triton']" in caplog.text) == ("fused_triton", True)
    assert CAP - ours.last_plan.task.topology.device_memory[table.ranks[0]] >= ROWS * DIM * 4
    with pytest.raises(UserError, match=r"has only .* allow one of them"):
        planner(4, "cuda", CAP, constraints=said).plan(_model())


def test_ids_of_managed_collision_take_memory():
    tables = bags("z", rows=1000, dim=DIM)
    remapped = HashZchManagedCollisionModule(1000, torch.device("cpu"), total_num_buckets=4)
    held = sum(buffer.numel() * buffer.element_size() for buffer in remapped.buffers())
    collection = ManagedCollisionCollection({"z": remapped}, tables.embedding_bag_configs())
    model = nn.ModuleDict({"z": ManagedCollisionEmbeddingBagCollection(tables, collection), "bags": bags("a", dim=DIM)})
    plan, devices, _ = _planned(model)
    assert plan.plan["z"]["z"].sharding_type == "row_wise"
    assert held > 0
    assert all(CAP - free >= (1000 * DIM * 4 + held) // 4 for free in devices)
