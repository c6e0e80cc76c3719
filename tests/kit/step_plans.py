"""Plans whose training steps use every sharding type and kind of table."""

from dataclasses import replace

from neuroshard import Task, Topology
from neuroshard.testing import toy_task
from tests.kit.plans import DATA_PARALLEL, laid_out


def mixed_plan(num_devices, devices_per_host=None):
    """Make a plan of pooled tables of all sharding types, one of them with two features, and of a sequence table."""
    tables = list(toy_task(6, num_devices=num_devices).tables)
    tables[3], tables[4] = replace(tables[3], features=2), replace(tables[4], pooled=False)
    rows = 64 * num_devices  # so that every rank has a block
    tables = [replace(table, rows=max(table.rows, rows)) for table in tables]
    task = Task(tuple(tables), Topology(num_devices, 1 << 30, devices_per_host=devices_per_host), 8 * num_devices)
    half, last = tables[2].dim // 2, num_devices - 1
    more = range(devices_per_host) if devices_per_host else DATA_PARALLEL
    return laid_out(task, range(num_devices), DATA_PARALLEL, {0: half, last: half}, more, last, 0)
