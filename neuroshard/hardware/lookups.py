"""Real lookups for a table: indices and lengths that match its pooling factor and reuse histogram."""

import numpy as np

from neuroshard.arrays import IntArray
from neuroshard.tables import Table
from neuroshard.tables.reuse import draw_counts


def draw_lookups(table: Table, batch_size: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Indices (L,) and lengths (batch_size,), summing to L = batch_size x pooling factor, rounded, at least 1.

    Each sample gets the pooling factor's floor or ceiling; which rows are the hot ones is random.
    """
    lookups = max(1, round(batch_size * table.pooling_factor))
    counts = draw_counts(table.reuse, table.rows, lookups, rng)
    rows = rng.choice(table.rows, size=len(counts), replace=False, shuffle=False)
    indices = np.repeat(rows, counts)
    rng.shuffle(indices)
    lengths = np.full(batch_size, lookups // batch_size)
    lengths[rng.permutation(batch_size)[: lookups % batch_size]] += 1
    return indices, lengths
