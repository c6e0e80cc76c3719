"""What is counted of tables in whole batches, and the statistics that follow."""

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

Features = Mapping[str, Lookups]  # of one table in one batch


@dataclass(frozen=True)
@checked
class TableShape:
    """The fields of a `Table` that are known before its lookups are counted.

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
    """The counts behind the statistics of one table.

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
    """Counts of one table in some global batches; tallies of other batches can be added.

    Attributes:
        features: number of lookups of each feature.
        blocks: (K,) lookups in each block of rows.
        touching: number of batches with any lookup.
        kept: number of rows whose lookups were counted one by one.
        touched: number of touched rows, or an estimate of it.
        reuse: (17,) sum of the batches' histograms.
        variance: (17,) sum of the squares of their standard errors.
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
        """Tally one table's lookups in a whole global batch."""
        counts = rows.counts
        if not len(counts):
            return cls(features, blocks, 0, 0, 0.0, np.zeros(NUM_REUSE_BINS), np.zeros(NUM_REUSE_BINS))
        kept, reuse = len(counts), np.array(histogram(counts))
        likely = (reuse * kept + 0.5) / (kept + 1)  # a bin without any kept row isn't known to be empty
        variance = likely * (1 - likely) / kept * (1 - rows.share)
        return cls(features, blocks, 1, kept, kept / rows.share, reuse, variance)

    def __add__(self, other: Self) -> Self:
        features = {name: count + other.features[name] for name, count in self.features.items()}
        rest = [field.name for field in fields(self) if field.name != "features"]
        return type(self)(features, **{name: getattr(self, name) + getattr(other, name) for name in rest})

    @property
    def lookups(self) -> int:
        """Lookups of all features together."""
        return sum(self.features.values())

    def table(self, shape: TableShape, samples: int, batch_size: int) -> Table:
        """Make the table, from global batches of `batch_size` that have so many samples together.

        One that is never looked up counts as looked up once in all of them, and nothing is known of its rows.
        """
        its = shape.name, shape.rows, shape.dim
        if not self.lookups:
            return Table(*its, 1 / samples, TOUCHED_ONCE, shape.bytes_per_element, batch_size)
        reuse = tuple((self.reuse / self.touching).tolist())
        spread = tuple((self.blocks / self.lookups).tolist())
        return Table(*its, self.lookups / samples, reuse, shape.bytes_per_element, batch_size, spread)

    @property
    def counted(self) -> Counted:
        """What the table's statistics were counted from, for people to read."""
        error = np.sqrt(self.variance) / max(self.touching, 1)
        share = self.kept / self.touched if self.kept else 1.0
        return Counted(self.features, self.kept, share, tuple(error.tolist()))


class BatchTally:
    """A counter of one global batch, which comes in pieces."""

    def __init__(self, shapes: Sequence[TableShape], row_blocks: int, most_held: int, number: int) -> None:
        """Begin to count the global batch of this `number`; where room is short, each has other rows."""
        self._shapes = shapes
        self._blocks = [np.zeros(min(row_blocks, shape.rows), dtype=np.int64) for shape in shapes]
        self._features: list[dict[str, int]] = [{} for _ in shapes]
        self._rows = SharedRoom(len(shapes), most_held, number)
        self.samples = 0

    def add(self, batch: Sequence[Features], first: int, last: int) -> None:
        """Count the lookups of samples `first` to `last` - 1 of a batch, (T,) features."""
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
        """Tally what has been counted of each table, (T,)."""
        each = zip(self._features, self._blocks, self._rows.tables, strict=True)
        return [Tally.of_batch(features, blocks, rows) for features, blocks, rows in each]
