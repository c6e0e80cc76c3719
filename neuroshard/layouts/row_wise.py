"""Row-wise tables: each table is divided into equal blocks of rows, and each device of a group has one block.
The group consists of all devices, or of all devices of one host.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from neuroshard.cost.loads import Loads
from neuroshard.layouts.layout import Layout, Whole, check_cover, table_of
from neuroshard.plumbing.arrays import FloatArray, IntArray
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.grouping import grouped
from neuroshard.plumbing.messages import number_of
from neuroshard.tables import Table
from neuroshard.tables.reuse import lookup_share, range_reuse
from neuroshard.words.collective import Collective
from neuroshard.words.form import FORMS, Form
from neuroshard.words.placement import Placement, Shard, block_rows
from neuroshard.words.topology import Topology

_ON_ALL, _ON_A_HOST, _ON_HOSTS = "row_wise", "table_row_wise", "grid_shard"


class RowWise(Layout):
    """Row-wise tables: each device computes partial sums of all outputs, which a reduce-scatter adds up.

    The load of a block of rows has the lookups of these rows, with their reuse histogram. Row-wise sequence tables use
    an all-to-all, as column-wise tables do, because nothing is added up.
    """

    form: ClassVar[Form] = Form.ROW_WISE
    exchanges: ClassVar[tuple[Collective, ...]] = (Collective.REDUCE_SCATTER,)
    host_exchanges: ClassVar[tuple[Collective, ...]] = (Collective.HOST_REDUCE_SCATTER, Collective.HOST_ALL_TO_ALL)
    color: ClassVar[str] = "#8172b3"
    words: ClassVar[tuple[str, ...]] = (_ON_ALL, _ON_A_HOST, _ON_HOSTS)
    blocks: ClassVar[bool] = True
    joins: ClassVar[bool] = False

    def holds(self, table: Table, shards: Sequence[Shard]) -> bool:
        """Return True if the shards belong to a row-wise table: at least one shard lacks rows of the table."""
        return any(shard.rows < table.rows for shard in shards)

    def fits(self, rows: int, count: int) -> bool:
        """Return True if a table with `rows` rows has enough rows for `count` blocks that are not empty."""
        return block_rows(rows, count) * (count - 1) < rows

    def over(self, whole: Whole, index: int, devices: Sequence[int]) -> list[Placement]:
        """Divide a table into equal blocks of rows, and place a block on each device in `devices`. Return the
        placements.
        """
        return place_row_wise(whole, index, devices)

    def check(self, table: Table, placements: Sequence[Placement], topology: Topology) -> None:
        """Raise UserError if the blocks of rows do not cover the table, or if TorchRec cannot read the blocks.

        Each range of columns must have the blocks of `row_blocks` on all devices, or on all devices of one host. Only a
        range on one host may have fewer columns than the table.
        """
        check_cover(table, [placement.shard for placement in placements])
        by_device = sorted(placements, key=lambda placement: placement.device)
        ranges = grouped(by_device, lambda placement: (placement.shard.column, placement.shard.column_end))
        for columns, blocks in ranges.items():
            _check_range(table, columns, blocks, topology)

    def placed(
        self, loads: Loads, which: IntArray, tables: Sequence[Table], placements: Sequence[Placement], num_devices: int
    ) -> Loads:
        """Return a copy of the loads, (n,), in which each row-wise load describes only one block of rows of a table.
        The load at position i gets the rows of the shard in `placements[i]`, and the lookups of these rows. In `loads`,
        each row-wise load describes all rows and all lookups of the table. `which` (m,) has the positions of the
        row-wise loads.
        """
        shards = [placement.shard for placement in placements]
        groups = grouped(which.tolist(), lambda number: (shards[number].table, shards[number].column))
        rows, lookups, reuse = (values.copy() for values in (loads.rows, loads.lookups, loads.reuse))
        sharers = loads.sharers.copy()
        for (index, _), numbers in groups.items():
            table, blocks = tables[index], [shards[number] for number in numbers]
            first, count = np.array([[shard.row for shard in blocks], [shard.rows for shard in blocks]], dtype=np.int64)
            whole = loads.lookups[numbers[0]]
            rows[numbers], sharers[numbers] = count, len(blocks)
            lookups[numbers] = whole * lookup_share(table, first, count)
            reuse[numbers] = range_reuse(table, whole, first, count)
        return replace(loads, rows=rows, lookups=lookups, reuse=reuse, sharers=sharers)

    def share(self, loads: Loads, count: int) -> Loads:
        """Return the load that each table in `loads` causes on the first of `count` devices.
        Each table is assumed to be row-wise over the `count` devices, so this is the load of the first block of rows.
        The lookups of a table are assumed to be spread evenly over the rows.
        """
        rows, form = block_rows(loads.rows, count), np.full(len(loads), FORMS.index(self.form))
        sharers = np.full(len(loads), count, dtype=np.int64)
        return replace(loads, rows=rows, lookups=loads.lookups * (rows / loads.rows), form=form, sharers=sharers)

    def sent_bytes_of(
        self, loads: Loads, output_bytes: FloatArray, num_devices: int
    ) -> Mapping[Collective, FloatArray]:
        """Return the number of bytes that a device sends because of each of n loads, separately for each collective. A
        load is the work that one shard causes on one device. The result is a dict. The keys are all collectives that
        row-wise tables use, except the input dist, and the values are arrays (n,).

        Tables over all devices use REDUCE_SCATTER. Tables on one host use HOST_REDUCE_SCATTER, then HOST_ALL_TO_ALL, to
        which each device sends its part of the sums: output bytes / devices. Sequence tables use ALL_TO_ALL.
        """
        everywhere = loads.pooled & (loads.sharers == num_devices)
        by_host = loads.pooled & ~everywhere
        return {
            Collective.ALL_TO_ALL: output_bytes * ~loads.pooled,
            Collective.REDUCE_SCATTER: output_bytes * everywhere,
            Collective.HOST_REDUCE_SCATTER: output_bytes * by_host,
            Collective.HOST_ALL_TO_ALL: output_bytes / loads.sharers * by_host,
        }

    def unserved(self, widths: Collection[int], num_devices: int) -> str | None:
        """Return a text that says why TorchRec does not support a row-wise sequence table, or None if TorchRec supports
        it. TorchRec needs a block of rows on every device.

        `widths` has the number of columns of each row block. Each block is on a different device.
        """
        fewer = len(widths) < num_devices
        return f"that is row-wise over {len(widths)} devices, not over all {num_devices}" if fewer else None

    def sharding_type(self, placements: Sequence[Placement], topology: Topology) -> str:
        """Return the name of the sharding type of a table with these blocks of rows.
        The name is row_wise if all devices have a block, and table_row_wise if only the devices of one host have
        blocks. The name is grid_shard if the blocks have different columns on different hosts.
        """
        if len({placed.shard.column for placed in placements}) > 1:
            return _ON_HOSTS
        return _ON_ALL if len(placements) == topology.num_devices else _ON_A_HOST

    def sharding_types(self, placements: Sequence[Placement], topology: Topology) -> set[str]:
        """Return the names of the sharding types that a TorchRec plan may use for a table with these blocks of rows.
        The result can have several names: if all devices are on one host, it is row_wise, table_row_wise and
        grid_shard.
        """
        if topology.domain_size == topology.num_devices:
            return set(self.words)
        sharding_type = self.sharding_type(placements, topology)
        return {sharding_type, _ON_HOSTS} if sharding_type == _ON_A_HOST else {sharding_type}


def place_row_wise(
    task: Whole, table: int, devices: Sequence[int], columns: tuple[int, int] | None = None
) -> list[Placement]:
    """Return the placements of a table with one block of rows on each device of a group.

    Args:
        task: the task of the table.
        table: index of the table.
        devices: all devices of the task, or the devices of one host.
        columns: first column, and the column after the last; None for all columns. Other columns must be on other
            hosts.

    Raises:
        UserError: the task has no table with this index, or the table has too few rows.
    """
    whole = table_of(task, table)
    first, end = columns or (0, whole.dim)
    ranks = sorted(devices)
    return [
        Placement(Shard(table, first, end - first, row, rows), device, task.tier_assignments[table])
        for device, (row, rows) in zip(ranks, row_blocks(whole, len(ranks)), strict=True)
    ]


def row_blocks(table: Table, count: int) -> tuple[tuple[int, int], ...]:
    """Return the `count` blocks of rows of a table as (first row, number of rows), in the order of the devices.

    All blocks have ceil(rows / count) rows, except the last block, which has the remaining rows. TorchRec needs exactly
    these blocks: with others it trains wrong rows, without an error.

    Raises:
        UserError: a block would be empty.
    """
    size = block_rows(table.rows, count)
    if size * (count - 1) >= table.rows:
        raise UserError(
            "table-rows-too-few",
            f"table {table.name!r} has {number_of(table.rows, 'row')}, too few to be row-wise over {count} devices",
            limit=f"each block has ceil(rows / devices) = {number_of(size, 'row')}, so the last block would be empty",
            remedy="Make the table column_wise or data_parallel",
        )
    return tuple((first, min(size, table.rows - first)) for first in range(0, table.rows, size))


def _check_range(table: Table, columns: tuple[int, int], blocks: Sequence[Placement], topology: Topology) -> None:
    """Raise UserError if TorchRec cannot read the row-wise blocks of one range of columns of a table. For example,
    TorchRec cannot read the blocks if only some devices of a host have a block.

    `columns` is the range of columns (first column, column after the last). `blocks` are the placements of the blocks
    with these columns, in order of device.
    """
    where = f"columns {columns[0]} to {columns[1] - 1} of table {table.name!r}"
    devices, size = [placement.device for placement in blocks], topology.domain_size
    on_a_host = len(devices) == size and devices[0] % size == 0 and devices[-1] == devices[0] + size - 1
    if len(devices) != topology.num_devices and not on_a_host:
        named = ", ".join(map(str, devices[:8])) + (", ..." if len(devices) > 8 else "")
        hosts = "" if size == topology.num_devices else f", or on each of the {size} of one host"
        raise UserError(
            "plan-blocks-devices",
            f"{where} are row-wise over {number_of(len(devices), 'device')} ({named})",
            limit="TorchRec needs a block of rows on every device of the job, or on every device of one host",
            remedy=f"Place a block of rows on each of the {topology.num_devices} devices{hosts}",
        )
    if len(devices) == topology.num_devices and columns != (0, table.dim):
        raise UserError(
            "plan-blocks-columns",
            f"{where} are row-wise over all devices",
            limit=f"if a table is row-wise over all devices, each block of rows must have all {table.dim} columns",
            remedy="Give these blocks of rows all columns, or place them on the devices of one host",
        )
    for placement, (row, rows) in zip(blocks, row_blocks(table, len(devices)), strict=True):
        shard = placement.shard
        if (shard.row, shard.rows) != (row, rows):
            raise UserError(
                "plan-block-rows",
                f"device {placement.device} has rows {shard.row} to {shard.row_end - 1}, not {row} to {row + rows - 1}",
                where=where,
                limit="TorchRec expects blocks of ceil(rows / devices) rows, in the order of the devices",
                remedy="Correct the rows, or search for the plan again",
            )
