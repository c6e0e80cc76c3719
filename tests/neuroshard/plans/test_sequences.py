"""Plans of sequence tables: allowed placements, traffic, memory and kernel calls."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuroshard import Constraints, MemoryUse, Simulator, TableRule, Task, Topology
from neuroshard.testing import linear_models
from neuroshard.words.collective import Collective
from neuroshard.words.form import Form
from tests.kit.messages import refused
from tests.kit.plans import DATA_PARALLEL, laid_out, table
from tests.kit.searches import H100

BATCH = 64
TABLE = table("s", pooling_factor=2.5, features=2, pooled=False)
TASK = Task((TABLE, replace(TABLE, name="p", pooled=True)), Topology(4, 1 << 20, devices_per_host=2), BATCH)
HALVES = {1: 8, 3: 8}


@pytest.mark.parametrize(
    ("where", "facts"),
    [
        (1, None),
        (HALVES, None),
        (range(4), None),
        ({1: 4, 3: 12}, {"'s'", "4", "12"}),
        (dict.fromkeys(range(4), 4), {"'s'", "4", "1", "2"}),
        (DATA_PARALLEL, {"'s'", "data_parallel"}),
        ([2, 3], {"'s'", "2", "4"}),
    ],
)
def test_sequence_tables_are_whole_halved_or_row_wise(where, facts):
    found = [set(re.findall(r"[\w']+", line)) for line in laid_out(TASK, where, 2).violations]
    assert (not found) if facts is None else any(facts <= words for words in found)


@pytest.mark.parametrize(("dim", "most", "narrowest"), [(16, 2, 8), (24, 2, 12), (12, 1, 12), (4, 1, 4)])
def test_sequence_table_limits_allow_equal_halves_only(dim, most, narrowest):
    limits = Constraints().limits(TABLE.with_dim(dim), 4)
    assert (limits.max_shards, limits.min_dim) == (most, narrowest)
    assert limits.forms == {Form.COLUMN_WISE, Form.ROW_WISE}
    with refused("table-shard-counts", where="constraints", names=["'s'", "min_shards", 3, most]):
        Constraints((TableRule("s", min_shards=3),)).limits(TABLE.with_dim(dim), 4)


@given(st.floats(0.1, 50), st.integers(1, 5), st.integers(4, 5000))
def test_sequence_tables_output_one_row_per_lookup(pooling, features, batch_size):
    """Column-wise and row-wise tables: all outputs go to the devices of their samples, and no sums are exchanged."""
    task = Task((replace(TABLE, pooling_factor=pooling, features=features),), TASK.topology, batch_size)
    lookups = batch_size * pooling
    for plan in (laid_out(task, HALVES), laid_out(task, range(4))):
        parts = len(plan.placements)
        np.testing.assert_allclose(plan.traffic.sent_bytes(Collective.ALL_TO_ALL).sum(), lookups * 16 * 4)
        assert not plan.traffic.sent_bytes(Collective.REDUCE_SCATTER).any()
        blocks = parts if plan.forms[0] is Form.ROW_WISE else 1
        loads = plan.device_loads.loads
        np.testing.assert_allclose(loads.outputs.sum() * blocks, lookups * parts)
        lengths = 8 * batch_size * features * parts
        indices = 8 * np.ceil(loads.lookups).sum()
        np.testing.assert_allclose(plan.traffic.sent_bytes(Collective.INPUT).sum(), indices + lengths)


def test_buffers_of_sequence_tables_have_a_row_for_each_lookup():
    task = replace(TASK, memory=MemoryUse("sgd", 1))
    half = 100 * 8 * 4 + 8 * BATCH * (2.5 + 2) + 2 * 4 * BATCH * 2.5 * 8
    plan = laid_out(task, HALVES, 2)
    assert plan.device_bytes[1] == plan.device_bytes[3] == half
    received = 2 * 4 * BATCH // 4 * (2.5 + 2) * 16
    assert task.shard_memory == ((1 << 20) - received,) * 4
    assert task.output_columns == (2.5 + 2) * 16
    assert plan.device_dims == (0, 20, 32, 20)


def test_pooled_and_sequence_calls_of_a_device_add_up():
    """A device with pooled and sequence tables calls two kernels, each with a launch time."""
    together, alone = (H100.cost(TASK, laid_out(TASK, where, 2)).compute for where in (2, 1))
    assert together[2] == pytest.approx(alone.sum(), rel=1e-6)
    assert alone[1] > alone[2]  # more outputs, of the same lookups


def test_sequence_tables_with_models_without_sequence_calls_are_refused():
    task = replace(TASK, batch_size=256)
    with refused("models-lack-sequence-tables", names=["'s'", "compute.pooled"]):
        Simulator(linear_models()).cost(task, laid_out(task, 2, 2))


def test_printed_plan_marks_sequence_tables():
    assert "s (2 features, sequence)" in str(laid_out(TASK, 2, 2))
