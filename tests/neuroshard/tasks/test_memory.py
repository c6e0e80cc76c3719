from dataclasses import replace
from fractions import Fraction
from math import ceil

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from neuroshard import MemoryUse, Table, Task, Tier, TierAssignment, Topology
from neuroshard.cost.loads import Loads
from neuroshard.layouts.widths import shard_widths
from neuroshard.plumbing.schema import MAX_BATCH_SIZE, MAX_BYTES, MAX_DIM, MAX_FEATURES, MAX_POOLING_FACTOR, MAX_ROWS
from neuroshard.testing import ONCE
from neuroshard.words.form import FORMS, Form
from tests.kit.messages import refused
from tests.kit.plans import DATA_PARALLEL, laid_out, read_back, table

TABLE = table("t", 1000, 8, 2.5)


def test_received_indices_count_for_every_batch_in_flight():
    assert MemoryUse("sgd", 3).received_bytes(8, 64, 4) == 3 * 2 * 4 * 16 * 8
    assert MemoryUse("sgd", 0).received_bytes(8, 64, 4) == 0


@pytest.mark.parametrize(
    ("pipeline", "permuted", "outputs", "loaded"),
    [("none", 2, 1, 1), ("sparse_dist", 4, 1, 3), ("prefetch", 6, 1, 3), ("semi_sync", 6, 2, 3)],
)
def test_pipeline_memory_of_each_column_shard_counts_all_permuted_indices(pipeline, permuted, outputs, loaded):
    """Bytes by hand: both devices have indices and offsets of the whole batch, and the output of their columns."""
    task = Task((TABLE,), Topology(2, 1 << 20), 64, MemoryUse("sgd", pipeline=pipeline))
    indices, columns = 8 * (160 + 64), 2 * 4 * 64 * 8
    whole, halves = laid_out(task, 0), laid_out(task, {0: 4, 1: 4})
    assert whole.device_bytes == (32_000 + permuted * indices + outputs * columns, 0)
    assert halves.device_bytes == (16_000 + permuted * indices + outputs * columns // 2,) * 2
    own = outputs * 2 * 4 * 32 * 8 + loaded * 8 * 112  # of 32 samples: embeddings, 80 indices and 32 lengths
    assert task.shard_memory == ((1 << 20) - own,) * 2
    assert read_back(task) == task


def test_prefetch_pipeline_memory_adds_lists_for_cached_tables():
    shards = Loads.of([TABLE, TABLE], 64).at([TierAssignment(Tier.UVM_CACHING, 0.5), TierAssignment(Tier.UVM)])
    ahead, others = (MemoryUse("sgd", pipeline=one).device_bytes(shards) for one in ("prefetch", "sparse_dist"))
    indices = 8 * (160 + 64)
    assert (ahead - others).tolist() == [(2 + 7) * indices, 2 * indices]


def test_plans_use_the_memory_settings_of_their_task():
    task = Task((TABLE,), Topology(2, 40_000, (0, 10_000)), 64, MemoryUse("rowwise_adagrad", 1))
    plan = laid_out(task, {0: 4, 1: 4})
    indices = 8 * 64 * 3.5
    assert plan.device_bytes == (16_000 + 4_000 + indices + 2 * 4 * 64 * 4,) * 2
    assert task.shard_memory == (40_000 - 2 * 4 * 32 * 8, 30_000 - 2 * 4 * 32 * 8)
    assert plan.fits
    assert not laid_out(task, 0).fits


def _mixed(memory):
    """A row-wise and a data-parallel table on two devices with plenty of memory."""
    task = Task((TABLE, replace(TABLE, name="u", rows=50)), Topology(2, 1 << 20), 64, memory)
    return laid_out(task, [0, 1], DATA_PARALLEL)


def test_row_wise_and_data_parallel_shards_count_the_weights_on_their_device():
    assert _mixed(MemoryUse("sgd")).device_bytes == (16_000 + 1_600,) * 2
    assert _mixed(MemoryUse("rowwise_adagrad")).device_bytes == (16_000 + 2_000 + 1_600 + 200,) * 2


def test_memory_counts_all_outputs_of_row_wise_and_dense_gradients_of_data_parallel_tables():
    block = 16_000 + 8 * (80 + 64) + 2 * 4 * 64 * 8  # half the lookups, everybody's offsets and outputs
    copy = 1_600 + 8 * (80 + 32) + 4 * 50 * 8  # half the samples; what they receive is counted for all tables at once
    plan = _mixed(MemoryUse("sgd", 1))
    assert plan.device_bytes == (block + copy,) * 2
    assert plan.task.shard_memory == ((1 << 20) - 2 * 4 * 32 * 16,) * 2
    twice = 8 * (80 + 64) + 2 * 4 * 64 * 8 + 8 * (80 + 32)
    assert _mixed(MemoryUse("sgd", 2)).device_bytes == (block + copy + twice,) * 2


def test_memory_counts_offsets_and_outputs_for_every_feature():
    shared = replace(TABLE, features=3)
    one = 8 * 64 * (2.5 + 3) + 2 * 4 * 64 * 3 * 8
    assert MemoryUse("sgd", 2).device_bytes(Loads.of([shared], 64)).tolist() == [32_000 + 2 * one]
    task = Task((TABLE, replace(shared, name="u")), Topology(2, 1 << 20), 64, MemoryUse("sgd", 1))
    assert task.output_columns == 4 * 8
    assert task.shard_memory == ((1 << 20) - 2 * 4 * 32 * 4 * 8,) * 2
    copies = laid_out(task, [0, 1], DATA_PARALLEL)
    block = 16_000 + 8 * (80 + 64) + 2 * 4 * 64 * 8
    copy = 32_000 + 8 * (80 + 3 * 32) + 4 * 1000 * 8
    assert copies.device_bytes == (block + copy,) * 2


def test_data_parallel_table_too_large_with_its_gradient_is_refused():
    """12 bytes for each of 2^56 elements are within 2^60 bytes; 16 bytes for each are not, with any buffers."""
    whole, use = Loads.of([LARGEST], 64), MemoryUse("adam", 1)
    assert use.device_bytes(whole)[0] > 12 << 56
    with refused("memory-table-too-large", where="memory", names=["2^60", "adam", "64 samples"]):
        use.device_bytes(replace(whole, form=np.array([FORMS.index(Form.DATA_PARALLEL)])))


def test_memory_use_refuses_unknown_optimizer_and_negative_batches():
    with refused("unknown-name", names=["'adm'", "'adam'"]):
        MemoryUse("adm")
    with refused("value-outside-limits", names=["batches_in_flight", -1]):
        MemoryUse("sgd", -1)


_STATE_FLOATS = {"sgd": (0, 0), "rowwise_adagrad": (0, 1), "adam": (2, 0)}


def _exact_bytes(table, use, batch_size):
    per_element, per_row = _STATE_FLOATS[use.optimizer]
    state = table.rows * (table.dim * (table.bytes_per_element + 4 * per_element) + 4 * per_row)
    lookups = Fraction(batch_size * table.pooling_factor)  # a batch's lookups are a mean, in 64 bits
    bags = batch_size * table.features
    outputs = bags if table.pooled else ceil(lookups)
    return state + use.batches_in_flight * (ceil(8 * lookups) + 8 * bags + 8 * outputs * table.dim)


def _bytes_in_shards(table, use, batch_size):
    """Each shard of a table above the width limit has the state of all rows, and buffers of all lookups."""
    return sum(_exact_bytes(table.with_dim(dim), use, batch_size) for dim in shard_widths(table, table.dim))


tables = st.builds(
    Table,
    st.just("t"),
    st.integers(1, MAX_ROWS),
    st.integers(1, MAX_DIM // 4).map(lambda width: 4 * width),
    st.floats(0, MAX_POOLING_FACTOR, exclude_min=True),
    st.just(ONCE),
    st.sampled_from([2, 4]),
    features=st.integers(1, MAX_FEATURES),
    pooled=st.booleans(),
)
uses = st.builds(MemoryUse, st.sampled_from(list(_STATE_FLOATS)), st.integers(0, 1000))
LARGEST = table("t", MAX_ROWS, MAX_DIM, MAX_POOLING_FACTOR, features=MAX_FEATURES)


@given(tables, uses, st.integers(1, MAX_BATCH_SIZE))
@example(LARGEST, MemoryUse("adam", 1000), MAX_BATCH_SIZE)
@example(LARGEST, MemoryUse("adam"), MAX_BATCH_SIZE)
@example(replace(LARGEST, pooled=False), MemoryUse("adam", 1), MAX_BATCH_SIZE)
@example(replace(LARGEST, rows=1, pooled=False), MemoryUse("adam", 0), MAX_BATCH_SIZE)
@example(table("t", (1 << 40) - 1, 65532, 0.1), MemoryUse("adam", 3), MAX_BATCH_SIZE - 1)
@example(table("t", 1, 4, 0.1), MemoryUse("sgd", 1), 10)
@settings(max_examples=500)
def test_device_bytes_of_a_table_are_exact_or_refused(table, use, batch_size):
    """Bytes equal those of exact integers, over all allowed tables, batches and memory settings."""
    expected, shards = _exact_bytes(table, use, batch_size), Loads.of([table], batch_size)
    if expected > MAX_BYTES:
        with refused("memory-table-too-large"):
            use.device_bytes(shards)
        with refused("memory-table-too-large"):
            Task((table,), Topology(1, 1 << 60), batch_size, use)
    else:
        assert use.device_bytes(shards).tolist() == [expected]
        state = _exact_bytes(table, replace(use, batches_in_flight=0), batch_size)
        assert use.state_bytes(shards).tolist() == [state]
        task = Task((table,), Topology(1, 1 << 60), batch_size, use)
        assert laid_out(task, 0).device_bytes == (_bytes_in_shards(table, use, batch_size),)


@given(st.lists(tables, min_size=2, max_size=6), uses, st.integers(4, MAX_BATCH_SIZE), st.data())
@settings(max_examples=200)
def test_bytes_of_several_tables_on_a_device_are_exact(some, use, batch_size, data):
    some = [replace(table, name=f"t{i}") for i, table in enumerate(some)]
    total = sum(_exact_bytes(table, use, batch_size) for table in some)
    if total > MAX_BYTES:
        one_too_large = any(_exact_bytes(table, use, batch_size) > MAX_BYTES for table in some)
        with refused("memory-table-too-large" if one_too_large else "task-tables-too-large", names=["2^60 bytes"]):
            Task(tuple(some), Topology(4, 1 << 58), batch_size, use)
        return
    task = Task(tuple(some), Topology(4, 1 << 58), batch_size, use)
    devices = [data.draw(st.integers(0, 3)) for _ in some]
    plan = laid_out(task, *devices)
    for device in range(4):
        here = [table for table, its in zip(some, devices, strict=True) if its == device]
        expected = sum(_bytes_in_shards(table, use, batch_size) for table in here)
        assert plan.device_bytes[device] == expected
    assert plan.fits == all(used <= free for used, free in zip(plan.device_bytes, task.shard_memory, strict=True))


def test_memory_sizes_above_64_bits_are_refused():
    """2^64 bytes of weights, and buffers above 2^63 bytes, once overflowed to almost nothing."""
    huge = table("huge", MAX_ROWS, MAX_DIM, 1.0)
    with refused("task-tables-too-large", where="task", names=["2^60 bytes"]):
        Task((huge,) * 20, Topology(2, 4 << 30), 1024)
    busy = table("busy", 10, 4, float(MAX_POOLING_FACTOR))
    with refused("memory-table-too-large", where="memory", names=["1,000 batches"]):
        Task((busy,), Topology(2, 4 << 30), MAX_BATCH_SIZE, MemoryUse("adam", 1000))
