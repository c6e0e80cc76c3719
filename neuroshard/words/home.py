"""Where weights are kept: the tiers of memory, and a table's home in one."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError, unknown_name
from neuroshard.plumbing.schema import CacheShare


class Word(StrEnum):
    """One of a few words that settings and files may hold; any other is an error that names the nearest."""

    @classmethod
    def _missing_(cls, value: object) -> Self:
        raise unknown_name(cls.__name__.lower(), str(value), [word.value for word in cls])


class Tier(Word):
    """Where a table's weights are kept, and trained.

    Attributes:
        DEVICE: in the device's own memory.
        CACHED: in the host's memory; a cache on the device holds the rows that were looked up last.
        HOST: in the host's memory, read over the link at every lookup.
    """

    DEVICE = "device"
    CACHED = "cached"
    HOST = "host"


TIERS = tuple(Tier)  # in the order of whatever has one number for each


@dataclass(frozen=True, order=True)
@checked
class Home:
    """The memory that holds a table: one for all of its shards.

    Attributes:
        tier: which.
        cached: share of each shard's rows that the device's cache has room for; None unless the tier is "cached".
    """

    tier: Tier = Tier.DEVICE
    cached: CacheShare | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tier", Tier(self.tier))
        if (self.cached is None) is (self.tier is Tier.CACHED):
            raise UserError(
                f"tier {self.tier.value!r} with cached={self.cached}: tables in tier 'cached' have a share of rows "
                "there, above 0 and at most 1, and others have none"
            )

    @property
    def cached_share(self) -> float:
        """Share of the rows that the device holds."""
        return float(self.tier is Tier.DEVICE) if self.cached is None else self.cached

    def __str__(self) -> str:
        return self.tier.value if self.cached is None else f"{self.tier.value} {self.cached:.3g}"


ON_DEVICE = Home()
DEFAULT_CACHED = 0.2  # of a table's rows, where nobody says how many: FBGEMM's own choice
