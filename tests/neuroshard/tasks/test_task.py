from dataclasses import replace

import pytest

from neuroshard import Simulator, Task, Topology
from neuroshard.stages.search.methods.heuristics import Random
from neuroshard.tasks.draw import TaskDraw, drawn, from_file, save_tasks
from neuroshard.testing import random_models, toy_tables, toy_task
from tests.kit.messages import check, refused
from tests.kit.plans import read_back


@pytest.mark.parametrize("rare", [{}, {"devices_per_domain": 2}, {"host_memory_bytes": 1 << 20}])
def test_task_json_is_exact_and_omits_absent_fields(rare):
    task = toy_task(5)
    task = replace(task, topology=replace(task.topology, devices_per_host=1, **rare))
    assert read_back(task) == task
    assert {"devices_per_domain", "host_memory_bytes"} & task.to_json()["topology"].keys() == rare.keys()


def test_task_files_without_devices_per_host_are_read():
    content = toy_task(5).to_json()
    del content["topology"]["devices_per_host"]
    assert Task.from_json(content) == toy_task(5)


@pytest.mark.parametrize(
    ("tables", "code", "names"),
    [((), "task-table-count", ["0 tables"]), (toy_tables(1) * 2, "table-name-shared", ["'toy0'"])],
)
def test_task_without_tables_or_with_duplicate_names_is_refused(tables, code, names):
    with refused(code, names=names):
        Task(tables, Topology(2, 100), 256)


_NOT_SIZES = [("4 QB", "'4 QB'"), ("many", "'many'"), (1 << 61, 1 << 61)]


@pytest.mark.parametrize(
    ("topology", "code", "names"),
    [
        *[((count, 100), "value-outside-limits", ["num_devices", count]) for count in (0, -1, 2.5, 5000)],
        ((2, 0), "topology-memory-reserved", ["device 0", "memory_bytes=0"]),
        *[((2, memory), "size-unreadable", ["memory_bytes", shown]) for memory, shown in _NOT_SIZES],
        ((2, True), "value-outside-limits", ["memory_bytes", True]),
        ((2, (1, 2, 3)), "topology-sizes-count", ["memory_bytes", "3 sizes", "2 devices"]),
        ((2, (0, 5)), "topology-memory-reserved", ["device 0", "memory_bytes=0"]),
        ((2, 10, (0, 10)), "topology-memory-reserved", ["device 1", "reserved_bytes=10", "memory_bytes=10"]),
        ((6, 1, 0, 4), "topology-hosts-unequal", ["devices_per_host=4", "num_devices=6"]),
        ((6, 1, 0, 0), "value-outside-limits", ["devices_per_host", 0]),
        *[
            ((8, 1, 0, 4, 0, size), "topology-domains-unequal", [f"devices_per_domain={size}", "num_devices=8"])
            for size in (3, 6, 2, 16)
        ],
    ],
)
def test_topology_refuses_invalid_sizes(topology, code, names):
    with refused(code, names=names):
        Topology(*topology)


def test_hosts_and_domains_are_ranges_of_ranks():
    assert Topology(6, 1, devices_per_host=2).hosts == (range(2), range(2, 4), range(4, 6))
    assert Topology(6, 1).hosts == (range(6),)
    assert Topology(8, "1GiB", devices_per_host=4).domains == (range(4), range(4, 8))
    assert Topology(8, "1GiB", devices_per_host=2, devices_per_domain=4).domains == (range(4), range(4, 8))
    assert Topology(8, "1GiB").fast_links is None


def test_drawn_tasks_follow_their_settings_and_repeat_with_the_same_seed():
    tables = toy_tables(30)
    draw = TaskDraw(count=8, min_tables=5, max_tables=9, max_dim=32, seed=3)
    tasks = drawn(tables, Topology(4, 1 << 30), 256, draw)
    assert tasks == drawn(tables, Topology(4, 1 << 30), 256, draw)
    assert len(tasks) == 8
    assert all(5 <= len(task.tables) <= 9 for task in tasks)
    assert {table.dim for task in tasks for table in task.tables} == {4, 8, 16, 32}


def test_drawing_tasks_from_too_few_tables_is_refused():
    with refused("draw-too-few-tables", where="tasks", names=["max_tables", "3 tables"]):
        drawn(toy_tables(3), Topology(4, 1 << 30), 256, TaskDraw())


def test_saved_tasks_are_read_back_unchanged(tmp_path):
    known = tuple(replace(table, reuse_batch_size=256) for table in toy_tables(3))
    tasks = (toy_task(3), toy_task(7, seed=2), Task(known, Topology(2, 1 << 30), 256))
    save_tasks(tmp_path / "tasks.json", tasks)
    read = from_file(str(tmp_path / "tasks.json"))
    assert read == tasks
    assert {table.reuse_batch_size for table in read[2].tables} == {256}


@pytest.mark.parametrize(
    ("content", "code", "names"),
    [
        ("", "json-unreadable", []),
        ("[1]", "file-format-other", ["'format'", "neuroshard-tasks-2"]),
        ('{"format": "neuroshard-tasks-2", "tasks": [{}]}', "field-missing", ["tasks[0]", "'tables'"]),
    ],
)
def test_reading_a_malformed_task_file_names_the_file(tmp_path, content, code, names):
    path = tmp_path / "tasks.json"
    path.write_text(content)
    with refused(code, names=names) as caught:
        from_file(str(path))
    assert str(path) in caught.value.message.where


def test_task_warns_of_a_histogram_of_another_batch_size():
    tables = tuple(replace(table, reuse_batch_size=256) for table in toy_tables(3))
    topology = Topology(2, 1 << 30)
    assert Task(toy_tables(3), topology, 8192).warnings == ()  # nobody knows
    assert Task(tables, topology, 260).warnings == ()
    task = Task(tables, topology, 8192)
    (warning,) = task.warnings
    check(warning, "reuse-other-batch-size", names=["3 of 3 tables", "'toy0'", 256, 8192])
    simulator = Simulator(random_models())
    assert simulator.warnings(Random().find(task, simulator).plan)[0] == warning


@pytest.mark.parametrize(
    ("settings", "code", "names"),
    [
        ({"count": 0}, "value-outside-limits", ["count", 0]),
        ({"count": 10**30}, "value-outside-limits", ["count", 10**30]),
        ({"count": True}, "value-outside-limits", ["count", True]),
        ({"min_tables": 0}, "value-outside-limits", ["min_tables", 0]),
        ({"min_tables": 70}, "draw-min-tables-above-max", ["min_tables", 70, "max_tables", 59]),
        ({"max_dim": 96}, "max-dim-not-halvable", ["max_dim", 96]),
        ({"max_dim": "x"}, "value-outside-limits", ["max_dim", "'x'"]),
        ({"seed": -1}, "value-outside-limits", ["seed", -1]),
    ],
)
def test_task_draw_refuses_invalid_settings(settings, code, names):
    with refused(code, names=names):
        TaskDraw(**settings)


@pytest.mark.parametrize(
    ("asked", "alike"),
    [({"devices_per_domain": 2}, True), ({"devices_per_domain": 4}, False), ({"devices_per_host": 4}, False)],
)
def test_tasks_are_unlike_if_other_links_join_their_devices(asked, alike):
    task = toy_task(2, num_devices=8)
    here, there = (Topology(8, 1 << 30, **{"devices_per_host": 2} | its) for its in ({}, asked))
    assert (replace(task, topology=here).unlike(replace(task, topology=there)) is None) is alike
