import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuroshard.plans.plan import Plan, assemble
from neuroshard.plumbing.errors import UserError
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing import toy_task
from neuroshard.words.placement import Placement, Shard


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
def test_assembled_plans_cover_every_column_once(placement):
    task, pieces = placement
    plan = assemble(task, pieces)
    shards = [placement.shard for placement in plan.placements]
    covered = [(shard.table, column) for shard in shards for column in range(shard.column, shard.column_end)]
    assert sorted(covered) == [(i, c) for i, table in enumerate(task.tables) for c in range(table.dim)]
    assert all((shard.row, shard.rows) == (0, task.tables[shard.table].rows) for shard in shards)
    for device, dims in enumerate(plan.device_dims):
        assert dims == sum(dim for _, dim, d in pieces if d == device)
    assert sum(plan.device_bytes) == task.size_bytes


@given(placements())
@settings(max_examples=30)
def test_json_is_exact(placement):
    plan = assemble(*placement)
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_shards_of_a_table_on_one_device_are_merged():
    task = toy_task(1)
    task = Task((task.tables[0].with_dim(32),), task.topology, task.batch_size)
    plan = assemble(task, [(0, 8, 2), (0, 16, 1), (0, 8, 2)])
    rows = task.tables[0].rows
    assert plan.placements == (Placement(Shard(0, 0, 16, 0, rows), 1), Placement(Shard(0, 16, 16, 0, rows), 2))


def test_fits_compares_the_fullest_device_with_the_cap():
    task = toy_task(2, num_devices=2)
    task = Task(task.tables, Topology(2, task.size_bytes - 1), 256)
    assert not assemble(task, [(0, task.tables[0].dim, 0), (1, task.tables[1].dim, 0)]).fits
    assert assemble(task, [(0, task.tables[0].dim, 0), (1, task.tables[1].dim, 1)]).fits


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"format": "neuroshard-plan-1", "shards": [1], "task": {}}',
        '{"format": "neuroshard-plan-2"}',
        '{"format": "neuroshard-plan-2", "placements": [1], "prediction": null, "task": {}}',
    ],
)
def test_malformed_files_are_one_clear_line(tmp_path, content):
    path = tmp_path / "plan.json"
    path.write_text(content)
    with pytest.raises(UserError, match="plan") as caught:
        Plan.load(path)
    assert str(path) in str(caught.value)
