"""Plans: sharding types, printed text, and files."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import neuroshard
from neuroshard import MemoryUse, Placement, Plan, Prediction, Shard, Task, Topology
from neuroshard.layouts import layout_of, place_row_wise, row_blocks
from neuroshard.plans.plan import assemble
from neuroshard.plumbing.schema import readable_bytes
from neuroshard.testing import toy_task
from neuroshard.words.form import FORMS, Form
from neuroshard.words.model_choice import ModelChoice
from tests.kit.messages import refused
from tests.kit.plans import DATA_PARALLEL, laid_out, read_back, table, tables, whole
from tests.kit.tasks import plain_task

GOLDEN = Path(__file__).parent / "golden" / "plan-3.json"


@st.composite
def pieces_of_tasks(draw):
    """A task with pieces of every table on random devices, in random order."""
    task = toy_task(draw(st.integers(1, 8)), draw(st.integers(1, 5)), seed=draw(st.integers(0, 5)))
    pieces = []
    for index, its in enumerate(task.tables):
        left = its.dim
        while left:
            dim = 4 * draw(st.integers(1, left // 4))
            pieces.append((index, dim, draw(st.integers(0, task.topology.num_devices - 1))))
            left -= dim
    return task, draw(st.permutations(pieces))


@given(pieces_of_tasks())
def test_assembled_plans_cover_every_column_once_and_are_read_back_unchanged(placement):
    task, pieces = placement
    plan = assemble(task, pieces)
    shards = [placement.shard for placement in plan.placements]
    covered = [(shard.table, column) for shard in shards for column in range(shard.column, shard.column_end)]
    assert sorted(covered) == [(i, c) for i, its in enumerate(task.tables) for c in range(its.dim)]
    assert all((shard.row, shard.rows) == (0, task.tables[shard.table].rows) for shard in shards)
    for device, dims in enumerate(plan.device_dims):
        assert dims == sum(dim for _, dim, d in pieces if d == device)
    assert sum(plan.device_bytes) == task.size_bytes
    assert read_back(plan) == plan


def test_shards_of_a_table_on_one_device_are_merged():
    task = Task((table(rows=50, dim=32),), Topology(4, 1 << 30), 64)
    plan = assemble(task, [(0, 8, 2), (0, 16, 1), (0, 8, 2)])
    assert plan.placements == (Placement(Shard(0, 0, 16, 0, 50), 1), Placement(Shard(0, 16, 16, 0, 50), 2))


def test_plan_fits_only_if_the_fullest_device_is_within_its_memory():
    task = toy_task(2, num_devices=2)
    task = Task(task.tables, Topology(2, task.size_bytes - 1), 256)
    assert not whole(task, 0).fits
    assert whole(task, 0, 1).fits


def _task(devices, per_host=None, rows=10, names="t"):
    return Task(tables(names, rows), Topology(devices, 1 << 20, devices_per_host=per_host), 64)


def _part(device, column=0, dim=16, row=0, rows=10):
    return Placement(Shard(0, column, dim, row, rows), device)


def _rows(devices, *blocks, dim=16):
    """(row, rows) of the block on each device."""
    return [_part(device, 0, dim, *block) for device, block in zip(devices, blocks, strict=True)]


@pytest.mark.parametrize(
    ("task", "where", "form"),
    [
        (_task(1), 0, Form.COLUMN_WISE),
        (_task(4), 3, Form.COLUMN_WISE),
        (_task(4), dict.fromkeys(range(4), 4), Form.COLUMN_WISE),
        (_task(4), DATA_PARALLEL, Form.DATA_PARALLEL),
        (_task(4), range(4), Form.ROW_WISE),
        (_task(4, 2), range(4), Form.ROW_WISE),
        (_task(4, 2), [2, 3], Form.ROW_WISE),
        (_task(4, 2), {(2, 3): 4, (0, 1): 12}, Form.ROW_WISE),
    ],
)
def test_valid_plans_have_the_sharding_type_of_their_shards_and_are_read_back(task, where, form):
    plan = laid_out(task, where)
    assert plan.forms == (form,)
    assert read_back(plan) == plan


@given(st.integers(1, 5000), st.integers(1, 64))
def test_row_blocks_are_equal_except_the_last_and_refused_if_one_were_empty(rows, count):
    size, cut = -(-rows // count), table(rows=rows)
    if (count - 1) * size >= rows:
        with refused("table-rows-too-few", names=["'t'", f"{rows:,}", count, f"{size:,}"]):
            row_blocks(cut, count)
        return
    blocks = row_blocks(cut, count)
    assert len(blocks) == count
    assert [first for first, _ in blocks] == [size * rank for rank in range(count)]
    assert {size} >= {rows for _, rows in blocks[:-1]}
    assert sum(rows for _, rows in blocks) == rows
    assert min(rows for _, rows in blocks) >= 1


@pytest.mark.parametrize(
    ("task", "placements", "code", "names"),
    [
        (_task(3), [_part(3)], "plan-device-outside", ["'t'", 3, 0, 2]),
        (_task(3), [Placement(Shard(2, 0, 16, 0, 10), 0)], "plan-table-outside", [2]),
        (_task(3), [_part(1, 0, 8), _part(1, 8, 8)], "plan-shards-on-one-device", ["'t'", "device 1"]),
        (_task(2), [_part(1), _part(1)], "plan-shards-on-one-device", ["'t'", "device 1"]),
        (_task(3, names="tu"), [_part(0)], "plan-shards-gap", ["'u'", "row 0", "column 0"]),
        (_task(2), _rows([0, 1], (0, 6), (6, 4)), "plan-block-rows", ["'t'", "device 0", 5, 4]),
        (_task(2), _rows([1, 0], (0, 5), (5, 5)), "plan-block-rows", ["'t'", "device 0", 5, 9, 4]),
        (_task(4, 4, 6), _rows(range(4), (0, 2), (2, 2), (4, 1), (5, 1)), "table-rows-too-few",
         ["'t'", 6, 4, 2]),
        (_task(4), [_part(0), _part(2)], "plan-copies-missing", ["'t'", 2, "device 1", 4]),
        (_task(2), [_part(0), _part(1, 0, 8)], "plan-shards-overlap", ["'t'", "row 0", "column 0"]),
        (_task(3), [_part(0), _part(1), _part(2, 4, 8)], "plan-copies-and-shard", ["'t'", "column 4", "device 2"]),
        # Both column ranges on the only host: a device would have two shards, but even one range alone is refused.
        (_task(4, 2), place_row_wise(_task(4, 2), 0, range(4), (0, 8)),
         "plan-shards-gap", ["'t'", "row 0", "column 8"]),
    ],
)  # fmt: skip
def test_plan_of_invalid_placements_is_refused(task, placements, code, names):
    with refused(code, names=names):
        Plan(task, tuple(placements))


@pytest.mark.parametrize(
    ("task", "placements", "columns", "devices", "counts"),
    [
        (_task(3), _rows([0, 1], (0, 4), (4, 6)), "0 to 15", "(0, 1)", [3]),
        (_task(4), _rows([0, 1], (0, 5), (5, 5)), "0 to 15", "(0, 1)", [4]),
        (_task(4, 2), _rows([1, 2], (0, 5), (5, 5)), "0 to 15", "(1, 2)", [4, 2]),
        (_task(4, 2), _rows([0, 2], (0, 5), (5, 5)), "0 to 15", "(0, 2)", [4, 2]),
        (_task(6, 3), _rows([0, 1], (0, 5), (5, 5)), "0 to 15", "(0, 1)", [6, 3]),
        (_task(4, 2), [*_rows([0, 1], (0, 5), (5, 5), dim=8), _part(2, 8, 8)], "8 to 15", "(2)", [4, 2]),
    ],
)
def test_row_wise_shards_are_on_all_devices_of_the_job_or_of_a_host(task, placements, columns, devices, counts):
    """The remedy has the number of devices of the job, and of a host if the job has several hosts."""
    with refused("plan-blocks-devices", names=["'t'", columns, devices]) as raised:
        Plan(task, tuple(placements))
    assert [int(count) for count in re.findall(r"\d+", raised.value.message.remedy)] == counts


def test_sharding_types_have_a_fixed_order_and_refuse_unknown_names():
    assert FORMS == (Form.COLUMN_WISE, Form.ROW_WISE, Form.DATA_PARALLEL)
    assert layout_of(table(), [Shard(0, 0, 16, 0, 100)]).form is Form.COLUMN_WISE
    with refused("unknown-name", names=["'row'", "row_wise"]):
        Form("row")


def test_printed_plan_names_the_shards_of_every_sharding_type():
    task = _task(4, 2, names=("cut", "host", "grid", "copied", "whole"))
    lines = str(laid_out(task, range(4), [2, 3], {(2, 3): 4, (0, 1): 12}, DATA_PARALLEL, 1)).splitlines()
    types = "1 table-wise, 1 row-wise, 1 table-row-wise, 1 grid-shard, 1 data-parallel"
    assert lines[0] == f"5 tables: {types} on 4 devices, batch 64, memory of weights"
    assert lines[3].endswith(": copied (data-parallel), whole, grid[5:10, 4:16], cut[3:6, :]")
    assert lines[5].endswith("copied (data-parallel), host[5:10, :], grid[5:10, 0:4], cut[9:10, :]")


def test_example_of_the_sharding_types_page_runs():
    page = (Path(__file__).parents[3] / "docs" / "explanation" / "sharding_types.md").read_text()
    names = {"ns": neuroshard, "tables": tables("abcd", 1000, 128)}
    exec(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1], names)
    assert names["plan"].sharding_types == ("row_wise", "table_row_wise", "data_parallel", "column_wise")


def test_device_bytes_are_the_sum_over_sharding_types():
    plan = laid_out(_task(2, names="abc"), [0, 1], DATA_PARALLEL, 1)
    assert plan.form_bytes.tolist() == [[0, 320, 640], [640, 320, 640]]
    assert plan.device_bytes == (960, 1600)
    assert plan.device_dims == (0, 16)


@pytest.mark.parametrize("memory_bytes", [1000, 100_000])
def test_violation_of_a_full_device_names_all_bytes_it_needs(memory_bytes):
    """Buffers of its own samples too, which may leave shards less than nothing."""
    task = plain_task([16], memory_bytes=memory_bytes, memory=MemoryUse("adam", 1))
    plan = laid_out(task, 0)
    needed = plan.device_bytes[0] + memory_bytes - task.shard_memory[0]
    first = plan.violations[0]
    sizes = re.findall(r"device \d|[\d.]+ (?:KiB|bytes)", first)
    assert sizes == ["device 0", readable_bytes(needed), readable_bytes(memory_bytes)]


def _content():
    return json.loads(GOLDEN.read_text())


def _without_task(content):
    """Tasks have tests of their own, and may get fields that these files don't have."""
    return {name: value for name, value in content.items() if name != "task"}


