import json
from dataclasses import replace

import pytest

from neuroshard.models.simulator import Simulator
from neuroshard.plumbing.errors import UserError
from neuroshard.stages.search.methods.heuristics import Random
from neuroshard.tasks.draw import TaskDraw, drawn, from_file, save_tasks
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing import random_models, toy_tables, toy_task


def test_json_is_exact():
    task = toy_task(5)
    assert Task.from_json(json.loads(json.dumps(task.to_json()))) == task


def test_an_empty_task_is_refused():
    with pytest.raises(UserError, match="at least one table"):
        Task((), Topology(2, 100), 256)


def test_two_tables_of_one_name_are_refused():
    table = toy_tables(1)[0]
    with pytest.raises(UserError, match="toy0"):
        Task((table, table), Topology(2, 100), 256)


@pytest.mark.parametrize(
    ("devices", "memory"), [(0, 100), (-1, 100), (2, 0), (2.5, 100), (2, "4 QB"), (2, True), (5000, 100), (2, 1 << 61)]
)
def test_impossible_topologies_are_refused(devices, memory):
    with pytest.raises(UserError, match="topology"):
        Topology(devices, memory)


def test_drawn_tasks_are_as_asked_and_repeat():
    tables = toy_tables(30)
    draw = TaskDraw(count=8, min_tables=5, max_tables=9, max_dim=32, seed=3)
    tasks = drawn(tables, Topology(4, 1 << 30), 256, draw)
    assert tasks == drawn(tables, Topology(4, 1 << 30), 256, draw)
    assert len(tasks) == 8
    assert all(5 <= len(task.tables) <= 9 for task in tasks)
    assert {table.dim for task in tasks for table in task.tables} == {4, 8, 16, 32}


def test_too_few_tables_to_draw_from():
    with pytest.raises(UserError, match="only 3 tables"):
        drawn(toy_tables(3), Topology(4, 1 << 30), 256, TaskDraw())


def test_task_files_are_exact(tmp_path):
    tasks = (toy_task(3), toy_task(7, seed=2))
    save_tasks(tmp_path / "tasks.json", tasks)
    assert from_file(str(tmp_path / "tasks.json")) == tasks


@pytest.mark.parametrize("content", ["", "[1]", '{"format": "neuroshard-tasks-1", "tasks": [{}]}'])
def test_malformed_task_files_are_refused(tmp_path, content):
    path = tmp_path / "tasks.json"
    path.write_text(content)
    with pytest.raises(UserError, match="task"):
        from_file(str(path))


def test_a_histogram_of_another_batch_size_is_said():
    tables = tuple(replace(table, reuse_batch_size=256) for table in toy_tables(3))
    topology = Topology(2, 1 << 30)
    assert Task(toy_tables(3), topology, 8192).warnings == ()  # nobody knows
    assert Task(tables, topology, 260).warnings == ()
    task = Task(tables, topology, 8192)
    (warning,) = task.warnings
    assert warning.startswith("reuse histograms: made for batch size 256, not 8192 (3 of 3 tables, such as 'toy0')")
    simulator = Simulator(random_models())
    assert simulator.warnings(Random().find(task, simulator).plan)[0] == warning


def test_a_batch_size_is_kept_in_files(tmp_path):
    tables = tuple(replace(table, reuse_batch_size=256) for table in toy_tables(3))
    save_tasks(tmp_path / "tasks.json", [Task(tables, Topology(2, 1 << 30), 256)])
    assert {t.reuse_batch_size for t in from_file(str(tmp_path / "tasks.json"))[0].tables} == {256}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"count": 0}, "count=0"),
        ({"count": 10**30}, "count=10000"),
        ({"count": True}, "count=True"),
        ({"min_tables": 0}, "min_tables=0"),
        ({"min_tables": 70}, r"must lie in 1..max_tables=59"),
        ({"max_dim": 96}, "max_dim=96"),
        ({"max_dim": "x"}, "max_dim='x'"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_impossible_draws_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        TaskDraw(**settings)


@pytest.mark.parametrize("size", [3, 6, 2, 16])
def test_domains_are_whole_hosts_and_share_the_devices(size):
    with pytest.raises(UserError, match=f"devices_per_domain={size} must divide num_devices=8"):
        Topology(8, "1GiB", devices_per_host=4, devices_per_domain=size)


def test_domains_are_the_hosts_where_nobody_says_otherwise():
    assert Topology(8, "1GiB", devices_per_host=4).domains == (range(4), range(4, 8))
    assert Topology(8, "1GiB", devices_per_host=2, devices_per_domain=4).domains == (range(4), range(4, 8))
    assert Topology(8, "1GiB").fast_links is None


def test_domains_are_saved_where_there_are_any():
    plain = Task(toy_tables(3), Topology(4, "1GiB"), 64)
    joined = Task(toy_tables(3), Topology(4, "1GiB", devices_per_host=1, devices_per_domain=2), 64)
    assert "devices_per_domain" not in plain.to_json()["topology"]
    assert Task.from_json(joined.to_json()) == joined
