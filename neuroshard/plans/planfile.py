"""Writes and reads what a plan file holds."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from neuroshard.cost.cost import Prediction
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import CacheShare, Count, Device, Dim, FirstRow, Name, Offset, Rows, of_format, parse
from neuroshard.tasks.task import Task
from neuroshard.words.home import Home, Tier
from neuroshard.words.shard import Placement, Shard

_Plan = TypeVar("_Plan")
_FORMAT = "neuroshard-plan-2"


def to_json(task: Task, placements: Sequence[Placement], prediction: Prediction | None) -> dict[str, Any]:
    """What a plan's file holds, JSON-ready."""
    return {
        "format": _FORMAT,
        "placements": [_as_fields(placement) for placement in placements],
        "prediction": None if prediction is None else _predicted(prediction),
        "task": task.to_json(),
    }


def _predicted(prediction: Prediction) -> dict[str, Any]:
    """Without an expected cost or caveat where there is none."""
    fields, rare = asdict(prediction), ("expected_ms", "caveat")
    return {name: value for name, value in fields.items() if name not in rare or value is not None}


def _as_fields(placement: Placement) -> dict[str, Any]:
    shard, home = placement.shard, placement.home
    return {
        "table": shard.table,
        "column": shard.column,
        "dim": shard.dim,
        "row": shard.row,
        "rows": shard.rows,
        "device": placement.device,
        "tier": home.tier.value,
        **({} if home.cached is None else {"cached": home.cached}),
    }


def from_json(
    content: object, where: str, make: Callable[[Task, tuple[Placement, ...], Prediction | None], _Plan]
) -> _Plan:
    """What `make` makes of the task, placements and prediction in a file's content; `where` begins every error.

    Raises:
        UserError: the content is malformed, or `make` raises one.
    """
    found = parse(of_format(content, _FORMAT, where), _PlanFile, where)
    try:
        return make(found.task, tuple(placed.read() for placed in found.placements), found.prediction)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


@dataclass(frozen=True)
class _Placed:
    """A placement as it stands in a file."""

    table: Count
    column: Offset
    dim: Dim
    row: FirstRow
    rows: Rows
    device: Device
    tier: Name
    cached: CacheShare | None = None

    def read(self) -> Placement:
        """Return the placement that the fields describe."""
        shard = Shard(self.table, self.column, self.dim, self.row, self.rows)
        return Placement(shard, self.device, Home(Tier(self.tier), self.cached))


@dataclass(frozen=True)
class _PlanFile:
    """What a plan file holds, besides its format."""

    placements: tuple[_Placed, ...]
    prediction: Prediction | None
    task: Task
