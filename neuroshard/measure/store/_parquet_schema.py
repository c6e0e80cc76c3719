"""Convert measurements to rows of Parquet files, and rows back to measurements.

Samples refer to tables by name. The tables themselves are stored once in `tables.parquet`, with their own width, number
of features and pooling.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, repeat
from typing import Annotated, Any, Generic, Literal, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Meta

from neuroshard.measure.store.samples import (
    LOCAL_PHASES,
    BlockLookups,
    CommSample,
    ComputeSample,
    LocalSample,
    Measurement,
    Repeats,
    RowBlock,
    Sample,
)
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.messages import number_of
from neuroshard.plumbing.schema import (
    MAX_BATCH_SIZE,
    MAX_BYTES,
    MAX_POOLING_FACTOR,
    BatchSize,
    BytesPerElement,
    CacheShare,
    Count,
    Device,
    Devices,
    Dim,
    Features,
    FirstRow,
    NonNegative,
    Rows,
    Seed,
    Share,
    decode,
    parse,
)
from neuroshard.tables import Table, check_unique_names
from neuroshard.tables.table import Reuse
from neuroshard.words.collective import Precision, collective_named, name_of
from neuroshard.words.form import Form
from neuroshard.words.placement import ON_DEVICE, Tier, TierAssignment

Bytes = Annotated[int, Meta(ge=0, le=MAX_BYTES)]
Lookups = Annotated[int, Meta(ge=0, le=MAX_BATCH_SIZE * MAX_POOLING_FACTOR)]  # lookups of a batch in one table
SplitName = Literal["train", "valid", "test", "reference"]

_STORED: dict[Any, pa.DataType] = {
    bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string(), SplitName: pa.string(),
    BytesPerElement: pa.int8(), Dim: pa.int32(), Features: pa.int32(), Devices: pa.int32(), Device: pa.int32(),
}  # fmt: skip
_DAMAGED = "Restore the file from a copy, or measure its samples again"  # the remedy for a row that contradicts itself
_tier_assignment = cache(TierAssignment)  # cached, because most samples have one of few tier assignments


@dataclass(frozen=True)
class _Row:
    """Base class of rows in Parquet files. Its fields are the columns that all types of rows have."""

    sample_id: Count
    split: SplitName
    seed: Seed
    second_pass: bool
    batch_size: BatchSize
    times_ms: tuple[NonNegative, ...] | None
    at_s: tuple[NonNegative, ...] | None
    error: str | None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the times from one repeat (timed run) of a sample. The shape is () if a repeat gives a single
        time. Subclasses whose repeats give several times have other shapes.
        """
        return ()

    @property
    def repeats(self) -> Repeats | None:
        """The timed runs of the sample, as arrays; None if the row has no times. Raises UserError if only one of
        `times_ms` and `at_s` is present, if there are no repeats, or if the number of times does not match the number
        of repeats.
        """
        if self.times_ms is None or self.at_s is None:
            if self.times_ms is not None or self.at_s is not None:
                there, missing = ("at_s", "times_ms") if self.times_ms is None else ("times_ms", "at_s")
                raise UserError(
                    "sample-times-incomplete",
                    f"the sample has {there} but not {missing}",
                    limit="a sample must have both fields or neither field",
                    remedy=_DAMAGED,
                )
            return None
        times, at_s = np.array(self.times_ms, dtype=np.float64), np.array(self.at_s, dtype=np.float64)
        if not len(at_s) or len(times) != len(at_s) * math.prod(self.shape):
            raise UserError(
                "sample-times-count",
                f"times_ms has {number_of(len(times), 'time')} for {number_of(len(at_s), 'repeat')}",
                limit=f"a sample needs at least one repeat, with {number_of(math.prod(self.shape), 'time')} per repeat",
                remedy=_DAMAGED,
            )
        return Repeats(times.reshape(-1, *self.shape), at_s)


@dataclass(frozen=True)
class _ComputeRow(_Row):
    tables: tuple[str, ...]
    dims: tuple[Dim, ...]
    sharding_type: str
    features: tuple[Features, ...]
    pooled: bool
    hot_first: Share
    first_rows: tuple[FirstRow, ...]
    rows: tuple[Rows, ...]
    lookups: tuple[Lookups, ...]
    reuse: tuple[Reuse, ...]
    tier: str | None
    cache_load_factor: CacheShare | None

    def sample(self, sized: Callable[[str, int, int, bool], Table]) -> ComputeSample:
        """Return the kernel call that this row stores.
        The function `sized` creates the tables of the call: its arguments are a table's name, number of columns and
        number of features, and True if the table is pooled.
        """
        for name, values in (("dims", self.dims), ("features", self.features)):
            if len(self.tables) != len(values):
                raise UserError(
                    "sample-field-count",
                    f"the sample has {number_of(len(self.tables), 'table')} but {len(values)} {name}",
                    limit=f"{name} must have one value for each table",
                    remedy=_DAMAGED,
                )
        tables = tuple(map(sized, self.tables, self.dims, self.features, repeat(self.pooled)))
        if len(self.first_rows) != len(self.rows) or len(self.lookups) != len(self.reuse):
            raise UserError(
                "sample-block-fields",
                f"the sample has {len(self.first_rows)} first_rows, {len(self.rows)} rows, {len(self.lookups)} lookups "
                f"and {len(self.reuse)} reuse histograms",
                limit="there must be as many first_rows as rows, and as many lookups as reuse histograms",
                remedy=_DAMAGED,
            )
        blocks = tuple(map(RowBlock, self.first_rows, self.rows))
        seen = tuple(map(BlockLookups, self.lookups, map(tuple, self.reuse)))
        assignment = _tier_assignment(self.tier or Tier.DEVICE, self.cache_load_factor)
        return ComputeSample(
            tables, self.batch_size, Form(self.sharding_type), blocks, self.hot_first, seen, assignment
        )


