import pytest

from neuroshard.errors import UserError
from neuroshard.memory import MemoryUse
from neuroshard.plan import Plan, Shard
from neuroshard.tables import Table
from neuroshard.tables.columns import TableColumns
from neuroshard.task import Task, Topology
from neuroshard.units import readable_bytes

ONCE = (1.0, *(0.0,) * 16)
TABLE = Table("t", 1000, 8, 2.5, ONCE)


@pytest.mark.parametrize(
    ("optimizer", "state"), [("sgd", 32_000), ("rowwise_adagrad", 32_000 + 4_000), ("adam", 3 * 32_000)]
)
def test_optimizer_state_is_counted(optimizer, state):
    shards = TableColumns.of([TABLE])
    assert MemoryUse(optimizer).state_bytes(shards).tolist() == [state]
    assert MemoryUse(optimizer).shard_bytes(shards, 64).tolist() == [state]


def test_state_is_fp32_where_weights_are_fp16():
    half = TableColumns.of([Table("t", 1000, 8, 2.5, ONCE, bytes_per_element=2)])
    assert MemoryUse("adam").state_bytes(half).tolist() == [1000 * 8 * (2 + 8)]


def test_buffers_are_counted_for_every_batch_in_flight():
    shards = TableColumns.of([TABLE])
    one = 8 * 64 * 3.5 + 2 * 4 * 64 * 8  # indices and offsets; pooled embeddings and their gradients
    assert MemoryUse("sgd", 1).shard_bytes(shards, 64).tolist() == [32_000 + one]
    assert MemoryUse("sgd", 3).shard_bytes(shards, 64).tolist() == [32_000 + 3 * one]
    assert MemoryUse("sgd", 3).received_bytes(8, 64, 4) == 3 * 2 * 4 * 16 * 8
    assert MemoryUse("sgd", 0).received_bytes(8, 64, 4) == 0


def test_plans_count_what_their_task_counts():
    task = Task((TABLE,), Topology(2, 40_000, (0, 10_000)), 64, MemoryUse("rowwise_adagrad", 1))
    plan = Plan(task, (Shard(0, 0, 4), Shard(0, 4, 4)), (0, 1))
    indices = 8 * 64 * 3.5
    assert plan.device_bytes == (16_000 + 4_000 + indices + 2 * 4 * 64 * 4,) * 2
    assert task.shard_memory == (40_000 - 2 * 4 * 32 * 8, 30_000 - 2 * 4 * 32 * 8)
    assert plan.fits
    assert not Plan(task, (Shard(0, 0, 8),), (0,)).fits


def test_impossible_uses_are_refused():
    with pytest.raises(UserError, match="did you mean 'adam'"):
        MemoryUse("adm")
    with pytest.raises(UserError, match="batches_in_flight=-1"):
        MemoryUse("sgd", -1)


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        ((1, 2, 3), "memory_bytes lists 3 devices, there are 2"),
        ((0, 5), "nothing of its memory_bytes=0"),
        ("many", "memory_bytes='many'"),
    ],
)
def test_impossible_topologies_are_refused(memory, message):
    with pytest.raises(UserError, match=message):
        Topology(2, memory)
    with pytest.raises(UserError, match="leave device 1 nothing"):
        Topology(2, 10, (0, 10))


def test_sizes_are_readable():
    assert readable_bytes(3 << 30) == "3 GiB"
    assert readable_bytes(5 << 20) == "5 MiB"
