"""What has to be moved from one plan to another."""

from dataclasses import dataclass

from neuroshard.plans.plan import Plan

Places = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Move:
    """A table that lies elsewhere afterwards.

    Attributes:
        table: its name.
        before, after: (device, columns) of its shards.
        size_bytes: of the weights that come to devices that don't hold them yet.
    """

    table: str
    before: Places
    after: Places
    size_bytes: int


def moves(before: Plan, after: Plan) -> tuple[Move, ...]:
    """Every table that lies elsewhere, the most bytes first; both plans are of the same tables."""
    found = [
        Move(table.name, old, new, _more_columns(old, new) * table.rows * table.bytes_per_element)
        for table, old, new in zip(before.task.tables, _places(before), _places(after), strict=True)
        if old != new
    ]
    return tuple(sorted(found, key=lambda move: (-move.size_bytes, move.table)))


def _places(plan: Plan) -> list[Places]:
    """(T,) of every table."""
    found: list[list[tuple[int, int]]] = [[] for _ in plan.task.tables]
    for placement in plan.placements:
        found[placement.shard.table].append((placement.device, placement.shard.dim))
    return [tuple(sorted(places)) for places in found]


def _more_columns(before: Places, after: Places) -> int:
    """Columns that devices hold more of than before."""
    held = dict(before)
    return sum(max(dim - held.get(device, 0), 0) for device, dim in after)
