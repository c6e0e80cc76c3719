"""Functions that count the lookups in training batches or in a trace, and return tables with the counted statistics.
For training batches, the memory for the counts can be limited.
"""

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from typing import Annotated, Any, TypeVar

import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike

from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import NeuroShardWarning, UserError
from neuroshard.plumbing.messages import Message, number_of
from neuroshard.plumbing.progress import progress_bar
from neuroshard.plumbing.schema import (
    BatchSize,
    BytesPerElement,
    Dim,
    Name,
    Rows,
    Size,
    readable_bytes,
    shown,
    to_bytes,
)
from neuroshard.tables.reuse import histogram
from neuroshard.tables.statistics.lookups import Lookups, Splits
from neuroshard.tables.statistics.measured import MeasuredTables
from neuroshard.tables.statistics.row_counts import BYTES_PER_ROW, FEWEST_ROWS, block_counts
from neuroshard.tables.statistics.tally import BatchTally, Features, TableShape, Tally
from neuroshard.tables.table import MAX_ROW_BLOCKS, Table, shared_name

MAX_BYTES = "1GiB"  # default of max_bytes
_FIXED_BYTES = 1 << 22  # memory for the temporary arrays of the lookups that are counted together
_BYTES_PER_BLOCK = 24  # memory for the counts of one block of rows
RowBlocks = Annotated[int, Meta(ge=0, le=MAX_ROW_BLOCKS)]
_T = TypeVar("_T")


@checked
def tables_from_batches(
    shapes: Sequence[TableShape],
    batches: Iterable[Mapping[str, tuple[Any, Any]]],
    global_batch_size: BatchSize,
    splits: Splits = "offsets",
    row_blocks: RowBlocks = MAX_ROW_BLOCKS,
    max_bytes: Size = MAX_BYTES,
) -> MeasuredTables:
    """Count the lookups in the training batches of a job, and return tables with the counted statistics.
    The statistics are pooling factors, reuse histograms and the shares of the lookups in equal blocks of rows.

    Batches are joined and cut, in order, to global batches; if each batch is for one of D devices, D batches make a
    global batch. A histogram is the mean over all global batches that touch the table. Samples after the last whole
    global batch are left out. If there is no whole global batch, the tables are made for the number of samples that
    there are, with a warning. A table without lookups is given one lookup in all samples, with a warning.

    Args:
        shapes: the tables.
        batches: any number of batches, which are read one by one. A batch maps the name of every table to a pair:
            indices (L,) of rows, and `splits`, which divide the indices into B samples. Both are NumPy arrays, torch
            tensors or lists. Other names in a batch are ignored.
        global_batch_size: samples per step over all devices, for which the histograms are made.
        splits: "offsets": (B + 1,), from 0 to L; "lengths": (B,), lookups of each sample.
        row_blocks: number of equal blocks of rows in `row_lookups`, 0 to 1,024, at most the rows of a table.
        max_bytes: maximum memory in addition to the batch itself: a number, or text such as "4GiB". If the rows that a
            global batch touches do not fit, the lookups of a random share of these rows are counted;
            `Counted.reuse_error` is the error that this may cause.

    Raises:
        UserError: there is no sample; a batch lacks a table, or its indices and splits contradict each other; an index
            is outside its table; or `max_bytes` is too small for the number of tables.
    """
    with watched(batches) as seen:
        plain = (_read(shapes, batch, number, splits) for number, batch in enumerate(seen))
        return count_batches(shapes, plain, global_batch_size, row_blocks, max_bytes)


def _read(shapes: Sequence[TableShape], batch: object, number: int, splits: Splits) -> list[Features]:
    """Check the lookups in a batch, and return one dict for each of T tables, as a list. A dict maps the names of a
    table's features to the lookups of the features. Here, each table has a single feature, which has the name of the
    table, such as {"user": lookups} for the table "user".
    """
    if not isinstance(batch, Mapping):
        raise UserError(
            "batch-not-mapping",
            f"the batch is {shown(batch)}, not a mapping",
            where=f"batch {number}",
            limit=f"a batch maps the name of each table to (indices, {splits})",
            remedy=f"Give a dict such as {{'user': (indices, {splits})}}",
        )
    features: list[Features] = []
    for shape in shapes:
        where, pair = f"batch {number}, table {shape.name!r}", batch.get(shape.name)
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise UserError(
                "batch-table-pair",
                "the batch has no entry for the table" if pair is None else f"the entry is {shown(pair)}, not a pair",
                where=where,
                limit=f"a batch has (indices, {splits}) for each table",
                remedy=f"Give (indices, {splits}) for the table in every batch",
            )
        indices, ends = pair
        features.append({shape.name: Lookups.of(indices, ends, splits, shape.rows, where)})
    return features


