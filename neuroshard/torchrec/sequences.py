"""Sequence tables of TorchRec's EmbeddingCollections: deduplicated indices, and checks of the tables' sharding."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from torchrec.distributed.types import ParameterSharding, ShardingType

from neuroshard.plumbing.errors import UserError
from neuroshard.tables import Table
from neuroshard.tables.reuse import asked_by_devices
from neuroshard.torchrec.kernels import SPLIT, WHOLE, cut_widths

_SERVED = (WHOLE, SPLIT, ShardingType.ROW_WISE.value)


def deduplicated(table: Table, batch_size: int, num_devices: int) -> Table:
    """Return a copy of a sequence table with the lookups that remain after deduplication. If the samples of a device
    contain the same index several times, the device requests the index once, and this counts as one lookup.

    Each device requests an index of its samples once, for all features together. Unique rows stay the same; lookups
    decrease, and with them outputs. Within a block of `row_lookups`, the lookups count as spread evenly. The samples of
    the global `batch_size` are divided equally between devices.
    """
    left, reuse = asked_by_devices(np.array(table.reuse), num_devices)
    spread = np.array(table.row_lookups)
    size = table.rows / max(len(spread), 1)
    sent = -size * np.expm1(-batch_size * table.pooling_factor * spread / (num_devices * size))
    return replace(
        table,
        pooling_factor=min(table.pooling_factor * left, num_devices * table.rows / batch_size),
        reuse=tuple(reuse.tolist()),
        row_lookups=tuple((sent / sent.sum()).tolist()) if table.row_lookups else (),
    )


def check_sequences(shardings: Iterable[tuple[str, Table, ParameterSharding]]) -> None:
    """Raise UserError if TorchRec cannot train the sequence tables with the given shardings.
    Each item of `shardings` has three values: the path of a collection, a table, and the sharding of the table. Pooled
    tables are skipped.

    All column-wise sequence tables of a collection must have shards of one width, because TorchRec assumes that each
    shard is as wide as the first one.

    Raises:
        UserError: TorchRec would fail, or train wrong values.
    """
    first: dict[str, tuple[str, int]] = {}  # table and width of the first column shard in each collection
    for path, table, sharding in shardings:
        if table.pooled:
            continue
        if sharding.sharding_type not in _SERVED:
            raise UserError(
                "sequence-table-type",
                f"sequence table {table.name!r} is {sharding.sharding_type}",
                limit=f"TorchRec shards sequence tables only {', '.join(_SERVED[:-1])} or {_SERVED[-1]}",
                remedy="Plan the table with one of these sharding types",
            )
        for width in cut_widths(sharding):
            name, wide = first.setdefault(path, (table.name, width))
            if width != wide:
                names = f"tables {name!r} and {table.name!r} have"
                if name == table.name:
                    names = f"table {name!r} has"
                raise UserError(
                    "sequence-shard-widths",
                    f"sequence {names} shards of {wide} and {width} columns",
                    where=f"collection {path!r}",
                    limit="TorchRec assumes that column shards of a collection's sequence tables have the same width",
                    remedy="Split all sequence tables of the collection into shards of the same width",
                )
