"""Tables that are cut into blocks of rows: the blocks that there may be, and the devices that they lie on."""

from collections import defaultdict
from collections.abc import Sequence

from neuroshard.plumbing.errors import UserError
from neuroshard.tables import Table
from neuroshard.tasks.task import Topology
from neuroshard.words.shard import Placement, block_rows


def row_blocks(table: Table, count: int) -> tuple[tuple[int, int], ...]:
    """(first row, rows) of each of the `count` blocks of a table, in order of rank.

    All have ceil(rows / count) rows but the last one, which has what is left: of other blocks TorchRec trains other
    rows than it should, without an error.

    Raises:
        UserError: a block would be empty.
    """
    size = block_rows(table.rows, count)
    if not has_row_blocks(table, count):
        raise UserError(
            f"table {table.name!r} has {table.rows} rows: in {count} blocks of {size} the last would be empty; "
            "give each device columns of it, or a copy"
        )
    return tuple((first, min(size, table.rows - first)) for first in range(0, table.rows, size))


def has_row_blocks(table: Table, count: int) -> bool:
    """Whether a table has rows for `count` blocks, none of them empty."""
    return block_rows(table.rows, count) * (count - 1) < table.rows


def check_row_blocks(table: Table, placements: Sequence[Placement], topology: Topology) -> None:
    """Check that blocks that cover a table, at most one on a device, lie as rows are served.

    Each range of columns has a block on every device, or on every device of one host, as `row_blocks` cuts them; only
    ranges on hosts of their own may be narrower than the table.

    Raises:
        UserError: they don't; it names the table, and the columns and devices.
    """
    ranges: dict[tuple[int, int], list[Placement]] = defaultdict(list)
    for placement in sorted(placements, key=lambda placement: placement.device):
        ranges[placement.shard.column, placement.shard.column_end].append(placement)
    for columns, blocks in ranges.items():
        _check_range(table, columns, blocks, topology)


def _check_range(table: Table, columns: tuple[int, int], blocks: Sequence[Placement], topology: Topology) -> None:
    """Of the blocks, in order of device, of the columns from one to before another."""
    where = f"plan: columns {columns[0]} to {columns[1] - 1} of table {table.name!r}"
    devices = [placement.device for placement in blocks]
    if not _is_group(devices, topology):
        raise _not_a_group(where, devices, topology)
    if len(devices) == topology.num_devices and columns != (0, table.dim):
        raise UserError(f"{where} are in blocks of rows on all devices; give such blocks all columns")
    for placement, (row, rows) in zip(blocks, row_blocks(table, len(devices)), strict=True):
        shard = placement.shard
        if (shard.row, shard.rows) != (row, rows):
            raise UserError(
                f"{where}: device {placement.device} has rows {shard.row} to {shard.row_end - 1}, not {row} to "
                f"{row + rows - 1}; blocks are of ceil(rows / devices) rows, in order of device"
            )


def _is_group(devices: Sequence[int], topology: Topology) -> bool:
    """Whether these, each once and in order, are all devices or those of one host."""
    count, size = len(devices), topology.host_size
    one_host = count == size and devices[0] % size == 0 and devices[-1] == devices[0] + size - 1
    return count == topology.num_devices or one_host


def _not_a_group(where: str, devices: Sequence[int], topology: Topology) -> UserError:
    named = ", ".join(map(str, devices[:8])) + (", ..." if len(devices) > 8 else "")
    hosts = "" if len(topology.hosts) == 1 else f", or on each of the {topology.host_size} of one host"
    return UserError(
        f"{where} are in blocks of rows on {len(devices)} device(s) ({named}); "
        f"put a block on each of the {topology.num_devices} devices{hosts}"
    )
