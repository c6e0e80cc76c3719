"""Lookups of rows that stay as popular as they are, batch after batch: what caches are measured with."""

from dataclasses import dataclass
from math import gcd

import numpy as np
import torch

from neuroshard.hardware.drawn_rows import uniform
from neuroshard.tables import Table
from neuroshard.tables.misses import Popularity

_GOLDEN = 0.618  # of the table: neighbours by how hot they are lie far apart
_MOST = 1 << 62  # that a product of two row numbers may be


@dataclass(frozen=True, eq=False)
class PopularRows:
    """The rows of a table by how often they are looked up, hottest first, in G groups of the same rate.

    Attributes:
        lookups: of a batch.
        first, size: (G,) of each group: how many rows are hotter, and how many it has.
        chance: (G,) that a lookup is of a row of this group or a hotter one.
        stride: the row of rank r has the number r * stride, modulo the table's rows.
    """

    rows: int
    lookups: int
    first: torch.Tensor
    size: torch.Tensor
    chance: torch.Tensor
    stride: int

    @classmethod
    def of(cls, table: Table, batch_size: int, device: torch.device) -> "PopularRows":
        """As popular as the table's histogram says, at a global batch size."""
        lookups = max(1, round(batch_size * table.pooling_factor))
        known = np.array([float(table.rows)]), np.array([float(lookups)]), np.array([table.reuse])
        popularity = Popularity.of(*known)
        hottest = popularity.rate.argsort()[::-1]
        size = popularity.rows[0, hottest]
        chance = (size * popularity.rate[hottest]).cumsum()
        first, sizes, chances = (
            torch.from_numpy(values).to(device) for values in (size.cumsum() - size, size, chance / chance[-1])
        )
        return cls(table.rows, lookups, first, sizes, chances, _stride(table.rows))

    def draw(self, generator: torch.Generator) -> torch.Tensor:
        """(lookups,) rows, in random order, on the generator's device."""
        group = torch.searchsorted(self.chance, uniform(self.lookups, generator)).clamp(max=len(self.chance) - 1)
        rank = self.first[group] + uniform(self.lookups, generator) * self.size[group]
        return self._numbers(rank.long().clamp(max=self.rows - 1))

    def hottest(self, share: float) -> torch.Tensor:
        """Rows that make up so large a share of all, the hottest last."""
        count = max(1, int(share * self.rows))
        return self._numbers(torch.arange(count - 1, -1, -1, device=self.first.device))

    def _numbers(self, rank: torch.Tensor) -> torch.Tensor:
        return rank * self.stride % self.rows


def _stride(rows: int) -> int:
    """A number without a factor in common with `rows`, so that its multiples are all rows."""
    stride = max(1, min(int(_GOLDEN * rows), _MOST // rows))
    while gcd(stride, rows) > 1:
        stride -= 1
    return stride
