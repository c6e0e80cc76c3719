"""What devices exchange, form by form, counted by hand."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from neuroshard.cost.loads import Traffic
from neuroshard.layouts import in_copies, in_rows
from neuroshard.plans.plan import Plan
from neuroshard.tables import Table
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing import ONCE, toy_task
from neuroshard.words.collective import Collective
from neuroshard.words.placement import Placement, Shard

BATCH = 64
TABLE = Table("a", 10, 16, 2.0, ONCE)
TABLES = tuple(replace(TABLE, name=name) for name in "abcd")
TASK = Task(TABLES, Topology(4, 1 << 20, devices_per_host=2), BATCH)
PLAN = Plan(
    TASK,
    (
        *in_rows(TASK, 0, range(4)),
        *in_rows(TASK, 1, [2, 3]),
        *in_copies(TASK, 2),
        Placement(Shard(3, 0, 4, 0, 10), 1),
        Placement(Shard(3, 4, 12, 0, 10), 3),
    ),
)
POOLED = BATCH * 4  # bytes of a column


def _given(collective, traffic=PLAN.traffic):
    return traffic.given(collective)[0].tolist()


def test_every_form_has_its_own_collective():
    assert _given(Collective.ALL_TO_ALL) == [0, 4 * POOLED, 0, 12 * POOLED]
    assert _given(Collective.REDUCE_SCATTER) == [16 * POOLED] * 4
    assert _given(Collective.HOST_REDUCE_SCATTER) == [0, 0, 16 * POOLED, 16 * POOLED]
    assert _given(Collective.HOST_ALL_TO_ALL) == [0, 0, 8 * POOLED, 8 * POOLED]
    assert _given(Collective.ALL_REDUCE) == [10 * 16 * 4] * 4
    assert PLAN.traffic.host_size == 2


def test_indices_and_lengths_go_where_they_are_looked_up():
    lookups, lengths = 2 * BATCH, BATCH
    blocks = np.ceil(lookups * np.array([0.3, 0.3, 0.3, 0.1])) + lengths
    half, columns = lookups / 2 + lengths, lookups + lengths
    expected = 8 * (blocks + np.array([0, columns, half, half + columns]))
    assert _given(Collective.INPUT) == expected.tolist()


def test_copies_exchange_nothing_forward():
    forward = PLAN.traffic.forward
    assert _given(Collective.ALL_REDUCE, forward) == [0] * 4
    for collective in set(Collective) - {Collective.ALL_REDUCE}:
        assert _given(collective, forward) == _given(collective)
    assert _given(Collective.ALL_REDUCE) != [0] * 4


def test_blocks_on_the_only_host_are_exchanged_among_all():
    task = replace(TASK, tables=TABLES[:1], topology=Topology(4, 1 << 20))
    traffic = Plan(task, tuple(in_rows(task, 0, range(4)))).traffic
    assert _given(Collective.REDUCE_SCATTER, traffic) == [16 * POOLED] * 4
    assert _given(Collective.HOST_REDUCE_SCATTER, traffic) == [0] * 4


def test_columns_alone_are_the_same_either_way():
    task = toy_task(20)
    plan = Plan(task, tuple(Placement(Shard(i, 0, t.dim, 0, t.rows), i % 4) for i, t in enumerate(task.tables)))
    quick = Traffic.of_columns(np.array([plan.device_dims]), task.batch_size)
    assert (quick.columns == plan.traffic.columns).all()
    assert (quick.columns[0] == plan.device_dims).all()
    assert quick.forward is quick
    for collective in set(Collective) - {Collective.INPUT}:
        assert _given(collective, quick) == _given(collective, plan.traffic)


@given(st.integers(1, 1024))
@settings(max_examples=20)
def test_every_feature_is_exchanged(features):
    """Pooled embeddings and lengths of each; indices, and gradients of copies, are those of the table."""
    task = replace(TASK, tables=tuple(replace(table, features=features) for table in TABLES))
    shared = Plan(task, PLAN.placements)
    assert shared.device_dims == tuple(features * dim for dim in PLAN.device_dims)
    assert shared.traffic.columns[0].tolist() == list(shared.device_dims)
    for collective in set(Collective) - {Collective.INPUT, Collective.ALL_REDUCE}:
        expected = [features * size for size in _given(collective)]
        assert _given(collective, shared.traffic) == expected
    assert _given(Collective.ALL_REDUCE, shared.traffic) == _given(Collective.ALL_REDUCE)
    lengths = 8 * BATCH * np.array([1, 2, 2, 3])  # of table 0 everywhere, 1 in halves, 3 in columns
    more = np.array(_given(Collective.INPUT, shared.traffic)) - _given(Collective.INPUT)
    assert more.tolist() == ((features - 1) * lengths).tolist()


def test_joined_exchanges_keep_their_order():
    joined = Traffic.joined([PLAN.traffic, PLAN.traffic.forward])
    assert len(joined) == 2
    assert joined.batch_size.tolist() == [BATCH] * 2
    assert joined.host_size == 2
    assert (joined.given(Collective.ALL_REDUCE) == [[640] * 4, [0] * 4]).all()
