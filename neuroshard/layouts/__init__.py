"""Families of sharding types (layouts): column-wise, row-wise and data-parallel.
Each family has its own module. This module has functions for tables of all families.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from neuroshard.cost.loads import Loads
from neuroshard.layouts.column_wise import ColumnWise, place_column_wise
from neuroshard.layouts.data_parallel import DataParallel, place_data_parallel
from neuroshard.layouts.layout import Layout
from neuroshard.layouts.row_wise import RowWise, place_row_wise, row_blocks
from neuroshard.plumbing.arrays import BoolArray, FloatArray
from neuroshard.tables import Table
from neuroshard.words.collective import INDEX_BYTES, Collective
from neuroshard.words.form import FORMS, Form
from neuroshard.words.placement import ON_DEVICE, Placement, Shard, by_table

COLUMN_WISE_LAYOUT, ROW_WISE_LAYOUT, DATA_PARALLEL_LAYOUT = ColumnWise(), RowWise(), DataParallel()
LAYOUTS: dict[Form, Layout] = {
    layout.form: layout for layout in (COLUMN_WISE_LAYOUT, ROW_WISE_LAYOUT, DATA_PARALLEL_LAYOUT)
}  # in the order of `FORMS`
__all__ = [
    "COLUMN_WISE_LAYOUT",
    "DATA_PARALLEL_LAYOUT",
    "LAYOUTS",
    "ROW_WISE_LAYOUT",
    "Layout",
    "are",
    "layout_of",
    "layouts_of",
    "place_column_wise",
    "place_data_parallel",
    "place_row_wise",
    "placed_loads",
    "row_blocks",
    "sent_bytes_of",
]  # fmt: skip


def layout_of(table: Table, shards: Sequence[Shard]) -> Layout:
    """Return the family of sharding types (column-wise, row-wise or data-parallel) to which a table with these shards
    belongs. Only the shards determine the family.

    If several layouts of `LAYOUTS` match, the last of them is returned, because a later layout may be a special case of
    an earlier layout.
    """
    return next(layout for layout in reversed(LAYOUTS.values()) if layout.holds(table, shards))


def layouts_of(tables: Sequence[Table], placed: Sequence[Sequence[Placement]]) -> tuple[Layout, ...]:
    """Return the family of sharding types of each table in `tables`, (T,).
    `placed` (T,) has the placements of each table. A family is column-wise, row-wise or data-parallel.
    """
    pairs = zip(tables, placed, strict=True)
    return tuple(layout_of(table, [placed.shard for placed in placements]) for table, placements in pairs)


def are(loads: Loads, has: Callable[[Layout], bool]) -> BoolArray:
    """Return an array (n,) that is True for each load whose family of sharding types has a property.
    `has` is a function that returns True for families with the property.
    """
    return np.array([has(layout) for layout in LAYOUTS.values()])[loads.form]


def placed_loads(
    tables: Sequence[Table],
    placements: Sequence[Placement],
    batch_size: int,
    num_devices: int,
    layouts: Sequence[Layout] | None = None,
) -> Loads:
    """Return the load of each of S shards, in the order of `placements`. A load is the work that a shard causes for the
    kernels of a device in a batch. Each placement gives a shard and the device of the shard.

    Args:
        tables: (T,) the tables.
        placements: (S,) the placements of their shards.
        batch_size: global batch size.
        num_devices: number of devices.
        layouts: (T,) layout of each table; None derives the layouts from the placements.
    """
    layouts = layouts or layouts_of(tables, by_table(placements, len(tables)))
    table = np.array([placement.shard.table for placement in placements], dtype=np.int64)
    dim = np.array([placement.shard.dim for placement in placements], dtype=np.int64)
    numbers = np.array([FORMS.index(layout.form) for layout in layouts], dtype=np.int64)
    assignments = {placement.shard.table: placement.tier_assignment for placement in placements}
    whole = Loads.of(tables, batch_size).at([assignments.get(index, ON_DEVICE) for index in range(len(tables))])
    loads = replace(whole, form=numbers).take(table).columns(dim)
    for number, layout in enumerate(LAYOUTS.values()):
        if len(which := np.flatnonzero(loads.form == number)):
            loads = layout.placed(loads, which, tables, placements, num_devices)
    return loads


def sent_bytes_of(loads: Loads, num_devices: int) -> FloatArray:
    """Return the number of bytes that a device sends because of each of n loads, separately for each of C collectives,
    (n, C). A load is the work that one shard causes on one device.

    For the input dist, these are the indices and lengths that the device receives.
    """
    output_bytes, given = loads.output_bytes, np.zeros((len(loads), len(Collective)))
    for number, layout in enumerate(LAYOUTS.values()):
        if (of_layout := loads.form == number).any():
            for collective, size_bytes in layout.sent_bytes_of(loads, output_bytes, num_devices).items():
                given[of_layout, collective] = size_bytes[of_layout]
    looked_up = INDEX_BYTES * (np.ceil(loads.lookups) + loads.bags)
    given[:, Collective.INPUT] = np.where(are(loads, lambda layout: layout.own_samples), 0.0, looked_up)
    return given