@contextmanager
def watched(batches: Iterable[_T]) -> Iterator[Iterator[_T]]:
    """Yield an iterator over `batches` that shows the number of batches read so far in a progress bar."""
    with progress_bar() as progress:
        bar = progress.add_task("batches", total=len(batches) if isinstance(batches, Sized) else None)

        def counted() -> Iterator[_T]:
            """Yield the batches, and advance the progress bar after each batch."""
            for batch in batches:
                yield batch
                progress.advance(bar)

        yield counted()


def count_batches(
    shapes: Sequence[TableShape],
    batches: Iterable[Sequence[Features]],
    global_batch_size: int,
    row_blocks: int,
    max_bytes: Size,
) -> MeasuredTables:
    """Count the lookups in batches, and return tables with the counted statistics.
    The statistics are pooling factors, reuse histograms and the shares of the lookups in equal blocks of rows. Several
    features may look up rows of the same table, which is not possible in `tables_from_batches`.

    Args:
        shapes: the T tables.
        batches: any number of batches, each with the lookups of every table, (T,), by feature.
        global_batch_size: samples per step over all devices.
        row_blocks: number of equal blocks of rows in `row_lookups`.
        max_bytes: maximum memory in addition to the batch itself.

    Raises:
        UserError: as `tables_from_batches` does.
    """
    _check_names(shapes)
    most_held = _most_held(shapes, row_blocks, to_bytes(max_bytes, "max_bytes"))
    tallies: list[Tally] = []
    batch_size, whole, left_out = global_batch_size, 0, 0
    for batch_tally in _tallied(shapes, batches, global_batch_size, row_blocks, most_held):
        if whole and batch_tally.samples < global_batch_size:
            left_out = batch_tally.samples  # only the last global batch may have fewer samples
        else:
            latest = batch_tally.tallies()
            tallies = [before + new for before, new in zip(tallies, latest, strict=True)] if whole else latest
            batch_size, whole = batch_tally.samples, whole + 1
    if not whole:
        raise UserError(
            "batches-no-samples",
            "the batches have no samples",
            limit="statistics need at least one batch with at least one sample",
            remedy="Give at least one batch with samples",
        )
    assumed = tuple(_assumed(shapes, tallies, whole * batch_size, batch_size, global_batch_size))
    for message in assumed:
        warnings.warn(NeuroShardWarning(message), stacklevel=4)
    each = zip(tallies, shapes, strict=True)
    tables = tuple(tally.table(shape, whole * batch_size, batch_size) for tally, shape in each)
    return MeasuredTables(tables, tuple(tally.counted for tally in tallies), batch_size, whole, left_out, assumed)


def _tallied(
    shapes: Sequence[TableShape], batches: Iterable[Sequence[Features]], size: int, row_blocks: int, most_held: int
) -> Iterator[BatchTally]:
    """Count the lookups of each global batch, and yield one counter (`BatchTally`) for each global batch.
    A global batch has `size` samples; the last global batch may have fewer samples.
    """
    for number, slices in groupby(_slices(shapes, batches, size), key=itemgetter(0)):
        tally = BatchTally(shapes, row_blocks, most_held, number)
        for _, batch, first, last in slices:
            tally.add(batch, first, last)
        yield tally


def _slices(
    shapes: Sequence[TableShape], batches: Iterable[Sequence[Features]], size: int
) -> Iterator[tuple[int, Sequence[Features], int, int]]:
    """Divide batches into pieces, each of which belongs to a single global batch, and yield the pieces in order. A
    global batch has `size` samples. A piece is a tuple (number of the global batch, batch, first, last), with the
    samples `first` to `last` - 1 of the batch.
    """
    before = 0
    for place, batch in enumerate(batches):
        samples, first = _samples(shapes, batch, place), 0
        while first < samples:
            last = min(samples, first + size - before % size)
            yield before // size, batch, first, last
            before, first = before + last - first, last


def _samples(shapes: Sequence[TableShape], batch: Sequence[Features], place: int) -> int:
    """Return the number of samples in a batch.
    `place` is the number of the batch, which error messages contain.

    Raises:
        UserError: the lookups of two tables or features are for different numbers of samples.
    """
    counts = [
        (shape.name, name, lookups.samples)
        for shape, features in zip(shapes, batch, strict=True)
        for name, lookups in features.items()
    ]
    first = counts[0]
    for table, feature, samples in counts:
        if samples != first[2]:
            of = "" if feature == table else f", feature {feature!r}"
            raise UserError(
                "batch-sample-counts",
                f"the lookups are for {number_of(samples, 'sample')}, "
                f"but the lookups in table {first[0]!r} are for {number_of(first[2], 'sample')}",
                where=f"batch {place}, table {table!r}{of}",
                limit="in a batch, the lookups in all tables must be for the same samples",
                remedy="Give each table and feature lookups for the same samples",
            )
    return first[2]


