"""The kernel calls and exchanges that are measured of a plan."""

from dataclasses import replace

import numpy as np
import pytest

from neuroshard import Task, Tier, TierAssignment, Topology
from neuroshard.measure._plan_samples import exchanges, kernel_calls
from neuroshard.measure.store.samples import BACKWARD, FORWARD, RowBlock
from neuroshard.stages.search.options.tier_changes import assign_tiers
from neuroshard.tables.reuse import reuse_at
from neuroshard.testing import toy_tables
from neuroshard.words.collective import Collective
from neuroshard.words.form import Form
from neuroshard.words.placement import ON_DEVICE
from tests.kit.plans import DATA_PARALLEL, laid_out, whole

TABLES = toy_tables(5, seed=3)
TASK = Task(TABLES, Topology(4, 1 << 30, devices_per_host=2), 256)
MIXED = laid_out(TASK, range(4), [2, 3], 0, 3, DATA_PARALLEL)


def test_kernel_calls_have_one_call_for_each_sharding_type_on_each_device():
    calls = kernel_calls(MIXED)
    assert [[call.form for call in its] for its in calls] == [
        [Form.COLUMN_WISE, Form.ROW_WISE, Form.DATA_PARALLEL],
        [Form.ROW_WISE, Form.DATA_PARALLEL],
        [Form.ROW_WISE, Form.DATA_PARALLEL],
        [Form.COLUMN_WISE, Form.ROW_WISE, Form.DATA_PARALLEL],
    ]
    assert [[table.name for table in call.tables] for call in calls[3]] == [["toy3"], ["toy0", "toy1"], ["toy4"]]
    assert {call.batch_size for its in calls for call in its if call.form is not Form.DATA_PARALLEL} == {256}
    assert {call.batch_size for its in calls for call in its if call.form is Form.DATA_PARALLEL} == {64}


def test_kernel_calls_have_one_call_for_each_tier_and_cached_tables_share_a_cache():
    homes = (
        TierAssignment(Tier.UVM_CACHING, 0.5),
        TierAssignment(Tier.UVM_CACHING, 0.1),
        TierAssignment(Tier.UVM),
        ON_DEVICE,
        ON_DEVICE,
    )
    topology = replace(TASK.topology, host_memory_bytes=1 << 30)
    plan = whole(assign_tiers(replace(TASK, topology=topology), homes), 0)
    calls = {call.tier_assignment.tier: call for call in kernel_calls(plan)[0]}
    assert [table.name for table in calls[Tier.UVM_CACHING].tables] == ["toy0", "toy1"]
    rows = [TABLES[t].rows for t in (0, 1)]
    assert calls[Tier.UVM_CACHING].tier_assignment.cache_load_factor == pytest.approx(
        (0.5 * rows[0] + 0.1 * rows[1]) / sum(rows)
    )
    assert [len(calls[tier].tables) for tier in (Tier.UVM, Tier.DEVICE)] == [1, 2]


def test_sequence_tables_have_a_call_for_each_sharding_type_and_width():
    tables = tuple(replace(table, dim=16, rows=100, pooled=i == 0) for i, table in enumerate(TABLES))
    task = replace(TASK, tables=tables)
    plan = laid_out(task, 1, 0, {0: 8, 3: 8}, 0, range(4))
    calls = kernel_calls(plan)
    assert [[(call.call.name, len(call.tables), call.tables[0].dim) for call in its] for its in calls] == [
        [("sequence_column_wise", 1, 8), ("sequence_column_wise", 2, 16), ("sequence_row_wise", 1, 16)],
        [("column_wise", 1, 16), ("sequence_row_wise", 1, 16)],
        [("sequence_row_wise", 1, 16)],
        [("sequence_column_wise", 1, 8), ("sequence_row_wise", 1, 16)],
    ]
    assert [exchange.collective for exchange in exchanges(plan, BACKWARD)] == [Collective.ALL_TO_ALL]


def test_tables_of_each_data_type_have_a_call():
    tables = tuple(replace(table, bytes_per_element=4 - 2 * (i % 2)) for i, table in enumerate(TABLES))
    *_, last = kernel_calls(laid_out(replace(TASK, tables=tables), range(4), [2, 3], 0, 3, DATA_PARALLEL))
    assert [[table.name for table in call.tables] for call in last] == [["toy3"], ["toy1"], ["toy0"], ["toy4"]]
    assert [call.form for call in last] == [Form.COLUMN_WISE, Form.ROW_WISE, Form.ROW_WISE, Form.DATA_PARALLEL]


def test_row_wise_and_data_parallel_samples_match_the_plan():
    rows = TABLES[0].rows
    most = -(-rows // 4)
    blocks = [next(call for call in its if call.form is Form.ROW_WISE).blocks[0] for its in kernel_calls(MIXED)]
    assert blocks == [RowBlock(i * most, min(most, rows - i * most)) for i in range(4)]
    copy = kernel_calls(MIXED)[0][2].tables[0]
    assert copy.rows == TABLES[4].rows
    assert copy.reuse == pytest.approx(reuse_at(np.array(TABLES[4].reuse), 1 / 4))


def test_exchange_samples_have_the_traffic_of_the_plan():
    forward, backward = (exchanges(MIXED, direction) for direction in (FORWARD, BACKWARD))
    assert [exchange.collective for exchange in backward] == [
        Collective.ALL_TO_ALL,
        Collective.REDUCE_SCATTER,
        Collective.HOST_REDUCE_SCATTER,
        Collective.HOST_ALL_TO_ALL,
        Collective.ALL_REDUCE,
    ]
    assert forward == backward[:-1]  # data-parallel gradients go one way
    for exchange in backward:
        assert exchange.size_bytes == tuple(MIXED.traffic.sent_bytes(exchange.collective)[0])
        assert exchange.devices_per_host == 2
        assert exchange.batch_size == 256


def test_column_wise_plan_has_one_call_per_device_and_one_exchange():
    plan = whole(TASK, 0, 1)
    assert [len(its) for its in kernel_calls(plan)] == [1, 1, 0, 0]
    (only,) = exchanges(plan, FORWARD)
    assert only.dims == plan.device_dims
