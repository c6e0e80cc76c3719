"""Tables and plans made by hand, in tests."""

import json

from neuroshard.layouts import place_column_wise, place_data_parallel, place_row_wise
from neuroshard.plans.plan import Plan, assemble
from neuroshard.tables import Table
from neuroshard.testing import ONCE

DATA_PARALLEL = "data_parallel"


def table(name="t", rows=100, dim=16, pooling_factor=2.0, **fields):
    """Make a table; a batch looks up each of its rows at most once unless `fields` give another `reuse`."""
    return Table(name, rows, dim, pooling_factor, **{"reuse": ONCE} | fields)


def tables(names, *shape, **fields):
    """Make tables that differ only in their names; `names` may be text, with a letter for each table."""
    return tuple(table(name, *shape, **fields) for name in names)


def whole(task, *devices):
    """Make the plan with whole tables alternately on `devices`, or on all devices of the task if none are given."""
    devices = devices or range(task.topology.num_devices)
    return assemble(task, [(i, its.dim, devices[i % len(devices)]) for i, its in enumerate(task.tables)])


def laid_out(task, *places):
    """Make the plan with each table at the corresponding place of `places`, which are as in `placed`."""
    return Plan(task, tuple(one for index, where in enumerate(places) for one in placed(task, index, where)))


def placed(task, index, where):
    """List the placements of a table.

    `where` is a device for a whole table; a dict of columns by device for a column-wise table; DATA_PARALLEL for a
    data-parallel table; a sequence of devices for a row-wise table; or a dict of columns by sequence of devices for a
    grid-sharded table.
    """
    if where == DATA_PARALLEL:
        return place_data_parallel(task, index)
    if isinstance(where, int):
        return place_column_wise(task, [(index, task.tables[index].dim, where)])
    if not isinstance(where, dict):
        return place_row_wise(task, index, where)
    if isinstance(next(iter(where)), int):
        return place_column_wise(task, [(index, dim, device) for device, dim in where.items()])
    found, first = [], 0
    for devices, dim in where.items():
        found += place_row_wise(task, index, devices, (first, first + dim))
        first += dim
    return found


def read_back(value):
    """Return `value` after writing it as JSON and reading it again."""
    return type(value).from_json(json.loads(json.dumps(value.to_json())))