def _check_names(shapes: Sequence[TableShape]) -> None:
    """Raise UserError if there is no table, or if two tables share a name."""
    if not shapes:
        raise UserError(
            "shapes-empty",
            "no tables were given to count lookups for",
            remedy="Give the shape of at least one table",
        )
    name, count = Counter(shape.name for shape in shapes).most_common(1)[0]
    if count > 1:
        raise shared_name(name)


def _most_held(shapes: Sequence[TableShape], row_blocks: int, max_bytes: int) -> int:
    """Return the maximum number of entries in the counters of all tables together if all counters may take `max_bytes`.
    An entry is a table row with a count, or a lookup that is not counted yet.

    Raises:
        UserError: `max_bytes` is too small for the number of tables.
    """
    fixed = _FIXED_BYTES + _BYTES_PER_BLOCK * sum(min(row_blocks, shape.rows) for shape in shapes)
    least = fixed + len(shapes) * FEWEST_ROWS * BYTES_PER_ROW
    if max_bytes < least:
        raise UserError(
            "max-bytes-too-small",
            f"max_bytes is {max_bytes} ({readable_bytes(max_bytes)})",
            limit=f"counting the lookups of {number_of(len(shapes), 'table')} takes {least} bytes",
            remedy=f"Set max_bytes to {least} or more, or set row_blocks to a smaller number",
        )
    return (max_bytes - fixed) // BYTES_PER_ROW


def _assumed(
    shapes: Sequence[TableShape], tallies: Sequence[Tally], samples: int, batch_size: int, wanted: int
) -> Iterator[Message]:
    """Yield a warning if the batches have fewer samples than the global batch that the user asked for (`wanted`), and a
    warning if the batches have no lookups in some tables. In the first case, the tables are made for a global batch of
    all samples. In the second case, NeuroShard assumes one lookup in all samples together for each such table.
    """
    if batch_size < wanted:
        yield Message(
            "batches-too-few-samples",
            f"the batches have {number_of(samples, 'sample')}, fewer than global_batch_size={wanted}",
            limit=f"so the tables are made for a global batch of {number_of(samples, 'sample')}",
            remedy="Give more batches",
        )
    never = [shape.name for shape, tally in zip(shapes, tallies, strict=True) if not tally.lookups]
    if never:
        yield Message(
            "tables-never-looked-up",
            f"the batches have no lookups in {len(never)} of {number_of(len(shapes), 'table')}, such as {never[0]!r}",
            limit=f"for each such table, NeuroShard assumes a total of 1 lookup in {number_of(samples, 'sample')}",
            remedy="Give more batches if the job looks up these tables",
        )


@checked
def table_from_trace(
    name: Name,
    indices: ArrayLike,
    offsets: ArrayLike,
    rows: Rows,
    dim: Dim,
    bytes_per_element: BytesPerElement = 4,
    row_blocks: RowBlocks = 0,
) -> Table:
    """Return a table whose statistics are counted in a trace, that is, in the lookups of one global batch of B samples.
    `indices` (L,) are the row indices of the L lookups, and `offsets` (B + 1,) divide the lookups into samples.

    The reuse histogram is the histogram of this batch, so the table's `reuse_batch_size` is B. With `row_blocks` from 2
    to 1,024, the table has `row_lookups` in this number of blocks, or in one block per row if it has fewer rows; with 0
    it has no `row_lookups`. `tables_from_batches` does the same for several tables and batches.

    Raises:
        UserError: there is no index, offsets do not rise from 0 to L, or an index is outside 0..rows-1.
    """
    where = f"trace of {name!r}"
    lookups = Lookups.of(indices, offsets, "offsets", rows, where)
    if not lookups.samples or not len(lookups.indices):
        raise UserError(
            "trace-empty",
            f"the trace has {number_of(len(lookups.indices), 'index', 'indices')} "
            f"in {number_of(lookups.samples, 'sample')}",
            where=where,
            limit="a table needs at least one index in at least one sample",
            remedy="Give the lookups of a batch that looks up the table",
        )
    looked_up = lookups.indices.astype(np.int64)
    pooling_factor, reuse = len(looked_up) / lookups.samples, histogram(np.unique(looked_up, return_counts=True)[1])
    in_blocks = block_counts(looked_up, rows, min(row_blocks, rows)) if row_blocks else np.zeros(0)
    spread = tuple((in_blocks / len(looked_up)).tolist())
    return Table(name, rows, dim, pooling_factor, reuse, bytes_per_element, lookups.samples, spread)
