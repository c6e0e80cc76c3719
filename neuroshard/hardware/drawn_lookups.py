"""Real lookups for a table: indices and lengths that match its pooling factor and reuse histogram.

Drawn where they are used: a million lookups take a GPU a millisecond, and a CPU a tenth of a second. For caches, rows
stay as popular as they are, batch after batch.
"""

from dataclasses import dataclass
from math import gcd

import numpy as np
import torch

from neuroshard.plumbing.arrays import FloatArray
from neuroshard.records.samples import BlockLookups, ComputeSample, RowBlock
from neuroshard.tables import Table
from neuroshard.tables.misses import Popularity
from neuroshard.tables.reuse import BOTTOMS, MEAN_COUNTS, TOPS, TOUCHED_ONCE, histogram

_GOLDEN = 0.618  # of the table: rows that are nearly as hot are far apart
_MOST = 1 << 62  # that a product of two row numbers may be
_FEW = 4  # times as many rows as are drawn, from which on they are drawn with repeats, which are left out


@dataclass(frozen=True, eq=False)
class PopularRows:
    """The rows of a table by how often batches look them up, hottest first, in G groups of the same rate.

    Attributes:
        batch_size: global.
        first, size: (G,) of each group: how many rows are hotter, and how many it has.
        chance: (G,) that a lookup is of a row of this group or a hotter one.
        stride: the row of rank r has the number r * stride, modulo the table's rows.
    """

    table: Table
    batch_size: int
    first: torch.Tensor
    size: torch.Tensor
    chance: torch.Tensor
    stride: int

    @classmethod
    def of(cls, table: Table, batch_size: int, device: torch.device) -> "PopularRows":
        """Rank rows that are as popular as the table's histogram says, at a global batch size."""
        lookups = _lookups(table, batch_size)
        known = np.array([float(table.rows)]), np.array([float(lookups)]), np.array([table.reuse])
        popularity = Popularity.of(*known)
        hottest = popularity.rate.argsort()[::-1]
        size = popularity.rows[0, hottest]
        chance = (size * popularity.rate[hottest]).cumsum()
        first, sizes, chances = (
            torch.from_numpy(values).to(device) for values in (size.cumsum() - size, size, chance / chance[-1])
        )
        return cls(table, batch_size, first, sizes, chances, _stride(table.rows))

    @property
    def lookups(self) -> int:
        """Number of lookups of a batch."""
        return _lookups(self.table, self.batch_size)

    def batch(self, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw indices (L,) and lengths (features x batch_size,) of one more batch, on the generator's device."""
        return self.draw(generator), _lengths(self.table, self.batch_size, generator)

    def draw(self, generator: torch.Generator) -> torch.Tensor:
        """Draw rows, (lookups,), in random order, on the generator's device."""
        group = torch.searchsorted(self.chance, uniform(self.lookups, generator)).clamp(max=len(self.chance) - 1)
        rank = self.first[group] + uniform(self.lookups, generator) * self.size[group]
        return self._numbers(rank.long().clamp(max=self.table.rows - 1))

    def hottest(self, share: float) -> torch.Tensor:
        """Return the hottest rows, so large a share of all, the hottest last."""
        count = max(1, int(share * self.table.rows))
        return self._numbers(torch.arange(count - 1, -1, -1, device=self.first.device))

    def _numbers(self, rank: torch.Tensor) -> torch.Tensor:
        return rank * self.stride % self.table.rows


def _stride(rows: int) -> int:
    """Find a number without a factor in common with `rows`, so that its multiples are all rows."""
    stride = max(1, min(int(_GOLDEN * rows), _MOST // rows))
    while gcd(stride, rows) > 1:
        stride -= 1
    return stride


def rows_for(counts: torch.Tensor, table: Table, hot_first: float, generator: torch.Generator) -> torch.Tensor:
    """Choose unique rows of a table, (U,), to be touched `counts` (U,) times.

    A share `hot_first` of the rows that are touched more than once are the first rows, hottest first; all other rows
    are anywhere. If `hot_first` is 0, each block of the table's `row_lookups` gets its share of the counts.
    """
    if hot_first:
        return _hot_first(counts, table.rows, hot_first, generator)
    if table.row_lookups:
        return _by_share(counts, table, generator)
    return _some_rows(table.rows, len(counts), generator)


def _hot_first(counts: torch.Tensor, rows: int, hot_first: float, generator: torch.Generator) -> torch.Tensor:
    first = (counts > 1) & (uniform(len(counts), generator) < hot_first)
    hottest = torch.where(first, counts, 0).argsort(descending=True, stable=True)
    in_order = int(first.sum())
    others = in_order + _some_rows(max(1, rows - in_order), len(counts) - in_order, generator)
    row_of = torch.empty_like(counts)
    row_of[hottest[:in_order]] = torch.arange(in_order, device=counts.device)
    row_of[hottest[in_order:]] = others
    return row_of


def _by_share(counts: torch.Tensor, table: Table, generator: torch.Generator) -> torch.Tensor:
    """Deal rows out to the blocks in random order; a block without room for all of its own keeps the hottest."""
    shares = torch.tensor(table.row_lookups, dtype=torch.float64, device=counts.device)
    firsts = torch.arange(len(shares) + 1, device=counts.device) * table.rows // len(shares)
    block = _dealt(counts, shares, generator)
    room = firsts.diff()
    kept, over = _kept(counts, block, room)
    free = (room - torch.bincount(block[kept], minlength=len(room))).cumsum(0)
    places = _some_rows(max(1, int(free[-1])), len(over), generator)
    block[over] = torch.searchsorted(free, places, right=True)
    row_of = torch.empty_like(counts)
    for number in torch.unique(block).tolist():
        inside = (block == number).nonzero()[:, 0]
        row_of[inside] = firsts[number] + _some_rows(int(room[number]), len(inside), generator)
    return row_of


def _dealt(counts: torch.Tensor, shares: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Choose each row's block, (U,): of all rows in a random order, each block gets those that make up its share."""
    order = torch.randperm(len(counts), generator=generator, device=counts.device)
    dealt = counts[order].to(torch.float64)
    middles = (dealt.cumsum(0) - dealt / 2) / dealt.sum()
    block = torch.empty_like(counts)
    block[order] = torch.searchsorted(shares.cumsum(0) / shares.sum(), middles).clamp(max=len(shares) - 1)
    return block


def _kept(counts: torch.Tensor, block: torch.Tensor, room: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Tell which rows, by their place, their blocks have room for, and which they haven't."""
    hottest = counts.argsort(descending=True, stable=True)
    order = hottest[block[hottest].argsort(stable=True)]
    sizes = torch.bincount(block, minlength=len(room))
    place = torch.arange(len(counts), device=counts.device) - (sizes.cumsum(0) - sizes)[block[order]]
    fits = place < room[block[order]]
    return order[fits], order[~fits]


def _some_rows(rows: int, count: int, generator: torch.Generator) -> torch.Tensor:
    """Draw (count,) unique rows in random order."""
    if rows >= _FEW * count:
        drawn: torch.Tensor = torch.unique(
            torch.randint(rows, (2 * count,), generator=generator, device=generator.device)
        )
        if len(drawn) >= count:
            return drawn[torch.randperm(len(drawn), generator=generator, device=generator.device)[:count]]
    return torch.randperm(rows, generator=generator, device=generator.device)[:count]


def uniform(count: int, generator: torch.Generator) -> torch.Tensor:
    """Draw (count,) uniform random numbers in [0, 1), float64."""
    return torch.rand(count, generator=generator, device=generator.device, dtype=torch.float64)


def draw_lookups(
    table: Table, batch_size: int, generator: torch.Generator, hot_first: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw indices (L,) and lengths (features x batch_size,), feature by feature.

    Lengths sum to L = batch_size x pooling factor, rounded, at least 1; each is the floor or the ceiling of their mean.
    A share `hot_first` of the hot rows are the first rows, hottest first; the other hot rows are random. If `hot_first`
    is 0 and the table has `row_lookups`, its blocks of rows get their shares of the lookups. Indices and lengths are
    int64 on the generator's device.
    """
    lookups = _lookups(table, batch_size)
    counts = draw_counts(table, lookups, generator)
    indices = rows_for(counts, table, hot_first, generator).repeat_interleave(counts)
    order = torch.randperm(lookups, generator=generator, device=generator.device)
    return indices[order], _lengths(table, batch_size, generator)


def _lookups(table: Table, batch_size: int) -> int:
    return max(1, round(batch_size * table.pooling_factor))


def _lengths(table: Table, batch_size: int, generator: torch.Generator) -> torch.Tensor:
    """Draw lengths, (features x batch_size,), floors and ceilings of the mean."""
    bags, lookups = table.features * batch_size, _lookups(table, batch_size)
    lengths = torch.full((bags,), lookups // bags, device=generator.device)
    more = torch.randperm(bags, generator=generator, device=generator.device)[: lookups % bags]
    lengths[more] += 1
    return lengths


def draw_batch(sample: ComputeSample, generator: torch.Generator) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Draw the indices and lengths that the sample's device gets of each table, (n,): all, or those in its blocks."""
    drawn = [draw_lookups(table, sample.batch_size, generator, sample.hot_first) for table in sample.tables]
    return held(sample, drawn)


def held(
    sample: ComputeSample, drawn: list[tuple[torch.Tensor, torch.Tensor]]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Select what the sample's device gets of lookups in whole tables."""
    if not sample.blocks:
        return drawn
    return [in_block(*lookups, block) for lookups, block in zip(drawn, sample.blocks, strict=True)]


def in_block(indices: torch.Tensor, lengths: torch.Tensor, block: RowBlock) -> tuple[torch.Tensor, torch.Tensor]:
    """Select the lookups of a whole table (L,), (N,) that fall into a block of its rows, as its device gets them.

    Indices (K,) count from the block's first row; lengths (N,) sum to K and may be 0. Order is kept.
    """
    inside = (indices >= block.row) & (indices < block.row_end)
    samples = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)
    return indices[inside] - block.row, torch.bincount(samples[inside], minlength=len(lengths))


def seen_in(indices: torch.Tensor) -> BlockLookups:
    """Sum up lookups (K,) in a block: how many, and their reuse histogram."""
    counts = torch.unique(indices, return_counts=True)[1].cpu().numpy()
    return BlockLookups(len(indices), histogram(counts) if len(counts) else TOUCHED_ONCE)


def draw_counts(table: Table, lookups: int, generator: torch.Generator) -> torch.Tensor:
    """Draw counts (U,) for U unique rows that follow the table's histogram and sum to `lookups`, with U <= rows.

    Within a bin, counts are uniform. Where histogram, rows and lookups contradict each other, rows and lookups win:
    counts are scaled up (too few rows) or the number of unique rows is cut.
    """
    shares = np.asarray(table.reuse)
    mean_count = (shares * MEAN_COUNTS).sum() / shares.sum()
    unique = int(np.clip(round(lookups / mean_count), 1, min(table.rows, lookups)))
    cumulative = _on(shares.cumsum() / shares.sum(), generator)
    bins = torch.searchsorted(cumulative, uniform(unique, generator)).clamp(max=len(shares) - 1)
    bottom, top = _on(BOTTOMS.astype(np.float64), generator)[bins], _on(TOPS.astype(np.float64), generator)[bins]
    counts = (bottom + 1 + (uniform(unique, generator) * (top - bottom)).floor()).clamp(max=top)
    return _scaled_to(counts, lookups, generator)


def _scaled_to(counts: torch.Tensor, total: int, generator: torch.Generator) -> torch.Tensor:
    """Scale counts to whole numbers near them, all at least 1, that sum to `total` >= len(counts)."""
    spare, extra = total - len(counts), counts - 1
    if not bool(extra.any()):
        extra = torch.ones_like(counts)
    exact = extra * (spare / extra.sum())
    scaled = exact.floor()
    missing = spare - int(scaled.sum())
    order = torch.argsort(exact - scaled + uniform(len(counts), generator) * 1e-6, descending=True)
    scaled[order[:missing]] += 1
    return scaled.long() + 1


def _on(values: FloatArray, generator: torch.Generator) -> torch.Tensor:
    return torch.from_numpy(values).to(generator.device)