def test_plan_file_is_loaded_with_placements_and_prediction():
    plan = Plan.load(GOLDEN)
    rows = [its.rows for its in plan.task.tables]
    assert plan.placements == (
        Placement(Shard(0, 0, 16, 0, rows[0]), 0),
        Placement(Shard(0, 16, 8, 0, rows[0]), 2),
        Placement(Shard(1, 0, 8, 0, rows[1]), 1),
    )
    assert plan.prediction == Prediction(ModelChoice("cpu"), 7.25, 0.5)
    assert plan.violations == ()
    assert _without_task(plan.to_json()) == _without_task(_content())
    assert _content()["format"] == "neuroshard-plan-3"


def _in_halves(content):
    """Cut the last placement into two blocks of rows."""
    last = content["placements"].pop()
    half = last["rows"] // 2
    content["placements"] += [last | {"rows": half}, last | {"row": half, "rows": last["rows"] - half, "device": 3}]


@pytest.mark.parametrize(
    ("change", "code", "where", "names"),
    [
        (lambda content: content.pop("prediction"), "field-missing", "mine", ["'prediction'"]),
        (lambda content: content["placements"][0].pop("tier"), "field-missing", "mine: placements[0]", ["'tier'"]),
        (lambda content: content["placements"][0].pop("rows"), "field-missing", "mine: placements[0]", ["'rows'"]),
        (lambda content: content["placements"].pop(), "plan-shards-gap", "mine", ["'items'", "row 0", "column 0"]),
        (lambda content: content["placements"].append(content["placements"][0]), "plan-shards-on-one-device", "mine",
         ["'users'", "device 0"]),
        (_in_halves, "plan-blocks-devices", "mine", ["'items'", "(1, 3)"]),
        ({"tier": "disk"}, "unknown-name", "mine", ["'disk'", "device, uvm, uvm_caching"]),
        ({"tier": 0}, "value-outside-limits", "mine", ["placements[0].tier", 0]),
        ({"row": -1}, "value-outside-limits", "mine", ["placements[0].row", -1]),
        ({"dim": 2}, "value-outside-limits", "mine", ["placements[0].dim", 2, 4]),
        ({"offset": 0}, "unknown-name", "mine", ["'offset'"]),
        ({"row": 1}, "plan-shard-rows-outside", "mine", ["'users'", 1000]),
        ({"rows": 1}, "plan-shards-gap", "mine", ["'users'", "row 1", "column 0"]),
        ({"device": 2}, "plan-shards-on-one-device", "mine", ["'users'", "device 2"]),
    ],
)  # fmt: skip
def test_plan_file_errors_name_the_wrong_field(change, code, where, names):
    """Of the whole, or in its first placement."""
    content = _content()
    content["placements"][0].update(change) if isinstance(change, dict) else change(content)
    with refused(code, where=where, names=names):
        Plan.from_json(content, "mine")