@dataclass(frozen=True)
class _CommRow(_Row):
    collective: str
    size_bytes: tuple[Bytes, ...]
    start_ms: tuple[NonNegative, ...]
    devices_per_host: Devices | None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the times of one repeat: (2, D), the forward and the backward time of each of D devices."""
        return (2, len(self.size_bytes))

    def sample(self) -> CommSample:
        """Return the exchange whose measurement this row stores."""
        collective = collective_named(self.collective)
        sizes, starts = tuple(self.size_bytes), tuple(map(float, self.start_ms))
        return CommSample(sizes, starts, self.batch_size, collective, self.devices_per_host)


@dataclass(frozen=True)
class _LocalRow(_Row):
    plan: str
    rank: Device
    precision: str = Precision.FP32  # older data has no such column

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the times of one repeat: (P,), with one time for each of P phases of a step.
        If the time in which the host (CPU) launches the step was also measured, the shape is (P + 1,). The time of the
        host comes last.
        """
        phases = len(LOCAL_PHASES)
        times, repeats = (0 if column is None else len(column) for column in (self.times_ms, self.at_s))
        return (phases + 1,) if times == repeats * (phases + 1) else (phases,)

    def sample(self) -> LocalSample:
        """Return the sample, a training step of one rank, whose measurement this row stores."""
        return LocalSample(Plan.from_json(decode(self.plan.encode(), "plan")), self.rank, Precision(self.precision))


def schema_of(row: type) -> pa.Schema:
    """Return the Parquet schema for a dataclass, with one column for each field."""
    return pa.schema([(name, _stored(hint)) for name, hint in get_type_hints(row, include_extras=True).items()])


def _stored(hint: Any) -> pa.DataType:
    """Return the Parquet type of a column whose values have the type `hint`; values may also be missing."""
    if hint in _STORED:
        return _STORED[hint]
    inner = _stored(get_args(hint)[0])
    return pa.list_(inner) if get_origin(hint) is tuple else inner


def _values(column: pa.Array, hint: Any) -> Iterable[Any]:
    """Return the values of a Parquet column, after checking the type and the range of all values at once.
    `hint` is the type with the range, such as `Annotated[int, Meta(ge=0)]`.

    Lists are returned as slices of one sequence with the items of all lists, unless a list is missing.

    Raises:
        msgspec.ValidationError: a value is of the wrong type or out of range.
    """
    if column.type != _stored(hint) or not pa.types.is_list(column.type) or column.null_count:
        return msgspec.convert(column.to_pylist(), list[hint])
    while get_origin(hint) is not tuple:
        hint = get_args(hint)[0]
    held, sizes = _held(column.flatten(), get_args(hint)[0]), pc.list_value_length(column).to_pylist()
    return (held[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True))


def _held(values: pa.Array, hint: Any) -> Any:
    """Check `values` and return them. Each value must have the type and the range in `hint`. `values` is a flat array
    with the items of all lists in a Parquet column. If the items are floats, only the minimum and the maximum are
    checked.
    """
    if not pa.types.is_floating(values.type):
        return msgspec.convert(values.to_pylist(), list[hint])
    floats = values.to_numpy(zero_copy_only=False)  # missing values become NaN, which no range allows
    msgspec.convert([floats.min().item(), floats.max().item()] if len(floats) else [], list[hint])
    return floats


