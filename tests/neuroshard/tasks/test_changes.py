"""Changes between two tasks; tables are matched by name."""

from dataclasses import replace

import pytest

from neuroshard import Task, Topology
from neuroshard.tasks.changes import TaskChanges
from tests.kit.plans import tables


def _task(names, devices=2):
    return Task(tables(names, 2_000, 8), Topology(devices, 1 << 20), 64)


def _with(**fields):
    task = _task("abc")
    return replace(task, tables=(replace(task.tables[0], **fields), *task.tables[1:]))


def test_equal_tasks_have_no_changes():
    for other in (_task("abc"), _task("cab")):
        changes = TaskChanges.between(_task("abc"), other)
        assert not changes
        assert str(changes) == ""


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"rows": 3_000}, "a: rows 2,000 -> 3,000"),
        ({"dim": 16, "bytes_per_element": 2}, "a: dim 8 -> 16 and bytes per element 4 -> 2"),
        ({"features": 3}, "a: features 1 -> 3"),
        ({"pooled": False}, "a: lookups pooled -> not pooled"),
        ({"pooling_factor": 2.5}, "other statistics of 1 table (a: pooling factor 2 -> 2.5)"),
        ({"row_lookups": (0.5, 0.5)}, "other statistics of 1 table (a)"),
    ],
)
def test_task_changes_name_every_changed_attribute_of_a_table(fields, said):
    changes = TaskChanges.between(_task("abc"), _with(**fields))
    assert (changes.added, changes.removed, changes.of_devices) == ((), (), False)
    assert [(before.name, after.name) for before, after in changes.changed] == [("a", "a")]
    assert str(changes) == said


def test_task_changes_name_added_and_removed_tables_and_devices():
    changes = TaskChanges.between(_task("abcdef"), _task("fxg", 3))
    assert (changes.added, changes.removed, changes.devices) == (("x", "g"), tuple("abcde"), (2, 3))
    assert str(changes) == "2 tables added (x, g), 5 tables removed (a, b, c, 2 more), 2 -> 3 devices"
