"""Parts of tables and where they lie: a shard is a rectangle, a placement puts it on a device, in a tier of memory."""

from dataclasses import dataclass
from enum import StrEnum

from neuroshard.checked import checked
from neuroshard.errors import unknown_name
from neuroshard.schema import Count, Device, Dim, FirstRow, Offset, Rows


class Tier(StrEnum):
    """Kinds of memory that hold weights.

    Attributes:
        DEVICE: the device's own.
    """

    DEVICE = "device"

    @classmethod
    def _missing_(cls, value: object) -> "Tier":
        raise unknown_name("tier", str(value), [tier.value for tier in cls])


TIERS = tuple(Tier)  # in the order of whatever has one number for each


@dataclass(frozen=True, order=True)
@checked
class Shard:
    """A rectangle of a table: `dim` of its columns from `column` on, of `rows` of its rows from `row` on.

    Attributes:
        table: its index in the task.
        column, dim: first column and number of columns, both multiples of 4.
        row, rows: first row and number of rows.
    """

    table: Count
    column: Offset
    dim: Dim
    row: FirstRow
    rows: Rows

    @property
    def column_end(self) -> int:
        """The first column behind it."""
        return self.column + self.dim

    @property
    def row_end(self) -> int:
        """The first row behind it."""
        return self.row + self.rows


@dataclass(frozen=True, order=True)
@checked
class Placement:
    """A shard in its place.

    Attributes:
        shard: what is placed.
        device: where.
        tier: kind of memory there; "device", the device's own, is the only one.
    """

    shard: Shard
    device: Device
    tier: Tier = Tier.DEVICE

    def __post_init__(self) -> None:
        object.__setattr__(self, "tier", Tier(self.tier))
