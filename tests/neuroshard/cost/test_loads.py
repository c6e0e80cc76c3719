"""What placements ask of a device's kernels, and what devices exchange, by sharding type, counted by hand."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuroshard import Plan, Task, Topology, zipf_reuse
from neuroshard.cost.loads import Loads, LoadSets, Traffic
from neuroshard.layouts import LAYOUTS, placed_loads
from neuroshard.tables.reuse import MEAN_COUNTS, reuse_at
from neuroshard.testing import toy_task
from neuroshard.words.collective import Collective
from neuroshard.words.form import FORMS, Form
from tests.kit.plans import DATA_PARALLEL, laid_out, placed, table, tables, whole

BATCH = 64
REUSE = zipf_reuse(10, 128)
TABLE = table(rows=10, reuse=REUSE)
EVEN = (TABLE, replace(TABLE, name="u", rows=8, dim=8))
TASK = Task((TABLE, replace(TABLE, name="u", rows=6, dim=8)), Topology(4, 1 << 20, devices_per_host=2), BATCH)


def _placed(*places, task=TASK):
    placements = [one for index, where in enumerate(places) for one in placed(task, index, where)]
    return placed_loads(task.tables, placements, task.batch_size, task.topology.num_devices)


def _forms(*names):
    return [FORMS.index(Form(name)) for name in names]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (
            {1: 4, 2: 12},
            {"rows": [10, 10, 6], "dim": [4, 12, 8], "lookups": [2 * BATCH] * 3, "samples": [BATCH] * 3}
            | {"form": _forms(*["column_wise"] * 3), "sharers": [1] * 3},
        ),
        (
            range(4),
            {"rows": [3, 3, 3, 1, 6], "dim": [*[16] * 4, 8], "samples": [BATCH] * 5, "sharers": [*[4] * 4, 1]}
            | {"lookups": pytest.approx([2 * BATCH * share for share in (0.3, 0.3, 0.3, 0.1, 1)], rel=1e-7)}
            | {"form": _forms(*["row_wise"] * 4, "column_wise")},
        ),
        (
            {(0, 1): 4, (2, 3): 12},
            {"dim": [4, 4, 12, 12, 8], "sharers": [2, 2, 2, 2, 1]}
            | {"lookups": pytest.approx([BATCH] * 4 + [2 * BATCH], rel=1e-7)},
        ),
        (
            DATA_PARALLEL,
            {"rows": [10] * 4 + [6], "samples": [BATCH / 4] * 4 + [BATCH], "lookups": [2 * BATCH / 4] * 4 + [2 * BATCH]}
            | {
                "form": _forms(*["data_parallel"] * 4, "column_wise"),
                "pooling_factor": pytest.approx([2.0] * 5, rel=1e-7),
            },
        ),
    ],
    ids=["column_wise", "row_wise", "rows on each host", "data_parallel"],
)
def test_loads_of_a_table_depend_on_its_sharding_type(where, expected):
    """All lookups of their columns; those of their rows, or of their own samples."""
    found = _placed(where, 0)
    assert {name: getattr(found, name).tolist() for name in expected} == expected
    assert found.outputs.tolist() == found.samples.tolist()


def test_row_wise_blocks_have_the_table_histogram_and_data_parallel_tables_the_local_one():
    np.testing.assert_array_equal(_placed(range(4), 0).reuse, Loads.of([TABLE], BATCH).reuse.repeat(5, axis=0))
    found = _placed(DATA_PARALLEL, 0)
    np.testing.assert_allclose(found.reuse, [reuse_at(np.array(REUSE), 1 / 4)] * 4 + [REUSE])
    unique = found.lookups / (found.reuse @ MEAN_COUNTS)
    assert unique[0] > unique[4] / 4  # the devices touch the hot rows all


def test_hot_rows_are_looked_up_on_their_device():
    task = replace(TASK, tables=(replace(TABLE, row_lookups=(0.9, 0.1)), TASK.tables[1]))
    found = _placed([2, 3], 0, task=task)
    np.testing.assert_allclose(found.lookups[:2], [2 * BATCH * 0.9, 2 * BATCH * 0.1])
    assert found.sharers.tolist() == [2, 2, 1]


def test_loads_of_all_devices_add_up_to_bytes_and_lookups_of_each_table():
    """Shards add up to the table; data-parallel tables have all weights on each device and all lookups together."""
    task = Task(tuple(replace(TABLE, name=name) for name in "abc"), TASK.topology, BATCH)
    loads = laid_out(task, range(4), DATA_PARALLEL, {0: 12, 3: 4}).device_loads.loads
    size = [loads.size_bytes[loads.form == form].sum() for form in range(3)]
    assert size == [TABLE.size_bytes, TABLE.size_bytes, 4 * TABLE.size_bytes]
    lookups = [loads.lookups[loads.form == form].sum() for form in range(3)]
    np.testing.assert_allclose(lookups, [2 * 2 * BATCH, 2 * BATCH, 2 * BATCH])


def test_by_kernel_splits_load_sets_into_the_loads_of_each_kernel_call():
    loads = Loads.of([replace(TABLE, dim=4 * (1 + i), pooled=i != 4) for i in range(6)], BATCH)
    loads = replace(loads, form=np.array([2, 0, 0, 1, 0, 0]))
    calls, of_kernels = LoadSets(loads, np.array([3, 0, 3])).by_kernel()
    assert of_kernels.tolist() == [0, 1, 2, 3]
    assert calls.counts.reshape(3, -1).tolist() == [[2, 0, 1, 0], [0, 0, 0, 0], [1, 1, 0, 1]]
    assert calls.loads.dim.tolist() == [8, 12, 4, 24, 16, 20]
    assert calls.calls.reshape(3, -1).tolist() == [[0, -1, 2, -1], [-1] * 4, [0, 1, -1, 3]]


def test_by_kernel_keeps_sets_of_column_wise_tables_alone_in_order():
    loads = Loads.of([replace(TABLE, dim=4 * (1 + i)) for i in range(5)], BATCH)
    calls, of_kernels = LoadSets(loads, np.array([3, 0, 2])).by_kernel()
    assert (calls.counts.tolist(), of_kernels.tolist()) == ([3, 0, 2], [0])
    assert calls.loads.dim.tolist() == loads.dim.tolist()


def test_kernel_calls_have_one_data_type_and_sequence_tables_of_one_width():
    some = [(4, 8, True), (2, 8, True), (4, 16, True), (4, 8, False), (4, 16, False), (2, 16, False), (4, 16, False)]
    loads = Loads.of([replace(TABLE, bytes_per_element=b, dim=dim, pooled=its) for b, dim, its in some], BATCH)
    kernels = loads.kernel.tolist()
    assert kernels[0] == kernels[2]
    assert kernels[4] == kernels[6]
    calls, of_kernels = LoadSets.alone(loads).by_kernel()
    assert len(set(kernels)) == len(of_kernels) == 5
    assert of_kernels.tolist() == sorted(loads.call[[0, 1, 3, 4, 5]].tolist())
    assert calls.counts.sum() == len(loads)


def test_by_kernel_of_empty_sets_has_one_call_without_loads():
    calls, of_kernels = LoadSets(Loads.of([], BATCH), np.array([0, 0])).by_kernel()
    assert (calls.counts.tolist(), len(of_kernels)) == ([0, 0], 1)


@given(
    st.lists(st.tuples(st.integers(1, 1024), st.floats(0.1, 50), st.sampled_from(list(Form))), min_size=1, max_size=5),
    st.integers(4, 10_000),
)
def test_outputs_grow_with_features_and_other_loads_do_not_in_every_sharding_type(drawn, batch_size):
    """And none needs other lookups: those of a table are of all its features."""
    tables = tuple(
        table(f"t{i}", pooling_factor=pooling, reuse=REUSE, features=f) for i, (f, pooling, _) in enumerate(drawn)
    )
    task = Task(tables, TASK.topology, batch_size)
    places = {Form.COLUMN_WISE: {0: 4, 2: 12}, Form.ROW_WISE: range(4), Form.DATA_PARALLEL: DATA_PARALLEL}
    plan = laid_out(task, *(places[form] for _, _, form in drawn))
    single = replace(task, tables=tuple(replace(its, features=1) for its in tables))
    found, plain = plan.device_loads.loads, Plan(single, plan.placements).device_loads.loads
    features = np.array([tables[one.shard.table].features for one in plan.by_device])
    np.testing.assert_array_equal(found.outputs, plain.samples * features)
    for name in ("rows", "dim", "lookups", "samples", "reuse"):
        np.testing.assert_array_equal(getattr(found, name), getattr(plain, name))


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_taking_some_loads_keeps_sharding_type_sharers_and_samples(share):
    loads = _placed(range(4), 0)
    taken = replace(loads, samples=loads.samples * share).take(np.array([3, 4]))
    assert taken.form.tolist() == [FORMS.index(Form.ROW_WISE), FORMS.index(Form.COLUMN_WISE)]
    assert taken.sharers.tolist() == [4, 1]
    assert taken.samples.tolist() == [BATCH * share] * 2


def _assert_same(one, other):
    for field in fields(Loads):
        np.testing.assert_allclose(getattr(one, field.name), getattr(other, field.name), rtol=1e-12, err_msg=field.name)


def test_loads_of_placed_shards_match_their_sharding_types():
    """The first row-wise block, and one data-parallel table, of each."""
    whole = Loads.of(TASK.tables, BATCH)
    even = replace(TASK, tables=EVEN)
    blocks = _placed(range(4), range(4), task=even)
    _assert_same(LAYOUTS[Form.ROW_WISE].share(Loads.of(EVEN, BATCH), 4), blocks.take(np.array([0, 4])))
    copies = _placed(DATA_PARALLEL, DATA_PARALLEL)
    _assert_same(LAYOUTS[Form.DATA_PARALLEL].share(whole, 4), copies.take(np.array([0, 4])))


TABLES = tables("abcd", 10)
IN_ALL_FORMS = Task(TABLES, TASK.topology, BATCH)
PLAN = laid_out(IN_ALL_FORMS, range(4), [2, 3], DATA_PARALLEL, {1: 4, 3: 12})
POOLED = BATCH * 4  # bytes of a column


def _given(collective, traffic=PLAN.traffic):
    return traffic.sent_bytes(collective)[0].tolist()


def test_traffic_of_each_sharding_type_uses_a_separate_collective():
    assert _given(Collective.ALL_TO_ALL) == [0, 4 * POOLED, 0, 12 * POOLED]
    assert _given(Collective.REDUCE_SCATTER) == [16 * POOLED] * 4
    assert _given(Collective.HOST_REDUCE_SCATTER) == [0, 0, 16 * POOLED, 16 * POOLED]
    assert _given(Collective.HOST_ALL_TO_ALL) == [0, 0, 8 * POOLED, 8 * POOLED]
    assert _given(Collective.ALL_REDUCE) == [10 * 16 * 4] * 4
    assert PLAN.traffic.host_size == 2


def test_input_dist_sends_indices_to_devices_that_look_them_up():
    lookups, lengths = 2 * BATCH, BATCH
    blocks = np.ceil(lookups * np.array([0.3, 0.3, 0.3, 0.1])) + lengths
    half, columns = lookups / 2 + lengths, lookups + lengths
    expected = 8 * (blocks + np.array([0, columns, half, half + columns]))
    assert _given(Collective.INPUT) == expected.tolist()


def test_forward_traffic_has_no_all_reduce_of_data_parallel_tables():
    forward = PLAN.traffic.forward
    assert _given(Collective.ALL_REDUCE, forward) == [0] * 4
    for collective in set(Collective) - {Collective.ALL_REDUCE}:
        assert _given(collective, forward) == _given(collective)
    assert _given(Collective.ALL_REDUCE) != [0] * 4


def test_row_blocks_on_the_only_host_use_the_reduce_scatter_of_all_devices():
    traffic = laid_out(Task(TABLES[:1], Topology(4, 1 << 20), BATCH), range(4)).traffic
    assert _given(Collective.REDUCE_SCATTER, traffic) == [16 * POOLED] * 4
    assert _given(Collective.HOST_REDUCE_SCATTER, traffic) == [0] * 4


def test_traffic_of_columns_equals_the_traffic_of_a_column_wise_plan():
    task = toy_task(20)
    plan = whole(task)
    quick = Traffic.of_columns(np.array([plan.device_dims]), task.batch_size)
    assert (quick.columns == plan.traffic.columns).all()
    assert (quick.columns[0] == plan.device_dims).all()
    assert quick.forward is quick
    for collective in set(Collective) - {Collective.INPUT}:
        assert _given(collective, quick) == _given(collective, plan.traffic)


@given(st.integers(1, 1024))
@settings(max_examples=20)
def test_sent_columns_and_lengths_grow_with_features_and_all_reduce_bytes_do_not(features):
    """Pooled embeddings and lengths grow with features; indices and data-parallel gradients do not."""
    task = replace(IN_ALL_FORMS, tables=tuple(replace(table, features=features) for table in TABLES))
    shared = Plan(task, PLAN.placements)
    assert shared.device_dims == tuple(features * dim for dim in PLAN.device_dims)
    assert shared.traffic.columns[0].tolist() == list(shared.device_dims)
    for collective in set(Collective) - {Collective.INPUT, Collective.ALL_REDUCE}:
        expected = [features * size for size in _given(collective)]
        assert _given(collective, shared.traffic) == expected
    assert _given(Collective.ALL_REDUCE, shared.traffic) == _given(Collective.ALL_REDUCE)
    lengths = 8 * BATCH * np.array([1, 2, 2, 3])  # of table 0 everywhere, 1 in halves, 3 column-wise
    more = np.array(_given(Collective.INPUT, shared.traffic)) - _given(Collective.INPUT)
    assert more.tolist() == ((features - 1) * lengths).tolist()


def test_joined_traffic_has_the_exchanges_of_each_part_in_order():
    joined = Traffic.joined([PLAN.traffic, PLAN.traffic.forward])
    assert len(joined) == 2
    assert joined.batch_size.tolist() == [BATCH] * 2
    assert joined.host_size == 2
    assert (joined.sent_bytes(Collective.ALL_REDUCE) == [[640] * 4, [0] * 4]).all()
