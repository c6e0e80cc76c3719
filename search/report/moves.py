"""What has to be moved from one plan to another, table by table."""

from dataclasses import dataclass

from neuroshard.plans.form import Form
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
        form_before, form_after: that it lies in.
    """

    table: str
    before: Places
    after: Places
    size_bytes: int
    form_before: Form = Form.COLUMNS
    form_after: Form = Form.COLUMNS


def table_moves(before: Plan, after: Plan) -> tuple[TableMove, ...]:
    """Every table that lies elsewhere, the most bytes first; both plans are of the same tables."""
    moved, old, new = moved_between(before, after).tolist(), _places(before), _places(after)
    found = [
        TableMove(table.name, old[index], new[index], moved[index], before.forms[index], after.forms[index])
        for index, table in enumerate(before.task.tables)
        if (old[index], before.forms[index]) != (new[index], after.forms[index])
    ]
    return tuple(sorted(found, key=lambda move: (-move.size_bytes, move.table)))


def _places(plan: Plan) -> list[Places]:
    """(T,) the places of every table."""
    found: list[list[tuple[int, int]]] = [[] for _ in plan.task.tables]
    for placement in plan.placements:
        found[placement.shard.table].append((placement.device, placement.shard.dim))
    return [tuple(sorted(places)) for places in found]
