"""Shards of tables, and their placement: a device and a tier of memory for each shard."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self, TypeVar

from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError, unknown_name
from neuroshard.plumbing.schema import CacheShare, Count, Device, Dim, FirstRow, Offset, Rows

DEFAULT_CACHED = 0.2  # default cache_load_factor, as in FBGEMM: share of a table's rows in the cache
_Rows = TypeVar("_Rows", int, FloatArray)


class Word(StrEnum):
    """A base class for enumerations of words that settings and files contain.
    An unknown word raises UserError, and the error suggests the nearest valid word.
    """

    @classmethod
    def _missing_(cls, value: object) -> Self:
        raise unknown_name(cls._idea(), str(value), [word.value for word in cls])

    @classmethod
    def _idea(cls) -> str:
        """Return the noun that error messages use for a member of this enumeration. By default, this noun is the name
        of the class in lower case, such as "tier".
        """
        return cls.__name__.lower()


class Tier(Word):
    """The memory that stores the weights of a table: device memory, host memory, or host memory behind a cache.

    Attributes:
        DEVICE: the device's own memory.
        UVM_CACHING: the host's memory; a cache on the device stores the rows that were looked up last.
        UVM: the host's memory; every lookup reads over the link between device and host.
    """

    DEVICE = "device"
    UVM_CACHING = "uvm_caching"
    UVM = "uvm"


TIERS = tuple(Tier)  # numbers of tiers in arrays are indices of this tuple


@dataclass(frozen=True, order=True)
@checked
class TierAssignment:
    """The memory tier of a table (such as host memory behind a cache), and the size of the table's cache. All shards of
    the table have the same tier assignment.

    Attributes:
        tier: the memory that stores the table.
        cache_load_factor: share of each shard's rows that fit in the cache on the device; None unless the tier is
            uvm_caching.

    Raises:
        UserError: the tier is uvm_caching without a cache_load_factor, or another tier with one.
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
        """Share of the table's rows that fit in device memory. The share is 1 for tier device, 0 for tier uvm, and the
        cache load factor for tier uvm_caching.
        """
        return float(self.tier is Tier.DEVICE) if self.cache_load_factor is None else self.cache_load_factor

    def __str__(self) -> str:
        return self.tier.value if self.cache_load_factor is None else f"{self.tier.value} {self.cache_load_factor:.3g}"


ON_DEVICE = TierAssignment()


@dataclass(frozen=True, order=True)
@checked
class Shard:
    """A rectangle of a table: a range of columns and a range of rows.

    Attributes:
        table: index of the table in the task.
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
        """Index of the first column after the shard."""
        return self.column + self.dim

    @property
    def row_end(self) -> int:
        """Index of the first row after the shard."""
        return self.row + self.rows


def block_rows(rows: _Rows, count: int | _Rows) -> _Rows:
    """Return the rows per block if a table of `rows` rows is divided into `count` blocks: rows / count, rounded up.

    The last block may have fewer rows. If `count` is the number of rows of a block, the result is the number of blocks.
    """
    return -(-rows // count)


@dataclass(frozen=True, order=True)
@checked
class Placement:
    """A shard, the device that the shard is placed on, and the tier of memory that stores the shard.

    Attributes:
        shard: the shard to place.
        device: index of the device.
        tier_assignment: the memory that stores the shard; the same for all shards of a table.
    """

    shard: Shard
    device: Device
    tier_assignment: TierAssignment = ON_DEVICE


def on_each(shard: Shard, devices: Sequence[int], tier_assignment: TierAssignment = ON_DEVICE) -> list[Placement]:
    """Return placements of the same shard on each of several devices.

    The smallest and the largest device are checked instead of every device, because there may be many thousands.

    Raises:
        UserError: a device is not a valid index.
    """

    def placement(device: int) -> Placement:
        """Return a placement of the shard on `device`. The index of the device is not checked, because the check in the
        constructor of `Placement` would be slow for thousands of devices.
        """
        placed = object.__new__(Placement)
        vars(placed).update(shard=shard, device=device, tier_assignment=tier_assignment)
        return placed

    for device in {min(devices), max(devices)} if devices else ():
        Placement(shard, device, tier_assignment)
    return list(map(placement, devices))


def by_table(placements: Iterable[Placement], num_tables: int) -> tuple[tuple[Placement, ...], ...]:
    """Group placements by table. Return T = `num_tables` tuples: tuple t has the placements of table t, in the same
    order as in `placements`.
    """
    grouped: list[list[Placement]] = [[] for _ in range(num_tables)]
    for placed in placements:
        grouped[placed.shard.table].append(placed)
    return tuple(map(tuple, grouped))
