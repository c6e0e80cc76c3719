"""What has to be moved between two plans, against numbers worked out by hand."""

from neuroshard.plans.plan import assemble
from neuroshard.stages.search.report.moves import TableMove, table_moves
from neuroshard.tables import Table
from neuroshard.tasks.task import Task, Topology

ONCE = (1.0, *(0.0,) * 16)


def _task(*tables):
    made = tuple(Table(name, rows, dim, 1.0, ONCE) for name, rows, dim in tables)
    return Task(made, Topology(2, 1 << 30), 256)


def test_only_columns_that_are_not_there_yet_are_moved():
    task = _task(("a", 100, 32), ("b", 100, 16), ("c", 100, 8))
    before = assemble(task, [(0, 32, 0), (1, 16, 1), (2, 8, 1)])
    after = assemble(task, [(0, 20, 0), (0, 12, 1), (1, 16, 1), (2, 8, 0)])
    assert table_moves(before, after) == (
        TableMove("a", ((0, 32),), ((0, 20), (1, 12)), 100 * 12 * 4),
        TableMove("c", ((1, 8),), ((0, 8),), 100 * 8 * 4),
    )
    assert table_moves(after, after) == ()


def test_the_most_bytes_come_first():
    task = _task(("narrow", 10_000, 4), ("b", 10, 64), ("a", 10, 64), ("wide", 100, 128))
    before = assemble(task, [(i, table.dim, 0) for i, table in enumerate(task.tables)])
    after = assemble(task, [(i, table.dim, 1) for i, table in enumerate(task.tables)])
    assert [move.table for move in table_moves(before, after)] == ["narrow", "wide", "a", "b"]
