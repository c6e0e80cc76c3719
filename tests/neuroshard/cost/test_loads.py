"""What placements ask of a device's kernels, form by form."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuroshard.cost.loads import Loads, LoadSets
from neuroshard.layouts import COPIES, ROWS, in_copies, in_rows, placed_loads
from neuroshard.plans.plan import Plan
from neuroshard.tables import Table
from neuroshard.tables.reuse import MEAN_COUNTS, reuse_at, zipf_reuse
from neuroshard.tasks.task import Task, Topology
from neuroshard.words.form import CALLS, FORMS, Form
from neuroshard.words.placement import Placement, Shard

BATCH = 64
REUSE = zipf_reuse(10, 128)
TABLE = Table("t", 10, 16, 2.0, REUSE)
EVEN = (TABLE, replace(TABLE, name="u", rows=8, dim=8))
TASK = Task((TABLE, replace(TABLE, name="u", rows=6, dim=8)), Topology(4, 1 << 20, devices_per_host=2), BATCH)


def _placed(*placements, task=TASK):
    return placed_loads(task.tables, placements, task.batch_size, task.topology.num_devices)


def _u(device=0):
    return Placement(Shard(1, 0, 8, 0, 6), device)


def test_column_shards_need_all_lookups():
    halves = [Placement(Shard(0, 0, 4, 0, 10), 2), Placement(Shard(0, 4, 12, 0, 10), 1)]
    found, whole = _placed(*halves, _u()), Loads.of(TASK.tables, BATCH)
    assert found.dim.tolist() == [4, 12, 8]
    for name in ("rows", "lookups", "samples", "outputs"):
        np.testing.assert_array_equal(getattr(found, name), getattr(whole, name)[[0, 0, 1]])
    assert found.form.tolist() == [FORMS.index(Form.COLUMNS)] * 3
    assert found.sharers.tolist() == [1, 1, 1]


def test_blocks_of_rows_need_the_lookups_of_their_rows():
    found = _placed(*in_rows(TASK, 0, range(4)), _u())
    assert found.rows.tolist() == [3, 3, 3, 1, 6]
    assert found.dim.tolist() == [16] * 4 + [8]
    np.testing.assert_allclose(found.lookups, [*(2 * BATCH * np.array([0.3, 0.3, 0.3, 0.1])), 2 * BATCH])
    assert found.samples.tolist() == found.outputs.tolist() == [BATCH] * 5
    assert found.form.tolist() == [FORMS.index(Form.ROWS)] * 4 + [FORMS.index(Form.COLUMNS)]
    assert found.sharers.tolist() == [4] * 4 + [1]
    np.testing.assert_array_equal(found.reuse, Loads.of([TABLE], BATCH).reuse.repeat(5, axis=0))


def test_hot_rows_are_looked_up_where_they_lie():
    task = replace(TASK, tables=(replace(TABLE, row_lookups=(0.9, 0.1)), TASK.tables[1]))
    found = _placed(*in_rows(task, 0, [2, 3]), _u(), task=task)
    np.testing.assert_allclose(found.lookups[:2], [2 * BATCH * 0.9, 2 * BATCH * 0.1])
    assert found.sharers.tolist() == [2, 2, 1]


def test_blocks_on_several_hosts_share_what_their_host_has():
    found = _placed(*in_rows(TASK, 0, [0, 1], (0, 4)), *in_rows(TASK, 0, [2, 3], (4, 16)), _u())
    assert found.dim.tolist() == [4, 4, 12, 12, 8]
    assert found.sharers.tolist() == [2, 2, 2, 2, 1]
    np.testing.assert_allclose(found.lookups[:4], BATCH)


def test_copies_need_the_lookups_of_their_own_samples():
    found = _placed(*in_copies(TASK, 0), _u())
    assert found.rows.tolist() == [10] * 4 + [6]
    assert found.samples.tolist() == found.outputs.tolist() == [BATCH / 4] * 4 + [BATCH]
    assert found.lookups.tolist() == [2 * BATCH / 4] * 4 + [2 * BATCH]
    np.testing.assert_allclose(found.pooling_factor, 2.0)
    assert found.form.tolist() == [FORMS.index(Form.COPIES)] * 4 + [FORMS.index(Form.COLUMNS)]
    expected = reuse_at(np.array(REUSE), 1 / 4)
    np.testing.assert_allclose(found.reuse, [expected] * 4 + [REUSE])
    unique = found.lookups / (found.reuse @ MEAN_COUNTS)
    assert unique[0] > unique[4] / 4  # the devices touch the hot rows all


def test_what_lies_on_all_devices_together_is_the_table():
    """Rows, weights and lookups of columns and rows add up; copies have all weights each and all lookups together."""
    tables = tuple(replace(TABLE, name=name) for name in "abc")
    task = Task(tables, TASK.topology, BATCH)
    rest = [Placement(Shard(2, 0, 12, 0, 10), 0), Placement(Shard(2, 12, 4, 0, 10), 3)]
    loads = Plan(task, (*in_rows(task, 0, range(4)), *in_copies(task, 1), *rest)).device_loads.loads
    size = [loads.size_bytes[loads.form == form].sum() for form in range(3)]
    assert size == [TABLE.size_bytes, TABLE.size_bytes, 4 * TABLE.size_bytes]
    lookups = [loads.lookups[loads.form == form].sum() for form in range(3)]
    np.testing.assert_allclose(lookups, [2 * 2 * BATCH, 2 * BATCH, 2 * BATCH])


def test_sets_by_call_are_what_kernels_are_called_with():
    loads = Loads.of([replace(TABLE, dim=4 * (1 + i), pooled=i != 4) for i in range(6)], BATCH)
    loads = replace(loads, form=np.array([2, 0, 0, 1, 0, 0]))
    calls = LoadSets(loads, np.array([3, 0, 3])).by_call()
    others = len(CALLS) - 5  # of tables in host memory
    counts, first = calls.counts.reshape(3, -1), calls.calls.reshape(3, -1)
    assert counts.tolist() == [[2, 0, 1, 0, 0, *[0] * others], [0] * len(CALLS), [1, 1, 0, 1, 0, *[0] * others]]
    assert calls.loads.dim.tolist() == [8, 12, 4, 24, 16, 20]
    assert first[:, :5].tolist() == [[0, -1, 2, -1, -1], [-1] * 5, [0, 1, -1, 3, -1]]
    assert (first[:, 5:] == -1).all()


def test_sets_of_columns_alone_are_called_in_their_own_order():
    loads = Loads.of([replace(TABLE, dim=4 * (1 + i)) for i in range(5)], BATCH)
    calls = LoadSets(loads, np.array([3, 0, 2])).by_call()
    others = [0] * (len(CALLS) - 1)
    assert calls.counts.tolist() == [3, *others, 0, *others, 2, *others]
    assert calls.loads.dim.tolist() == loads.dim.tolist()


@given(
    st.lists(st.tuples(st.integers(1, 1024), st.floats(0.1, 50), st.sampled_from(list(Form))), min_size=1, max_size=5),
    st.integers(4, 10_000),
)
def test_every_feature_has_an_output_of_its_own_in_every_form(drawn, batch_size):
    """And none needs other lookups: those of a table are of all its features."""
    tables = tuple(Table(f"t{i}", 100, 16, pooling, REUSE, features=f) for i, (f, pooling, _) in enumerate(drawn))
    task = Task(tables, TASK.topology, batch_size)
    lay_out = {
        Form.COLUMNS: lambda i: [Placement(Shard(i, 0, 4, 0, 100), 0), Placement(Shard(i, 4, 12, 0, 100), 2)],
        Form.ROWS: lambda i: in_rows(task, i, range(4)),
        Form.COPIES: lambda i: in_copies(task, i),
    }
    plan = Plan(task, tuple(placed for i, (_, _, form) in enumerate(drawn) for placed in lay_out[form](i)))
    single = replace(task, tables=tuple(replace(table, features=1) for table in tables))
    found, plain = plan.device_loads.loads, Plan(single, plan.placements).device_loads.loads
    features = np.array([tables[placement.shard.table].features for placement in plan.by_device])
    np.testing.assert_array_equal(found.outputs, plain.samples * features)
    for name in ("rows", "dim", "lookups", "samples", "reuse"):
        np.testing.assert_array_equal(getattr(found, name), getattr(plain, name))


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_loads_taken_out_keep_what_they_are(share):
    loads = _placed(*in_rows(TASK, 0, range(4)), _u())
    taken = replace(loads, samples=loads.samples * share).take(np.array([3, 4]))
    assert taken.form.tolist() == [FORMS.index(Form.ROWS), FORMS.index(Form.COLUMNS)]
    assert taken.sharers.tolist() == [4, 1]
    assert taken.samples.tolist() == [BATCH * share] * 2


def _assert_same(one, other):
    for field in fields(Loads):
        np.testing.assert_allclose(getattr(one, field.name), getattr(other, field.name), rtol=1e-12, err_msg=field.name)


def test_parts_of_whole_tables_are_as_they_are_placed():
    """The first of their blocks, and a copy of each."""
    whole = Loads.of(TASK.tables, BATCH)
    even = replace(TASK, tables=EVEN)
    blocks = _placed(*in_rows(even, 0, range(4)), *in_rows(even, 1, range(4)), task=even)
    _assert_same(ROWS.share(Loads.of(EVEN, BATCH), 4), blocks.take(np.array([0, 4])))
    copies = _placed(*in_copies(TASK, 0), *in_copies(TASK, 1))
    _assert_same(COPIES.share(whole, 4), copies.take(np.array([0, 4])))
