"""Plans whose training steps do all that steps can do."""

from dataclasses import replace

from neuroshard.layouts import in_columns, in_copies, in_rows
from neuroshard.plans.plan import Plan
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing import toy_task


def mixed_plan(num_devices, devices_per_host=None):
    """A plan of pooled tables in all forms, one that two features read, and a sequence table."""
    tables = list(toy_task(6, num_devices=num_devices).tables)
    tables[3], tables[4] = replace(tables[3], features=2), replace(tables[4], pooled=False)
    rows = 64 * num_devices  # so that every rank has a block
    tables = [replace(table, rows=max(table.rows, rows)) for table in tables]
    task = Task(tuple(tables), Topology(num_devices, 1 << 30, devices_per_host=devices_per_host), 8 * num_devices)
    half, last = tables[2].dim // 2, num_devices - 1
    columns = in_columns(task, [(2, half, 0), (2, half, last), (4, tables[4].dim, last), (5, tables[5].dim, 0)])
    rows = [*in_rows(task, 0, range(num_devices)), *in_copies(task, 1)]
    more = in_rows(task, 3, range(devices_per_host)) if devices_per_host else in_copies(task, 3)
    return Plan(task, (*columns, *rows, *more))
