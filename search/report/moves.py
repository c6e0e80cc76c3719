"""What has to be moved from one plan to another, table by table."""

from dataclasses import dataclass

from neuroshard.plans.plan import Plan
from neuroshard.stages.search.space.moved import moved_between

Places = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class TableMove:
    """A table that lies elsewhere afterwards.

    Attributes:
        table: its name.
        before, after: (device, columns) of its shards.
        size_bytes: of weights and optimizer state that come to devices that don't hold them yet.
    """

    table: str
    before: Places
    after: Places
    size_bytes: int


def table_moves(before: Plan, after: Plan) -> tuple[TableMove, ...]:
    """Every table that lies elsewhere, the most bytes first; both plans are of the same tables."""
    size_bytes = moved_between(before, after).tolist()
    found = [
        TableMove(table.name, old, new, size)
        for table, old, new, size in zip(before.task.tables, _places(before), _places(after), size_bytes, strict=True)
        if old != new
    ]
    return tuple(sorted(found, key=lambda move: (-move.size_bytes, move.table)))


def _places(plan: Plan) -> list[Places]:
    """(T,) the places of every table."""
    found: list[list[tuple[int, int]]] = [[] for _ in plan.task.tables]
    for shard, device in zip(plan.shards, plan.devices, strict=True):
        found[shard.table].append((device, shard.dim))
    return [tuple(sorted(places)) for places in found]
