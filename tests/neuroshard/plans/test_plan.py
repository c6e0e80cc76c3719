import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuroshard.errors import UserError
from neuroshard.plans.plan import Plan, Shard, assemble
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing import toy_task


@st.composite
def placements(draw):
    """A task with pieces of every table on random devices, in random order."""
    task = toy_task(draw(st.integers(1, 8)), draw(st.integers(1, 5)), seed=draw(st.integers(0, 5)))
    pieces = []
    for index, table in enumerate(task.tables):
        left = table.dim
        while left:
            dim = 4 * draw(st.integers(1, left // 4))
            pieces.append((index, dim, draw(st.integers(0, task.topology.num_devices - 1))))
            left -= dim
    return task, draw(st.permutations(pieces))


@given(placements())
@settings(max_examples=60, deadline=None)
def test_assembled_plans_cover_every_column_once(placement):
    task, pieces = placement
    plan = assemble(task, pieces)
    covered = [
        (shard.table, column) for shard in plan.shards for column in range(shard.offset, shard.offset + shard.dim)
    ]
    assert sorted(covered) == [(i, c) for i, table in enumerate(task.tables) for c in range(table.dim)]
    for device, dims in enumerate(plan.device_dims):
        assert dims == sum(dim for _, dim, d in pieces if d == device)
    assert sum(plan.device_bytes) == task.size_bytes


@given(placements())
@settings(max_examples=30, deadline=None)
def test_json_is_exact(placement):
    plan = assemble(*placement)
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_saved_plan_is_loaded_exactly(tmp_path):
    task = toy_task(3)
    plan = assemble(task, [(i, table.dim, i) for i, table in enumerate(task.tables)])
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan


def test_shards_of_a_table_on_one_device_are_merged():
    task = toy_task(1)
    task = Task((task.tables[0].with_dim(32),), task.topology, task.batch_size)
    plan = assemble(task, [(0, 8, 2), (0, 16, 1), (0, 8, 2)])
    assert plan.shards == (Shard(0, 0, 16), Shard(0, 16, 16))
    assert plan.devices == (1, 2)


def _plan(shards, devices, dim=16):
    task = toy_task(1, num_devices=3)
    return Plan(Task((task.tables[0].with_dim(dim),), task.topology, 256), tuple(shards), tuple(devices))


@pytest.mark.parametrize(
    ("shards", "devices", "message"),
    [
        ([Shard(0, 0, 8)], [0], "16 columns, its shards cover 8"),
        ([Shard(0, 0, 8), Shard(0, 12, 4)], [0, 1], "column 8 .* covered by no shard"),
        ([Shard(0, 0, 12), Shard(0, 8, 8)], [0, 1], "column 8 .* covered twice"),
        ([Shard(0, 0, 16)], [3], "device 3"),
        ([Shard(0, 0, 16)], [-1], "device -1"),
        ([Shard(1, 0, 16)], [0], "no table 1"),
        ([Shard(0, 0, 8), Shard(0, 8, 8)], [1, 1], "two shards of one table"),
        ([Shard(0, 0, 6), Shard(0, 6, 10)], [0, 1], "multiple of 4"),
        ([Shard(0, 0, 16)], [0, 1], "1 shards but 2 devices"),
        ([], [], "cover 0"),
    ],
)
def test_invalid_plans_are_refused(shards, devices, message):
    with pytest.raises(UserError, match=message):
        _plan(shards, devices)


def test_fits_compares_the_fullest_device_with_the_cap():
    task = toy_task(2, num_devices=2)
    task = Task(task.tables, Topology(2, task.size_bytes - 1), 256)
    assert not assemble(task, [(0, task.tables[0].dim, 0), (1, task.tables[1].dim, 0)]).fits
    assert assemble(task, [(0, task.tables[0].dim, 0), (1, task.tables[1].dim, 1)]).fits


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"format": "neuroshard-plan-1"}', '{"format": "neuroshard-plan-1", "shards": [1], "task": {}}'],
)
def test_malformed_files_are_one_clear_line(tmp_path, content):
    path = tmp_path / "plan.json"
    path.write_text(content)
    with pytest.raises(UserError, match="plan") as caught:
        Plan.load(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
