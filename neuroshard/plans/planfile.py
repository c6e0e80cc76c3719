"""Plan files: those of format 2 are written and read; those of format 1, whose shards had all rows, are read."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from neuroshard.errors import UserError
from neuroshard.plans.prediction import Prediction
from neuroshard.plans.shard import Home, Placement, Shard, Tier
from neuroshard.plans.tiling import table_of
from neuroshard.schema import CacheShare, Count, Device, Dim, FirstRow, Name, Offset, Rows, of_format, parse
from neuroshard.tasks.task import Task

_Plan = TypeVar("_Plan")
_FORMAT = "neuroshard-plan-2"
_FORMAT_1 = "neuroshard-plan-1"


def to_json(task: Task, placements: Sequence[Placement], prediction: Prediction | None) -> dict[str, Any]:
    """What a plan's file holds, JSON-ready."""
    return {
        "format": _FORMAT,
        "placements": [_as_fields(placement) for placement in placements],
        "prediction": None if prediction is None else _predicted(prediction),
        "task": task.to_json(),
    }


def _predicted(prediction: Prediction) -> dict[str, Any]:
    """Without what isn't known of later fields: as it was before there were any."""
    fields, later = asdict(prediction), ("expected_ms", "caveat")
    return {name: value for name, value in fields.items() if name not in later or value is not None}


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
    found = _parsed(content, where)
    try:
        return make(found.task, found.read(), found.prediction)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _parsed(content: object, where: str) -> "_First | _Second":
    if isinstance(content, dict) and content.get("format") == _FORMAT_1:
        return parse(of_format(content, _FORMAT_1, where), _First, where)
    return parse(of_format(content, _FORMAT, where), _Second, where)


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
        """The placement."""
        shard = Shard(self.table, self.column, self.dim, self.row, self.rows)
        return Placement(shard, self.device, Home(Tier(self.tier), self.cached))


@dataclass(frozen=True)
class _Second:
    """Format 2."""

    placements: tuple[_Placed, ...]
    prediction: Prediction | None
    task: Task

    def read(self) -> tuple[Placement, ...]:
        """The placements."""
        return tuple(placed.read() for placed in self.placements)


@dataclass(frozen=True)
class _PlacedColumns:
    """A placement as it stood in a file of format 1: all rows, in device memory."""

    table: Count
    offset: Offset
    dim: Dim
    device: Device

    def read(self, task: Task) -> Placement:
        """The placement."""
        rows = table_of(task, self.table).rows
        return Placement(Shard(self.table, self.offset, self.dim, 0, rows), self.device)


@dataclass(frozen=True)
class _First:
    """Format 1."""

    shards: tuple[_PlacedColumns, ...]
    task: Task
    prediction: Prediction | None = None

    def read(self) -> tuple[Placement, ...]:
        """The placements."""
        return tuple(shard.read(self.task) for shard in self.shards)
