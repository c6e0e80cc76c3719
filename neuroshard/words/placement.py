"""The places of shards: tiers of memory, and devices."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Self, TypeVar

from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError, unknown_name
from neuroshard.plumbing.schema import CacheShare, Count, Device, Dim, FirstRow, Offset, Rows

DEFAULT_CACHED = 0.2  # of a table's rows: FBGEMM's default
_Rows = TypeVar("_Rows", int, FloatArray)


class Word(StrEnum):
    """One of a few words that settings and files may hold; any other is an error that names the nearest."""

    @classmethod
    def _missing_(cls, value: object) -> Self:
        raise unknown_name(cls._idea(), str(value), [word.value for word in cls])

    @classmethod
    def _idea(cls) -> str:
        """Return the noun for errors, such as "tier"."""
        return cls.__name__.lower()


class Tier(Word):
    """The memory where a table's weights are kept, and trained.

    Attributes:
        DEVICE: in the device's own memory.
        UVM_CACHING: in the host's memory; a cache on the device holds the rows that were looked up last.
        UVM: in the host's memory, read over the link at every lookup.
    """

    DEVICE = "device"
    UVM_CACHING = "uvm_caching"
    UVM = "uvm"


TIERS = tuple(Tier)  # in the order of whatever has one number for each


@dataclass(frozen=True, order=True)
@checked
class TierAssignment:
    """The memory that holds a table: one for all of its shards.

    Attributes:
        tier: which.
        cache_load_factor: share of each shard's rows that the device's cache has room for; None unless the tier is
            uvm_caching.
    """

    tier: Tier = Tier.DEVICE
    cache_load_factor: CacheShare | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tier", Tier(self.tier))
        if (self.cache_load_factor is None) is (self.tier is Tier.UVM_CACHING):
            cached = self.tier is Tier.UVM_CACHING
            raise UserError(
                "tier-cache-load-factor",
                f"tier {self.tier.value!r} has cache_load_factor={self.cache_load_factor}",
                limit="this tier needs a cache_load_factor"
                if cached
                else "only tier 'uvm_caching' has a cache_load_factor",
                remedy="Set cache_load_factor to a number above 0 and at most 1"
                if cached
                else "Remove cache_load_factor",
            )

    @property
    def cached_share(self) -> float:
        """Share of the rows that the device holds."""
        return float(self.tier is Tier.DEVICE) if self.cache_load_factor is None else self.cache_load_factor

    def __str__(self) -> str:
        return self.tier.value if self.cache_load_factor is None else f"{self.tier.value} {self.cache_load_factor:.3g}"


ON_DEVICE = TierAssignment()


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
        """The first column behind the shard."""
        return self.column + self.dim

    @property
    def row_end(self) -> int:
        """The first row behind the shard."""
        return self.row + self.rows


def block_rows(rows: _Rows, count: int | _Rows) -> _Rows:
    """Return the rows of each of `count` equal blocks of a table of `rows` rows; the last block may have fewer.

    Called with the rows of a block as `count`, it returns the number of blocks.
    """
    return -(-rows // count)


@dataclass(frozen=True, order=True)
@checked
class Placement:
    """A shard, the device that it is placed on, and the memory that holds it.

    Attributes:
        shard: what is placed.
        device: where.
        tier_assignment: the memory that holds it; the same for all shards of a table.
    """

    shard: Shard
    device: Device
    tier_assignment: TierAssignment = ON_DEVICE


def by_table(placements: Iterable[Placement], num_tables: int) -> tuple[tuple[Placement, ...], ...]:
    """Group placements by table: (T,) those of each, in their order."""
    grouped: list[list[Placement]] = [[] for _ in range(num_tables)]
    for placed in placements:
        grouped[placed.shard.table].append(placed)
    return tuple(map(tuple, grouped))
