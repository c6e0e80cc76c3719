"""Data-parallel tables: every device has the whole table."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from neuroshard.cost.loads import Loads
from neuroshard.layouts.layout import Layout, Whole, place_of, table_of
from neuroshard.plumbing.arrays import FloatArray, IntArray
from neuroshard.plumbing.errors import UserError
from neuroshard.tables import Table
from neuroshard.tables.reuse import reuse_at
from neuroshard.words.collective import ELEMENT_BYTES, Collective
from neuroshard.words.form import FORMS, Form
from neuroshard.words.placement import ON_DEVICE, Placement, Shard, on_each
from neuroshard.words.topology import Topology


class DataParallel(Layout):
    """Data-parallel tables: each device looks up its own samples; an all-reduce adds up gradients of all weights."""

    form: ClassVar[Form] = Form.DATA_PARALLEL
    exchanges: ClassVar[tuple[Collective, ...]] = (Collective.ALL_REDUCE,)
    color: ClassVar[str] = "#937860"
    words: ClassVar[tuple[str, ...]] = ("data_parallel",)
    dense: ClassVar[bool] = True
    own_samples: ClassVar[bool] = True
    everywhere: ClassVar[bool] = True
    note: ClassVar[str] = "data-parallel"
    counted: ClassVar[str] = " as data_parallel, which counts as 1 shard"

    def holds(self, table: Table, shards: Sequence[Shard]) -> bool:
        """Return True if the shards belong to a data-parallel table.
        All shards must have all rows, and two or more shards must have all columns: they are copies of the table.
        """
        return all(shard.rows >= table.rows for shard in shards) and sum(s.dim == table.dim for s in shards) > 1

    def over(self, whole: Whole, index: int, devices: Sequence[int]) -> list[Placement]:
        """Return placements of the whole table on every device of the task; `devices` has no effect."""
        return place_data_parallel(whole, index)

    def check(self, table: Table, placements: Sequence[Placement], topology: Topology) -> None:
        """Raise UserError unless every device has the whole table in device memory.
        Also raise UserError if a placement has only some of the table's columns.
        """
        if (assignment := placements[0].tier_assignment) != ON_DEVICE:
            raise UserError(
                "plan-copies-tier",
                f"table {table.name!r} is data_parallel in tier {assignment}",
                limit="a data_parallel table must be in device memory",
                remedy="Set the tier of the table to device",
            )
        for placement in placements:
            if placement.shard.dim < table.dim:
                raise UserError(
                    "plan-copies-and-shard",
                    f"device {placement.device} has a shard from {place_of(table, placement.shard.column, 0)}, "
                    "but other devices have the whole table",
                    limit="a table must be in shards that do not overlap, or whole on every device (data_parallel)",
                    remedy="Place the whole table on every device, or place only shards of the table",
                )
        if missing := set(range(topology.num_devices)).difference(placement.device for placement in placements):
            raise UserError(
                "plan-copies-missing",
                f"{len(placements)} devices have the whole table {table.name!r}, but device {min(missing)} does not",
                limit="a whole table must be on exactly one device, or on every device (data_parallel)",
                remedy=f"Place the table on one device, or on each of the {topology.num_devices} devices",
            )

    def placed(
        self, loads: Loads, which: IntArray, tables: Sequence[Table], placements: Sequence[Placement], num_devices: int
    ) -> Loads:
        """Return the loads of n placements, (n,), in which each data-parallel load has only the samples of one device.
        In the argument `loads`, these loads have all samples of the batch. `which` (m,) has the indices of the
        data-parallel loads. All other loads are unchanged.
        """
        return _of_own_samples(loads, num_devices, which)

    def share(self, loads: Loads, count: int) -> Loads:
        """Return the load on one of `count` devices for each table, if the tables are data-parallel.
        `loads` has the load of each table for the whole batch. Every device has the whole table, but looks up only the
        samples of this device, which are 1/`count` of the batch.
        """
        formed = replace(loads, form=np.full(len(loads), FORMS.index(self.form)))
        return _of_own_samples(formed, count, np.arange(len(loads)))

    def sent_bytes_of(
        self, loads: Loads, output_bytes: FloatArray, num_devices: int
    ) -> Mapping[Collective, FloatArray]:
        """Return the number of bytes that each device puts into the all-reduce, for each of n loads.
        A device puts in the fp32 gradients of all weights of the table. The result is a dict from the all-reduce, the
        only collective of this family, to an array (n,).
        """
        return {Collective.ALL_REDUCE: loads.rows * loads.dim * ELEMENT_BYTES}

    def num_shards(self, devices: int) -> int:
        """Return 1: for limits such as max_shards, a data-parallel table on any number of devices is one shard."""
        return 1


def _of_own_samples(loads: Loads, num_devices: int, which: IntArray) -> Loads:
    """Return a copy of the n loads in which the m loads with the indices `which` have only the samples of one device.
    In the argument `loads`, these m loads have all samples of the batch. All other loads are unchanged.

    The lookups, samples and bags of the m loads are divided by the number of devices. The reuse histogram of each
    of the m loads becomes the histogram of the smaller batch.
    """
    share, reuse = np.ones(len(loads)), loads.reuse.copy()
    share[which] = 1 / num_devices
    reuse[which] = reuse_at(loads.reuse[which], 1 / num_devices)
    return replace(
        loads, lookups=loads.lookups * share, samples=loads.samples * share, bags=loads.bags * share, reuse=reuse
    )


def place_data_parallel(task: Whole, table: int) -> list[Placement]:
    """Return the placements of a data-parallel table: the whole table on every device.

    Raises:
        UserError: the task has no table with this index.
    """
    whole = table_of(task, table)
    shard = Shard(table, 0, whole.dim, 0, whole.rows)
    return on_each(shard, range(task.topology.num_devices))
