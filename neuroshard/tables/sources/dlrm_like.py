"""Synthetic tables with the statistics published for Meta's 856-table data set of 2021.

The statistics match as follows (856 tables, batch 65,536, seed 0; `docs/how-to/statistics.md` has both):

- mean pooling factor 15.8 and number of indices 887 M: within 2%;
- unique rows touched, 128 M: within 5%;
- reuse histogram over all unique rows: every bin within 0.04, total absolute difference below 0.12;
- pooling factors have the heavy tail of the published quantiles (maximum 208) and the published correlation with rows
  (0.14 on logs);
- numbers of rows have the heavy-tailed shape of a published production plan (1,935 tables), but not its scale: the
  small tables of this plan have fewer rows than the 856-table data set touches, so the quantile curve is bent.

Meta's data set of 2022 (788 tables, batch 131,072) is not matched. Its tables have a smaller mean pooling factor, 13.6,
and its lookups repeat rows more often: 788 tables of `dlrm_like` with the same batch size have 16% more lookups and 40%
more unique rows.

The lookups of each table follow a shifted Zipf law; the reuse histogram follows from this law, the number of rows, the
pooling factor and the batch size.
"""

from typing import Annotated

import numpy as np
from msgspec import Meta

from neuroshard.plumbing.arrays import FloatArray, IntArray
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.schema import MAX_TABLES, BatchSize, BytesPerElement, Dim, Seed
from neuroshard.tables.reuse import zipf_reuse
from neuroshard.tables.table import Table

# Quantiles of pooling factors and rows in a published production plan: levels, then values.
_POOLING_QUANTILES = (np.array([0, 0.5, 0.9, 0.95, 0.99, 1]), np.array([1, 5, 18, 48, 149, 208]))
_ROW_QUANTILES = (
    np.array([0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1]),
    np.array([2, 14, 538, 3e3, 5e5, 1e7, 2.5e7, 8e7]),
)
# Constants that were fitted to the published totals and histogram of the 856-table data set.
_POOLING_BEND = 0.70  # exponent on the quantile level
_ROW_BEND = 0.167
_ROW_POWER = 0.827  # exponent on the rows
_ZIPF_MEAN, _ZIPF_SPREAD = 0.978, 0.150
_ZIPF_SHIFT = 0.087  # shift of ranks as a share of the rows, which makes the hottest rows nearly equally hot
_CORRELATION = 0.14  # between the logarithms of rows and pooling factor


@checked
def dlrm_like(
    num_tables: Annotated[int, Meta(ge=1, le=MAX_TABLES)] = 856,
    batch_size: BatchSize = 65536,
    dim: Dim = 16,
    bytes_per_element: BytesPerElement = 4,
    seed: Seed = 0,
) -> tuple[Table, ...]:
    """Return synthetic tables with the statistics of Meta's published data set of 2021.

    The statistics were fitted at a batch of 65,536 samples; the reuse histograms are computed for `batch_size`. At a
    batch of 131,072, 788 of these tables have 40% more unique rows than the 788 tables that Meta published in 2022.

    Args:
        num_tables: number of synthetic tables to make.
        batch_size: global batch size (samples per step over all devices) for the reuse histogram of each table, which
            counts how often a batch looks up the same row.
        dim: number of columns (embedding dim) of every table, a multiple of 4.
        bytes_per_element: 4 | 2: bytes of one weight; 4 is fp32, 2 is fp16.
        seed: seed of the random tables; another seed gives other tables with the same statistics.
    """
    from scipy.special import ndtri  # slow to import: not with this module

    rng = np.random.default_rng(seed)
    levels = _stratified_levels(num_tables, rng)
    pooling = _quantile(_POOLING_QUANTILES, levels[:, 0] ** _POOLING_BEND)
    rows = np.maximum(2, _quantile(_ROW_QUANTILES, levels[:, 1] ** _ROW_BEND) ** _ROW_POWER).astype(np.int64)
    exponents = np.clip(_ZIPF_MEAN + _ZIPF_SPREAD * ndtri(levels[:, 2]), 0, None)
    return tuple(
        Table(
            name=f"like{seed}_{i}",
            rows=int(rows[i]),
            dim=dim,
            pooling_factor=float(pooling[i]),
            reuse=zipf_reuse(
                int(rows[i]), float(batch_size * pooling[i]), float(exponents[i]), float(_ZIPF_SHIFT * rows[i])
            ),
            bytes_per_element=bytes_per_element,
            reuse_batch_size=batch_size,
        )
        for i in range(num_tables)
    )


def _stratified_levels(count: int, rng: np.random.Generator) -> FloatArray:
    """Draw three numbers between 0 and 1 for each of `count` tables, and return the numbers, (count, 3). They are the
    quantile levels of the table's pooling factor, number of rows and Zipf exponent, in this order. For example, the
    number of rows at the level 0.9 exceeds the number of rows of 90% of all tables.

    Each column has every level (i + 0.5) / count once. The first two columns are correlated by `_CORRELATION`.
    """
    normal = rng.standard_normal((count, 3))
    normal[:, 1] = _CORRELATION * normal[:, 0] + np.sqrt(1 - _CORRELATION**2) * normal[:, 1]
    ranks: IntArray = np.argsort(np.argsort(normal, axis=0), axis=0)
    levels: FloatArray = (ranks + 0.5) / count
    return levels


def _quantile(curve: tuple[FloatArray, FloatArray], levels: FloatArray) -> FloatArray:
    """Return the quantiles of a distribution at `levels`: the quantile at the level 0.5 is the median. `curve` has some
    points of the distribution, as two arrays: levels from 0 to 1, and the quantiles at these levels. Between two
    points, the logarithm of the quantile is interpolated linearly.
    """
    values: FloatArray = np.exp(np.interp(levels, curve[0], np.log(curve[1])))
    return values
