"""Which form a table lies in follows from its placements, and layouts that nobody serves are refused."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import neuroshard
from neuroshard.layouts import in_columns, in_copies, in_rows, layout_of, row_blocks
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import UserError
from neuroshard.tables import Table
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing import ONCE
from neuroshard.words.form import FORMS, Form
from neuroshard.words.placement import Placement, Shard

TABLE = Table("t", 10, 16, 2.0, ONCE)


def _task(devices, per_host=None, rows=10):
    table = Table("t", rows, 16, 2.0, ONCE)
    return Task((table,), Topology(devices, 1 << 20, devices_per_host=per_host), 64)


def _whole(device):
    return Placement(Shard(0, 0, 16, 0, 10), device)


@pytest.mark.parametrize(
    ("task", "placements", "form"),
    [
        (_task(1), [_whole(0)], Form.COLUMNS),
        (_task(4), [_whole(3)], Form.COLUMNS),
        (_task(4), [Placement(Shard(0, 4 * d, 4, 0, 10), d) for d in range(4)], Form.COLUMNS),
        (_task(4), in_copies(_task(4), 0), Form.COPIES),
        (_task(4), in_rows(_task(4), 0, range(4)), Form.ROWS),
        (_task(4, 2), in_rows(_task(4), 0, range(4)), Form.ROWS),
        (_task(4, 2), in_rows(_task(4), 0, [2, 3]), Form.ROWS),
        (_task(4, 2), in_rows(_task(4), 0, [2, 3], (0, 4)) + in_rows(_task(4), 0, [0, 1], (4, 16)), Form.ROWS),
    ],
)
def test_what_is_served_has_a_form_and_survives_its_file(task, placements, form):
    plan = Plan(task, tuple(placements))
    assert plan.forms == (form,)
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


@given(st.integers(1, 5000), st.integers(1, 64))
def test_blocks_are_equal_but_the_last_and_none_is_empty(rows, count):
    table = Table("t", rows, 4, 1.0, ONCE)
    size = -(-rows // count)
    if (count - 1) * size >= rows:
        with pytest.raises(UserError, match=rf"'t' has {rows} rows: in {count} blocks of {size} the last would be"):
            row_blocks(table, count)
        return
    blocks = row_blocks(table, count)
    assert len(blocks) == count
    assert [first for first, _ in blocks] == [size * rank for rank in range(count)]
    assert {size} >= {rows for _, rows in blocks[:-1]}
    assert sum(rows for _, rows in blocks) == rows
    assert min(rows for _, rows in blocks) >= 1


def _rows(devices, *blocks, column=0, dim=16):
    """(row, rows) of the block on each device."""
    return [Placement(Shard(0, column, dim, *block), device) for device, block in zip(devices, blocks, strict=True)]


@pytest.mark.parametrize(
    ("task", "placements", "message"),
    [
        (_task(2), _rows([0, 1], (0, 6), (6, 4)), "device 0 has rows 0 to 5, not 0 to 4; blocks are of ceil"),
        (_task(2), _rows([1, 0], (0, 5), (5, 5)), "device 0 has rows 5 to 9, not 0 to 4"),
        (
            _task(4),
            _rows([0, 1], (0, 5), (5, 5)),
            r"blocks of rows on 2 device\(s\) \(0, 1\); .* each of the 4 devices",
        ),
        (_task(4, 2), _rows([1, 2], (0, 5), (5, 5)), "or on each of the 2 of one host"),
        (_task(4, 2), _rows([0, 2], (0, 5), (5, 5)), "or on each of the 2 of one host"),
        (_task(6, 3), _rows([0, 1], (0, 5), (5, 5)), "or on each of the 3 of one host"),
        (_task(4, 2), [*_rows([0, 1], (0, 5), (5, 5), dim=8), Placement(Shard(0, 8, 8, 0, 10), 2)], "on 1 device"),
        (_task(4, 4, 6), _rows(range(4), (0, 2), (2, 2), (4, 1), (5, 1)), "in 4 blocks of 2 the last would be empty"),
        (
            _task(4),
            [_whole(0), _whole(2)],
            "table 't' is covered twice, by copies on 2 devices, and device 1 has none; put it on one",
        ),
        (_task(2), [_whole(0), Placement(Shard(0, 0, 8, 0, 10), 1)], "covered twice"),
        (_task(3), [_whole(0), _whole(1), Placement(Shard(0, 4, 8, 0, 10), 2)], "column 4 .* covered twice: by copies"),
        (_task(2), [_whole(1), _whole(1)], "two shards of table 't' on device 1"),
    ],
)
def test_what_nobody_serves_is_refused(task, placements, message):
    with pytest.raises(UserError, match=message):
        Plan(task, tuple(placements))


def test_rows_of_some_columns_on_all_devices_are_refused():
    """Both column ranges on the only host: a device would have two shards, but even one range alone is refused."""
    task = _task(4, 2)
    with pytest.raises(UserError, match=r"covered by no shard"):
        Plan(task, tuple(in_rows(task, 0, range(4), (0, 8))))


def test_hosts_are_ranges_of_ranks():
    assert Topology(6, 1, devices_per_host=2).hosts == (range(2), range(2, 4), range(4, 6))
    assert Topology(6, 1).hosts == (range(6),)
    with pytest.raises(UserError, match="devices_per_host=4 must divide num_devices=6"):
        Topology(6, 1, devices_per_host=4)
    with pytest.raises(UserError, match="devices_per_host=0"):
        Topology(6, 1, devices_per_host=0)


def test_tasks_from_before_there_were_hosts_are_read():
    content = _task(2).to_json()
    del content["topology"]["devices_per_host"]
    assert Task.from_json(content) == _task(2)


def test_unknown_forms_name_the_nearest():
    with pytest.raises(UserError, match="unknown form 'row'; did you mean 'rows'"):
        Form("row")
    assert FORMS == (Form.COLUMNS, Form.ROWS, Form.COPIES)
    assert layout_of(TABLE, [Shard(0, 0, 16, 0, 10)]).form is Form.COLUMNS


def test_plans_in_any_form_read_well():
    tables = tuple(replace(TABLE, name=name) for name in ("cut", "host", "grid", "copied", "whole"))
    task = Task(tables, Topology(4, 1 << 20, devices_per_host=2), 64)
    grid = [*in_rows(task, 2, [2, 3], (0, 4)), *in_rows(task, 2, [0, 1], (4, 16))]
    rows = [*in_rows(task, 0, range(4)), *in_rows(task, 1, [2, 3])]
    lines = str(Plan(task, (*rows, *grid, *in_copies(task, 3), *in_columns(task, [(4, 16, 1)])))).splitlines()
    assert lines[0] == "5 tables in 15 shards on 4 devices, batch 64 (3 in rows, 1 in copies)"
    assert lines[2].endswith(": copied (copy), whole, grid[5:10, 4:16], cut[3:6, :]")
    assert lines[4].endswith("copied (copy), host[5:10, :], grid[5:10, 0:4], cut[9:10, :]")


def test_the_example_of_the_page_runs():
    page = (Path(__file__).parents[3] / "docs" / "forms.md").read_text()
    tables = tuple(replace(TABLE, name=name, rows=1000, dim=128) for name in "abcd")
    names = {"ns": neuroshard, "tables": tables}
    exec(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1], names)
    assert names["plan"].forms == (Form.ROWS, Form.ROWS, Form.COPIES, Form.COLUMNS)


def test_bytes_of_each_form_make_up_a_device():
    task = Task(tuple(replace(TABLE, name=name) for name in "abc"), Topology(2, 1 << 20), 64)
    plan = Plan(task, (*in_rows(task, 0, [0, 1]), *in_copies(task, 1), *in_columns(task, [(2, 16, 1)])))
    assert plan.form_bytes.tolist() == [[0, 320, 640], [640, 320, 640]]
    assert plan.device_bytes == (960, 1600)
    assert plan.device_dims == (0, 16)
