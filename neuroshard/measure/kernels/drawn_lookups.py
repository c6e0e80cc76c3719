"""Draw lookups for a table: indices and lengths that match the table's pooling factor and reuse histogram.

Lookups are drawn on the device that uses them: a million lookups take a GPU a millisecond, and a CPU a tenth of a
second. For measurements with caches, the popularity of each row stays the same in all batches.
"""

from dataclasses import dataclass
from math import gcd

import numpy as np
import torch

from neuroshard.measure.store.samples import BlockLookups, ComputeSample, RowBlock
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.tables import Table
from neuroshard.tables.misses import Popularity
from neuroshard.tables.reuse import BOTTOMS, MEAN_COUNTS, TOPS, TOUCHED_ONCE, histogram

_GOLDEN = 0.618  # stride as a share of the table: rows of similar popularity get distant numbers
_MOST = 1 << 62  # maximum product of two row numbers
# From this ratio of rows to drawn rows on, draw with repeats and drop the repeats.
_FEW = 4


@dataclass(frozen=True, eq=False)
class PopularRows:
    """The rows of a table in order of popularity: the hottest (most often looked-up) row is first.
    The rows are divided into G groups, and all rows of a group have the same lookup rate.

    Attributes:
        table: the table.
        batch_size: global batch size.
        first, size: (G,) number of hotter rows, and number of rows, of each group.
        chance: (G,) probability that a lookup reads a row of this group or of a hotter group.
        stride: the row of popularity rank r has the number r * stride, modulo the table's rows.
    """

    table: Table
    batch_size: int
    first: torch.Tensor
    size: torch.Tensor
    chance: torch.Tensor
    stride: int

    @classmethod
    def of(cls, table: Table, batch_size: int, device: torch.device) -> "PopularRows":
        """Return the rows of a table in order of popularity.
        The popularity of rows is computed from the table's reuse histogram and the number of lookups in a global batch.
        """
        lookups = _lookups(table, batch_size)
        statistics = np.array([float(table.rows)]), np.array([float(lookups)]), np.array([table.reuse])
        popularity = Popularity.of(*statistics)
        hottest = popularity.rate.argsort()[::-1]
        size = popularity.rows[0, hottest]
        chance = (size * popularity.rate[hottest]).cumsum()
        first, sizes, chances = (
            torch.from_numpy(values).to(device) for values in (size.cumsum() - size, size, chance / chance[-1])
        )
        return cls(table, batch_size, first, sizes, chances, _stride(table.rows))

    @property
    def lookups(self) -> int:
        """The number of lookups in the table per batch."""
        return _lookups(self.table, self.batch_size)

    def batch(self, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw the lookups of one more batch: indices (L,) and lengths (features x batch_size,).
        Both are on the generator's device.
        """
        return self.draw(generator), _lengths(self.table, self.batch_size, generator)

    def draw(self, generator: torch.Generator) -> torch.Tensor:
        """Draw the row number of every lookup of a batch, (lookups,), in random order, on the generator's device."""
        group = torch.searchsorted(self.chance, uniform(self.lookups, generator)).clamp(max=len(self.chance) - 1)
        rank = self.first[group] + uniform(self.lookups, generator) * self.size[group]
        return self._numbers(rank.long().clamp(max=self.table.rows - 1))

    def hottest(self, share: float) -> torch.Tensor:
        """Return the row numbers of the hottest (most often looked-up) rows, with the hottest row last.
        `share` is the fraction of the table's rows to return; the result has at least one row.
        """
        count = max(1, int(share * self.table.rows))
        return self._numbers(torch.arange(count - 1, -1, -1, device=self.first.device))

    def _numbers(self, rank: torch.Tensor) -> torch.Tensor:
        return rank * self.stride % self.table.rows


def _stride(rows: int) -> int:
    """Return a stride that has no common divisor with `rows`.
    Therefore, the multiples of the stride, modulo `rows`, reach every row.
    """
    stride = max(1, min(int(_GOLDEN * rows), _MOST // rows))
    while gcd(stride, rows) > 1:
        stride -= 1
    return stride


def rows_for(counts: torch.Tensor, table: Table, hot_first: float, generator: torch.Generator) -> torch.Tensor:
    """Draw a different row number for each of U looked-up rows of a table, and return these numbers, (U,).
    `counts` (U,) has the number of lookups of each looked-up row. `hot_first`, from 0 to 1, is the fraction of hot rows
    (rows with more than one lookup) that are at the beginning of the table.

    If `hot_first` is above 0, this fraction of the rows with more than one lookup get the first row numbers, hottest
    first, and all other rows get higher numbers. If `hot_first` is 0 and the table has `row_lookups`, each block of
    `row_lookups` gets its share of the lookups. Otherwise, all row numbers are uniform.
    """
    if hot_first:
        return _hot_first(counts, table.rows, hot_first, generator)
    if table.row_lookups:
        return _by_share(counts, table, generator)
    return _some_rows(table.rows, len(counts), generator)


def _hot_first(counts: torch.Tensor, rows: int, hot_first: float, generator: torch.Generator) -> torch.Tensor:
    """Draw a different row number for each of U looked-up rows, (U,), with hot rows at the beginning of the table.
    `counts` (U,) has the number of lookups of each row. A row is hot if the row has more than one lookup. `hot_first`
    is the probability that a hot row is at the beginning.

    Each hot row is chosen with this probability. The chosen rows get the row numbers 0, 1, ..., with the hottest
    row first. All other rows get random higher row numbers.
    """
    first = (counts > 1) & (uniform(len(counts), generator) < hot_first)
    hottest = torch.where(first, counts, 0).argsort(descending=True, stable=True)
    in_order = int(first.sum())
    others = in_order + _some_rows(max(1, rows - in_order), len(counts) - in_order, generator)
    row_of = torch.empty_like(counts)
    row_of[hottest[:in_order]] = torch.arange(in_order, device=counts.device)
    row_of[hottest[in_order:]] = others
    return row_of


def _by_share(counts: torch.Tensor, table: Table, generator: torch.Generator) -> torch.Tensor:
    """Draw a different row number for each of U looked-up rows, (U,), such that the lookups match `table.row_lookups`.
    The table is divided into blocks with about equal numbers of rows, and `table.row_lookups` has the share of all
    lookups that each block should get. `counts` (U,) has the number of lookups of each looked-up row.

    Blocks get rows in random order. If a block has too few rows for its share, the block keeps the hottest rows, and
    the other rows go to blocks that have room.
    """
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
    """Assign each of U rows to a block of rows, and return the index of each row's block, (U,).
    `counts` (U,) has the number of lookups of each row. `shares` has the share of all lookups that each block should
    get; the result matches these shares approximately.

    The rows are put in random order. The first block gets the first rows in this order, the second block gets the next
    rows, and so on.
    """
    order = torch.randperm(len(counts), generator=generator, device=counts.device)
    dealt = counts[order].to(torch.float64)
    middles = (dealt.cumsum(0) - dealt / 2) / dealt.sum()
    block = torch.empty_like(counts)
    block[order] = torch.searchsorted(shares.cumsum(0) / shares.sum(), middles).clamp(max=len(shares) - 1)
    return block


def _kept(counts: torch.Tensor, block: torch.Tensor, room: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the indices of the rows that fit into their blocks, and the indices of the rows that do not fit.
    Each of U rows was assigned to a block: `block` (U,) has the index of each row's block. `room` has the maximum
    number of rows of each block. If a block has too many rows, the block keeps the rows with the most lookups. `counts`
    (U,) has the number of lookups of each row.
    """
    hottest = counts.argsort(descending=True, stable=True)
    order = hottest[block[hottest].argsort(stable=True)]
    sizes = torch.bincount(block, minlength=len(room))
    place = torch.arange(len(counts), device=counts.device) - (sizes.cumsum(0) - sizes)[block[order]]
    fits = place < room[block[order]]
    return order[fits], order[~fits]


def _some_rows(rows: int, count: int, generator: torch.Generator) -> torch.Tensor:
    """Draw `count` different row numbers below `rows`, (count,), in random order."""
    if rows >= _FEW * count:
        drawn: torch.Tensor = torch.unique(
            torch.randint(rows, (2 * count,), generator=generator, device=generator.device)
        )
        if len(drawn) >= count:
            return drawn[torch.randperm(len(drawn), generator=generator, device=generator.device)[:count]]
    return torch.randperm(rows, generator=generator, device=generator.device)[:count]


def uniform(count: int, generator: torch.Generator) -> torch.Tensor:
    """Draw `count` uniform random numbers in [0, 1), as a float64 tensor (count,)."""
    return torch.rand(count, generator=generator, device=generator.device, dtype=torch.float64)


def draw_lookups(
    table: Table, batch_size: int, generator: torch.Generator, hot_first: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw the lookups of a batch in one table: the indices (L,) and the lengths (features x batch_size,).
    Both are ordered by feature.

    Lengths sum to L = batch_size x pooling factor, rounded, at least 1; each length is the floor or the ceiling of the
    mean. A share `hot_first` of the hot rows are the first rows, hottest first; the other hot rows are random. If
    `hot_first` is 0 and the table has `row_lookups`, its blocks of rows get their shares of the lookups. Indices and
    lengths are int64 on the generator's device.
    """
    lookups = _lookups(table, batch_size)
    counts = draw_counts(table, lookups, generator)
    indices = rows_for(counts, table, hot_first, generator).repeat_interleave(counts)
    order = torch.randperm(lookups, generator=generator, device=generator.device)
    return indices[order], _lengths(table, batch_size, generator)


def _lookups(table: Table, batch_size: int) -> int:
    return max(1, round(batch_size * table.pooling_factor))


def _lengths(table: Table, batch_size: int, generator: torch.Generator) -> torch.Tensor:
    """Draw the lengths of a batch: the number of lookups of each feature in each sample, (features x batch_size,).
    The lengths sum to the number of lookups of the batch. Each length is the mean length, rounded down or up.
    """
    bags, lookups = table.features * batch_size, _lookups(table, batch_size)
    lengths = torch.full((bags,), lookups // bags, device=generator.device)
    more = torch.randperm(bags, generator=generator, device=generator.device)[: lookups % bags]
    lengths[more] += 1
    return lengths


def draw_batch(sample: ComputeSample, generator: torch.Generator) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Draw the lookups that the sample's device receives: the indices and lengths for each of n tables.
    Of a row-wise table, the device receives only the lookups of its row block.
    """
    drawn = [draw_lookups(table, sample.batch_size, generator, sample.hot_first) for table in sample.tables]
    return held(sample, drawn)


def held(
    sample: ComputeSample, drawn: list[tuple[torch.Tensor, torch.Tensor]]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the lookups that the sample's device receives.
    `drawn` has the lookups in whole tables. Of the lookups in a row-wise table, the device receives only the lookups in
    its row block.
    """
    if not sample.blocks:
        return drawn
    return [in_block(*lookups, block) for lookups, block in zip(drawn, sample.blocks, strict=True)]


def in_block(indices: torch.Tensor, lengths: torch.Tensor, block: RowBlock) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the lookups of a table that fall into one row block, as indices and lengths.
    `indices` (L,) has the rows of all L lookups in the table. `lengths` (N,) has the number of lookups of each feature
    and sample, N = features x batch size.

    The indices (K,) count from the block's first row; the lengths (N,) sum to K and may be 0. The order is kept.
    """
    inside = (indices >= block.row) & (indices < block.row_end)
    samples = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)
    return indices[inside] - block.row, torch.bincount(samples[inside], minlength=len(lengths))


def seen_in(indices: torch.Tensor) -> BlockLookups:
    """Return the number of lookups in a row block, and the reuse histogram of these lookups.
    `indices` (K,) has the row of each lookup.
    """
    counts = torch.unique(indices, return_counts=True)[1].cpu().numpy()
    return BlockLookups(len(indices), histogram(counts) if len(counts) else TOUCHED_ONCE)


def draw_counts(table: Table, lookups: int, generator: torch.Generator) -> torch.Tensor:
    """Draw how often a batch looks up each of U different rows of a table, according to the table's reuse histogram.
    Return the number of lookups of each row, (U,). The numbers sum to `lookups`, and U is at most the number of rows in
    the table.

    Within a bin, counts are uniform. If histogram, rows and lookups contradict each other, rows and lookups have
    priority: counts are scaled up (too few rows), or the number of unique rows is reduced.
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
    """Return the counts, scaled to whole numbers of at least 1 that sum to `total`.
    `total` must be at least len(counts).
    """
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