@pytest.mark.parametrize(
    ("its_format", "ours"),
    [(None, False), ("neuroshard-plan-4", True), (["neuroshard-plan-1"], False), ("neuroshard-plan-1", True)],
)
def test_loading_a_plan_file_of_another_format_is_refused(its_format, ours):
    """A plan of another version is to be made again, other files are to be replaced by one of the format."""
    named = ["'neuroshard-plan-3'", "'format'" if its_format is None else repr(its_format)]
    with refused("file-format-other", where="mine", names=named) as raised:
        Plan.from_json(_content() | {"format": its_format}, "mine")
    assert ("'neuroshard-plan-3'" in raised.value.message.remedy) is not ours


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("", "json-unreadable"),
        ("[]", "file-format-other"),
        ("{}", "file-format-other"),
        ('{"format": "neuroshard-plan-1", "shards": [1], "task": {}}', "file-format-other"),
        ('{"format": "neuroshard-plan-3"}', "field-missing"),
        ('{"format": "neuroshard-plan-3", "placements": [1], "prediction": null, "task": {}}', "value-outside-limits"),
    ],
)
def test_loading_a_malformed_plan_names_the_file(tmp_path, content, code):
    path = tmp_path / "plan.json"
    path.write_text(content)
    with refused(code) as raised:
        Plan.load(path)
    assert str(path) in raised.value.message.where


def test_loading_a_directory_as_a_plan_is_refused(tmp_path):
    with refused("plan-file-directory", names=[tmp_path]) as raised:
        Plan.load(tmp_path)
    assert "task-0000.json" not in raised.value.message.remedy
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / "task-0000.json").write_text("{}")
    with refused("plan-file-directory", names=[tmp_path]) as raised:
        Plan.load(tmp_path)
    assert str(tmp_path / "plans" / "task-0000.json") in raised.value.message.remedy


def test_a_plan_names_the_device_with_the_least_share_of_memory_left():
    task = replace(toy_task(2), topology=Topology(2, ("1GiB", "4GiB")))
    plan = laid_out(task, 0, 1)
    assert plan.fullest_device == 0
    assert f"fullest device: 0, with {readable_bytes(plan.device_bytes[0])} of 1 GiB in use" in str(plan)
    counted = replace(plan, task=replace(task, memory=MemoryUse("sgd", 1)))
    buffers = (1 << 30) - counted.task.shard_memory[0]
    used = readable_bytes(counted.device_bytes[0] + buffers)
    assert f"with {used} of 1 GiB in use, {readable_bytes(buffers)} of this for buffers" in str(counted)
