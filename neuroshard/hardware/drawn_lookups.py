"""Real lookups for a table: indices and lengths that match its pooling factor and reuse histogram.

Drawn where they are used: a million lookups take a GPU a millisecond, and a CPU a tenth of a second.
"""

from collections.abc import Sequence

import numpy as np
import torch

from neuroshard.hardware.drawn_rows import rows_for, uniform
from neuroshard.hardware.popular import PopularRows
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.records.samples import BlockLookups, ComputeSample, RowBlock
from neuroshard.tables import Table
from neuroshard.tables.reuse import BOTTOMS, MEAN_COUNTS, TOPS, histogram
from neuroshard.tables.table import NUM_REUSE_BINS

_TOUCHED_ONCE = (1.0, *(0.0,) * (NUM_REUSE_BINS - 1))


def draw_lookups(
    table: Table, batch_size: int, generator: torch.Generator, hot_first: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices (L,) and lengths (features x batch_size,), feature by feature.

    Lengths sum to L = batch_size x pooling factor, rounded, at least 1; each is the floor or the ceiling of their mean.
    Which rows are the hot ones is random, but for a share
    `hot_first` of them: these are the table's first rows, hottest first. Where that is 0 and the table knows its
    `row_lookups`, its blocks of rows get their shares of the lookups. Both are int64 on the generator's device.
    """
    lookups = max(1, round(batch_size * table.pooling_factor))
    counts = draw_counts(table, lookups, generator)
    indices = rows_for(counts, table, hot_first, generator).repeat_interleave(counts)
    order = torch.randperm(lookups, generator=generator, device=generator.device)
    return indices[order], _lengths(table, batch_size, lookups, generator)


def _lengths(table: Table, batch_size: int, lookups: int, generator: torch.Generator) -> torch.Tensor:
    """(features x batch_size,) floors and ceilings of the mean, of so many lookups."""
    bags = table.features * batch_size
    lengths = torch.full((bags,), lookups // bags, device=generator.device)
    more = torch.randperm(bags, generator=generator, device=generator.device)[: lookups % bags]
    lengths[more] += 1
    return lengths


def draw_batch(sample: ComputeSample, generator: torch.Generator) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(n,) indices and lengths that the sample's device gets of each table: all lookups, or those in its blocks."""
    drawn = [draw_lookups(table, sample.batch_size, generator, sample.hot_first) for table in sample.tables]
    return _held(sample, drawn)


def draw_again(
    sample: ComputeSample, popular: Sequence[PopularRows], generator: torch.Generator
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The same of one more batch, in which the same rows of the sample's tables (n,) are popular."""
    pairs = zip(sample.tables, popular, strict=True)
    return _held(sample, [popular_lookups(table, sample.batch_size, rows, generator) for table, rows in pairs])


def popular_lookups(
    table: Table, batch_size: int, rows: PopularRows, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices (L,) and lengths (features x batch_size,) of a batch in which these rows are as popular as they are."""
    return rows.draw(generator), _lengths(table, batch_size, rows.lookups, generator)


def _held(
    sample: ComputeSample, drawn: list[tuple[torch.Tensor, torch.Tensor]]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What the sample's device gets of lookups in whole tables."""
    if not sample.blocks:
        return drawn
    return [in_block(*lookups, block) for lookups, block in zip(drawn, sample.blocks, strict=True)]


def in_block(indices: torch.Tensor, lengths: torch.Tensor, block: RowBlock) -> tuple[torch.Tensor, torch.Tensor]:
    """The lookups of a whole table (L,), (N,) that fall into a block of its rows, as the block's device gets them.

    Indices (K,) count from the block's first row; lengths (N,) sum to K and may be 0. Order is kept.
    """
    inside = (indices >= block.row) & (indices < block.row_end)
    samples = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)
    return indices[inside] - block.row, torch.bincount(samples[inside], minlength=len(lengths))


def seen_in(indices: torch.Tensor) -> BlockLookups:
    """What lookups (K,) in a block amount to."""
    counts = torch.unique(indices, return_counts=True)[1].cpu().numpy()
    return BlockLookups(len(indices), histogram(counts) if len(counts) else _TOUCHED_ONCE)


def draw_counts(table: Table, lookups: int, generator: torch.Generator) -> torch.Tensor:
    """Counts (U,) for U unique rows that follow the table's histogram and sum to `lookups`, with U <= rows.

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
    """Whole numbers near `counts`, all at least 1, that sum to `total` >= len(counts)."""
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