@dataclass(frozen=True)
class RowCodec(Generic[Sample]):
    """Converts measurements of one type of sample to Parquet rows, and Parquet rows back to measurements.

    Attributes:
        row: type of a row.
        fields: returns the fields of a sample, without its batch size.
        sample: returns the sample in a row.
    """

    row: type[_Row]
    fields: Callable[[Sample], dict[str, Any]]
    sample: Callable[[Any], Sample]

    def table(self, measurements: Sequence[Measurement[Sample]]) -> pa.Table:
        """Return the measurements as a Parquet table, with one row for each measurement."""
        rows = [_common_fields(m) | self.fields(m.sample) for m in measurements]
        return pa.Table.from_pylist(rows, schema=schema_of(self.row))

    def measurements(self, table: pa.Table) -> list[Measurement[Sample]]:
        """Return the measurements in a Parquet table.
        Raise UserError if a row is malformed. If each value of the row is valid, but the values contradict each other,
        the error has the number of the sample.
        """
        return list(map(self._measurement, self._rows(table)))

    def _rows(self, table: pa.Table) -> Iterable[_Row]:
        """Return the rows of a Parquet table as objects, one for each measurement, after checking all values.
        Each column is checked as a whole, which is fast. If a column is missing, unknown or malformed, the rows are
        checked one by one instead. A column with a default may be missing. The UserError about a malformed row names
        the sample, the field and the value.
        """
        hints = get_type_hints(self.row, include_extras=True)
        with suppress(KeyError, msgspec.ValidationError):
            if {*table.column_names} <= hints.keys():
                return map(self.row, *[_values(table[name].combine_chunks(), hint) for name, hint in hints.items()])
        return (
            parse(row, self.row, f"sample {row.get('sample_id', 'without sample_id')}") for row in table.to_pylist()
        )

    def _measurement(self, read: _Row) -> Measurement[Sample]:
        try:
            sample, repeats = self.sample(read), read.repeats
            return Measurement(sample, read.sample_id, read.split, read.seed, repeats, read.error, read.second_pass)
        except UserError as error:
            raise error.at(f"sample {read.sample_id}") from None
        except ValueError as error:
            raise UserError(
                "sample-malformed",
                "the row is not a measurement",
                where=f"sample {read.sample_id}",
                limit=str(error),
                remedy=_DAMAGED,
            ) from None


def _common_fields(measurement: Measurement[Any]) -> dict[str, Any]:
    """Return a dictionary with the values of a measurement for the columns that rows of all types have."""
    repeats = measurement.repeats
    times = {} if repeats is None else {"times_ms": repeats.times_ms.ravel().tolist(), "at_s": repeats.at_s.tolist()}
    return vars(measurement) | times | {"batch_size": measurement.sample.batch_size}


def compute_codec(tables: Mapping[str, Table]) -> RowCodec[ComputeSample]:
    """Return the codec that converts measured kernel calls to Parquet rows, and Parquet rows back to measurements.
    `tables` has all tables that the calls can look up, by name.

    A table that several calls look up with the same width, features and pooling is created only once.
    """

    @cache
    def sized(name: str, dim: int, features: int, pooled: bool) -> Table:
        """Return a copy of the embedding table called `name`, with the width, features and pooling that a measured
        kernel call used. The copy has `dim` columns and `features` features; it is a sequence table if `pooled` is
        False.
        """
        table = object.__new__(Table)  # without checks: all fields were checked with the tables and the row
        vars(table).update(vars(tables[name]), dim=dim, features=features, pooled=pooled)
        return table

    def sample(read: _ComputeRow) -> ComputeSample:
        """Return the kernel call that a row stores; raise UserError if a table is unknown."""
        for name in read.tables:
            if name not in tables:
                raise UserError(
                    "sample-table-unknown",
                    f"the sample uses table {name!r}, which is not in tables.parquet",
                    remedy=_DAMAGED,
                )
        return read.sample(sized)

    return RowCodec(_ComputeRow, _compute_fields, sample)


def _compute_fields(sample: ComputeSample) -> dict[str, Any]:
    return {
        "tables": [table.name for table in sample.tables],
        "dims": [table.dim for table in sample.tables],
        "sharding_type": sample.form,
        "features": [table.features for table in sample.tables],
        "pooled": sample.call.pooled,
        "hot_first": sample.hot_first,
        "first_rows": [block.row for block in sample.blocks],
        "rows": [block.rows for block in sample.blocks],
        "lookups": [lookups.count for lookups in sample.lookups],
        "reuse": [lookups.reuse for lookups in sample.lookups],
        "tier": None if sample.tier_assignment == ON_DEVICE else sample.tier_assignment.tier,
        "cache_load_factor": sample.tier_assignment.cache_load_factor,
    }


COMM_CODEC = RowCodec(
    _CommRow, lambda sample: vars(sample) | {"collective": name_of(sample.collective)}, _CommRow.sample
)
LOCAL_CODEC = RowCodec(
    _LocalRow,  # plans have the format of plan files
    lambda sample: vars(sample) | {"plan": json.dumps(sample.plan.to_json())},
    _LocalRow.sample,
)


def tables_rows(tables: Sequence[Table]) -> pa.Table:
    """Return embedding tables as a Parquet table, with one row for each embedding table."""
    columns = [column for column in schema_of(Table) if column.name != "unpadded_dim"]  # measured tables are not padded
    return pa.Table.from_pylist([vars(table) for table in tables], schema=pa.schema(columns))


def read_tables(rows: Sequence[object]) -> dict[str, Table]:
    """Return the tables in `tables.parquet`, by name.
    Raise UserError if a table is malformed, or if two tables have the same name.
    """
    tables = tuple(Table.from_json(row) for row in rows)
    check_unique_names(tables)
    return {table.name: table for table in tables}
