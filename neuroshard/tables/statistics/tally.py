"""Counts of lookups of each table in global batches, and the table statistics that follow from the counts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np

from neuroshard.plumbing.arrays import FloatArray, IntArray
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.schema import BytesPerElement, Dim, Name, Rows
from neuroshard.tables.reuse import TOUCHED_ONCE, histogram
from neuroshard.tables.statistics.lookups import Lookups
from neuroshard.tables.statistics.row_counts import RowCounts, SharedRoom, block_counts
from neuroshard.tables.table import NUM_REUSE_BINS, Table

Features = Mapping[str, Lookups]  # lookups of one table in one batch, by the feature that reads the table


@dataclass(frozen=True)
@checked
class TableShape:
    """The name and the size of a table: the fields of `Table` that are known before lookups are counted.

    Attributes:
        name: unique among the tables.
        rows: number of embedding vectors, at most 2^40.
        dim: width of a vector, a multiple of 4, at most 65,536.
        bytes_per_element: 4 for fp32 weights, 2 for fp16.
    """

    name: Name
    rows: Rows
    dim: Dim
    bytes_per_element: BytesPerElement = 4


@dataclass(frozen=True)
class Counted:
    """The amount of data from which the statistics of one table were computed: the number of lookups of each feature
    that reads the table, and the number of rows in the reuse histogram.

    Attributes:
        lookups: number of lookups of each feature that reads the table, in all global batches together.
        rows_kept: number of unique rows whose lookups make up the histogram, summed over global batches.
        rows_share: approximate share of the touched unique rows that were kept; 1 if all of them were.
        reuse_error: (17,) standard error of each share of the histogram because rows were left out; 0 if none were. It
            does not include differences between batches.
    """

    lookups: Mapping[str, int]
    rows_kept: int
    rows_share: float
    reuse_error: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Tally:
    """Counts of the lookups in one table, over one or more global batches.
    The sum `a + b` of two tallies has the counts of the global batches of both tallies.

    Attributes:
        features: number of lookups of each feature.
        blocks: (K,) number of lookups in each block of rows.
        touching: number of batches with at least one lookup.
        kept: number of rows whose lookups were counted exactly, summed over batches.
        touched: number of touched rows, or its estimate if only a share of rows was kept, summed over batches.
        reuse: (17,) sum of the batches' histograms.
        variance: (17,) sum over batches of the squared standard errors of the histogram.
    """

    features: Mapping[str, int]
    blocks: IntArray
    touching: int
    kept: int
    touched: float
    reuse: FloatArray
    variance: FloatArray

    @classmethod
    def of_batch(cls, features: Mapping[str, int], blocks: IntArray, rows: RowCounts) -> Self:
        """Return the tally of one table's lookups in one whole global batch.
        `features` has the number of lookups of each feature, `blocks` (K,) has the number of lookups in each of K
        blocks of rows, and `rows` has the number of lookups of each touched row, or of a random share of these rows.
        """
        counts = rows.counts
        if not len(counts):
            return cls(features, blocks, 0, 0, 0.0, np.zeros(NUM_REUSE_BINS), np.zeros(NUM_REUSE_BINS))
        kept, reuse = len(counts), np.array(histogram(counts))
        likely = (reuse * kept + 0.5) / (kept + 1)  # a bin without kept rows may contain other touched rows
        variance = likely * (1 - likely) / kept * (1 - rows.share)
        return cls(features, blocks, 1, kept, kept / rows.share, reuse, variance)

    def __add__(self, other: Self) -> Self:
        features = {name: count + other.features[name] for name, count in self.features.items()}
        rest = [field.name for field in fields(self) if field.name != "features"]
        return type(self)(features, **{name: getattr(self, name) + getattr(other, name) for name in rest})

    @property
    def lookups(self) -> int:
        """Number of lookups of all features together."""
        return sum(self.features.values())

    def table(self, shape: TableShape, samples: int, batch_size: int) -> Table:
        """Return a `Table` with the name and the size in `shape`, and with statistics that are computed from this
        tally's counts.

        A table without lookups is given one lookup in all samples, and no `row_lookups`.

        Args:
            shape: size of the table.
            samples: number of samples in all global batches of the tally.
            batch_size: number of samples in a global batch.
        """
        size = shape.name, shape.rows, shape.dim
        if not self.lookups:
            return Table(*size, 1 / samples, TOUCHED_ONCE, shape.bytes_per_element, batch_size)
        reuse = tuple((self.reuse / self.touching).tolist())
        spread = tuple((self.blocks / self.lookups).tolist())
        return Table(*size, self.lookups / samples, reuse, shape.bytes_per_element, batch_size, spread)

    @property
    def counted(self) -> Counted:
        """The numbers of lookups and rows from which the table's statistics are computed, and the standard error of
        each share of the reuse histogram.
        """
        error = np.sqrt(self.variance) / max(self.touching, 1)
        share = self.kept / self.touched if self.kept else 1.0
        return Counted(self.features, self.kept, share, tuple(error.tolist()))


class BatchTally:
    """A counter of the lookups in all tables in one global batch; the batch can be added in pieces."""

    def __init__(self, shapes: Sequence[TableShape], row_blocks: int, most_held: int, number: int) -> None:
        """Create an empty counter for the lookups in the global batch with the index `number`.

        If memory for `most_held` rows and lookups is short, the lookups of a random share of rows are counted; the
        number makes this share different in each global batch.
        """
        self._shapes = shapes
        self._blocks = [np.zeros(min(row_blocks, shape.rows), dtype=np.int64) for shape in shapes]
        self._features: list[dict[str, int]] = [{} for _ in shapes]
        self._rows = SharedRoom(len(shapes), most_held, number)
        self.samples = 0

    def add(self, batch: Sequence[Features], first: int, last: int) -> None:
        """Count the lookups of the samples `first` to `last` - 1 of a batch, in addition to the lookups counted so far.
        `batch` has, for each of T tables, a dict from the name of a feature to the lookups of this feature.
        """
        self.samples += last - first
        for table, features in enumerate(batch):
            for name, lookups in features.items():
                counted = self._features[table].setdefault(name, 0)
                self._features[table][name] = counted + int(lookups.offsets[last] - lookups.offsets[first])
                for indices in lookups.chunks(first, last):
                    self._count(table, indices)

    def _count(self, table: int, indices: IntArray) -> None:
        blocks = self._blocks[table]
        if len(blocks):
            blocks += block_counts(indices, self._shapes[table].rows, len(blocks))
        self._rows.add(table, indices)

    def tallies(self) -> list[Tally]:
        """Return the tally of each table, (T,), over all samples that were added."""
        each = zip(self._features, self._blocks, self._rows.tables, strict=True)
        return [Tally.of_batch(features, blocks, rows) for features, blocks, rows in each]
