"""What TorchRec's EmbeddingCollections serve of plans for sequence tables."""

from collections.abc import Iterable
from typing import Any

from torchrec.distributed.types import ParameterSharding, ShardingType

from neuroshard.plumbing.errors import UserError
from neuroshard.tables import Table

_SPLIT = ShardingType.COLUMN_WISE.value
_SERVED = (ShardingType.TABLE_WISE.value, _SPLIT, ShardingType.ROW_WISE.value)


def check_sequences(shardings: Iterable[tuple[str, Table, ParameterSharding]]) -> None:
    """Check how the sequence tables among some tables are sharded, each with the path of its collection.

    All that are cut in columns in one collection must be cut into shards of one width: TorchRec takes each shard to be
    as wide as the first one.

    Raises:
        UserError: TorchRec would fail, or train other values than it should.
    """
    first: dict[str, tuple[str, int]] = {}  # shard of columns in each collection
    for path, table, sharding in shardings:
        if table.pooled:
            continue
        if sharding.sharding_type not in _SERVED:
            raise UserError(
                f"table {table.name!r} is a sequence table, sharded {sharding.sharding_type}; plans have such tables "
                f"{', '.join(_SERVED)} only"
            )
        for width in _widths(sharding):
            name, wide = first.setdefault(path, (table.name, width))
            if width != wide:
                raise UserError(
                    f"collection {path!r}: sequence tables {name!r} and {table.name!r} are in shards of {wide} and "
                    f"{width} columns; cut all that are cut into shards of one width"
                )


def _widths(sharding: ParameterSharding) -> list[int]:
    """Columns of each shard of a table that is cut in columns."""
    spec: Any = sharding.sharding_spec
    cut = sharding.sharding_type == _SPLIT and spec is not None
    return [shard.shard_sizes[1] for shard in spec.shards] if cut else []
