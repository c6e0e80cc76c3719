"""Measurements as Parquet rows, and back.

Samples refer to tables by name; the tables themselves stand once in `tables.parquet`, at their own width and with
their own number of features, pooled or not.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import repeat
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
from msgspec import Meta

from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import (
    MAX_BATCH_SIZE,
    MAX_BYTES,
    MAX_POOLING_FACTOR,
    BatchSize,
    CacheShare,
    Count,
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
from neuroshard.records.samples import (
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
from neuroshard.tables import Table, check_unique_names
from neuroshard.tables.table import Reuse
from neuroshard.words.collective import collective_named, name_of
from neuroshard.words.form import Form
from neuroshard.words.placement import ON_DEVICE, Home, Tier

Bytes = Annotated[int, Meta(ge=0, le=MAX_BYTES)]
Lookups = Annotated[int, Meta(ge=0, le=MAX_BATCH_SIZE * MAX_POOLING_FACTOR)]  # of a batch in one table

_COMMON = [
    ("sample_id", pa.int64()),
    ("split", pa.string()),
    ("seed", pa.int64()),
    ("second_pass", pa.bool_()),
    ("batch_size", pa.int64()),
    ("times_ms", pa.list_(pa.float64())),
    ("at_s", pa.list_(pa.float64())),
    ("error", pa.string()),
]
COMPUTE_SCHEMA = pa.schema(
    [
        *_COMMON,
        ("tables", pa.list_(pa.string())),
        ("dims", pa.list_(pa.int32())),
        ("form", pa.string()),
        ("features", pa.list_(pa.int32())),
        ("pooled", pa.bool_()),
        ("hot_first", pa.float64()),
        ("first_rows", pa.list_(pa.int64())),
        ("rows", pa.list_(pa.int64())),
        ("lookups", pa.list_(pa.int64())),
        ("reuse", pa.list_(pa.list_(pa.float64()))),
        ("tier", pa.string()),
        ("cached", pa.float64()),
    ]
)
COMM_SCHEMA = pa.schema(
    [
        *_COMMON,
        ("collective", pa.string()),
        ("size_bytes", pa.list_(pa.int64())),
        ("start_ms", pa.list_(pa.float64())),
        ("devices_per_host", pa.int32()),
    ]
)
LOCAL_SCHEMA = pa.schema([*_COMMON, ("plan", pa.string()), ("rank", pa.int32())])
TABLES_SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("rows", pa.int64()),
        ("dim", pa.int32()),
        ("pooling_factor", pa.float64()),
        ("reuse", pa.list_(pa.float64())),
        ("bytes_per_element", pa.int8()),
        ("reuse_batch_size", pa.int64()),
        ("row_lookups", pa.list_(pa.float64())),
        ("features", pa.int32()),
        ("pooled", pa.bool_()),
    ]
)


def rows(
    schema: pa.Schema, fields: Callable[[Sample], Mapping[str, Any]], measurements: Sequence[Measurement[Sample]]
) -> pa.Table:
    """Measurements as a Parquet table; `fields` are those of a sample of their kind."""
    return pa.Table.from_pylist([{**_common_row(m), **fields(m.sample)} for m in measurements], schema=schema)


def compute_fields(sample: ComputeSample) -> dict[str, Any]:
    """A kernel call, as a row holds it."""
    return {
        "tables": [table.name for table in sample.tables],
        "dims": [table.dim for table in sample.tables],
        "features": [table.features for table in sample.tables],
        "pooled": sample.call.pooled,
        "form": sample.form,
        "hot_first": sample.hot_first,
        "first_rows": [block.row for block in sample.blocks],
        "rows": [block.rows for block in sample.blocks],
        "lookups": [lookups.count for lookups in sample.lookups],
        "reuse": [lookups.reuse for lookups in sample.lookups],
        "tier": None if sample.home == ON_DEVICE else sample.home.tier,
        "cached": sample.home.cached,
    }


def comm_fields(sample: CommSample) -> dict[str, Any]:
    """An exchange, as a row holds it."""
    return {
        "collective": name_of(sample.collective),
        "size_bytes": list(sample.size_bytes),
        "start_ms": list(sample.start_ms),
        "devices_per_host": sample.devices_per_host,
    }


def local_fields(sample: LocalSample) -> dict[str, Any]:
    """A rank's local work, as a row holds it: the plan as plan files do."""
    return {"plan": json.dumps(sample.plan.to_json()), "rank": sample.rank}


def tables_rows(tables: Sequence[Table]) -> pa.Table:
    """Tables as a Parquet table."""
    rows = [{"row_lookups": [], "features": 1, "pooled": True, **table.to_json()} for table in tables]
    return pa.Table.from_pylist(rows, schema=TABLES_SCHEMA)


def _common_row(measurement: Measurement[Any]) -> dict[str, Any]:
    repeats = measurement.repeats
    return {
        "sample_id": measurement.sample_id,
        "split": measurement.split,
        "seed": measurement.seed,
        "second_pass": measurement.second_pass,
        "batch_size": measurement.sample.batch_size,
        "times_ms": None if repeats is None else repeats.times_ms.ravel().tolist(),
        "at_s": None if repeats is None else repeats.at_s.tolist(),
        "error": measurement.error,
    }


@dataclass(frozen=True)
class _Row:
    """What the rows of all kinds of part hold."""

    sample_id: Count
    split: Literal["train", "valid", "test", "reference"]
    seed: Seed
    second_pass: bool
    batch_size: BatchSize
    times_ms: tuple[NonNegative, ...] | None
    at_s: tuple[NonNegative, ...] | None
    error: str | None

    def repeats(self, shape: tuple[int, ...]) -> Repeats | None:
        """The times as arrays; `shape` is that of one repeat."""
        if self.times_ms is None or self.at_s is None:
            if self.times_ms is not None or self.at_s is not None:
                raise UserError("times_ms and at_s must both be there, or neither")
            return None
        times, at_s = np.array(self.times_ms, dtype=np.float64), np.array(self.at_s, dtype=np.float64)
        if not len(at_s) or len(times) != len(at_s) * math.prod(shape):
            raise UserError(f"{len(times)} times_ms don't make {len(at_s)} repeats of {math.prod(shape)}")
        return Repeats(times.reshape(-1, *shape), at_s)


@dataclass(frozen=True)
class _ComputeRow(_Row):
    tables: tuple[str, ...]
    dims: tuple[Dim, ...]
    features: tuple[Features, ...]
    pooled: bool
    form: str
    hot_first: Share
    first_rows: tuple[FirstRow, ...]
    rows: tuple[Rows, ...]
    lookups: tuple[Lookups, ...]
    reuse: tuple[Reuse, ...]
    tier: str | None
    cached: CacheShare | None

    def sample(self, tables: tuple[Table, ...]) -> ComputeSample:
        """The sample, of `tables` at their widths."""
        if len(self.first_rows) != len(self.rows) or len(self.lookups) != len(self.reuse):
            raise UserError("first_rows and rows, lookups and reuse must be equally many")
        blocks = tuple(RowBlock(row, rows) for row, rows in zip(self.first_rows, self.rows, strict=True))
        seen = tuple(BlockLookups(count, reuse) for count, reuse in zip(self.lookups, self.reuse, strict=True))
        home = Home(Tier(self.tier or Tier.DEVICE), self.cached)
        return ComputeSample(tables, self.batch_size, Form(self.form), blocks, self.hot_first, seen, home)


@dataclass(frozen=True)
class _CommRow(_Row):
    collective: str
    size_bytes: tuple[Bytes, ...]
    start_ms: tuple[NonNegative, ...]
    devices_per_host: Devices | None

    def sample(self) -> CommSample:
        """Return the exchange that this row was measured of."""
        collective = collective_named(self.collective)
        return CommSample(self.size_bytes, self.start_ms, self.batch_size, collective, self.devices_per_host)


@dataclass(frozen=True)
class _LocalRow(_Row):
    plan: str
    rank: Count

    def sample(self) -> LocalSample:
        """Return the rank's step that this row was measured of."""
        return LocalSample(Plan.from_json(decode(self.plan.encode(), "plan")), self.rank)


def compute_reader(tables: Mapping[str, Table]) -> Callable[[object], Measurement[ComputeSample]]:
    """Return what reads a row of a compute part, and makes each table once at every width that it was measured at.

    Raises (when called):
        UserError: the row is malformed, or names a table that isn't among `tables`.
    """

    @cache
    def sized(name: str, dim: int, features: int, pooled: bool) -> Table:
        return replace(tables[name], dim=dim, features=features, pooled=pooled)

    def read_compute(row: object) -> Measurement[ComputeSample]:
        """Return the measurement in a row."""
        read = parse(row, _ComputeRow, "sample")
        for name, values in (("dims", read.dims), ("features", read.features)):
            if len(read.tables) != len(values):
                raise UserError(f"sample {read.sample_id} has {len(read.tables)} tables but {len(values)} {name}")
        for name in read.tables:
            if name not in tables:
                raise UserError(f"sample {read.sample_id} uses table {name!r}, which tables.parquet doesn't hold")
        its = tuple(map(sized, read.tables, read.dims, read.features, repeat(read.pooled)))
        return _measurement(read, lambda: read.sample(its), ())

    return read_compute


def read_comm(row: object) -> Measurement[CommSample]:
    """One row of an exchange part.

    Raises:
        UserError: it is malformed.
    """
    read = parse(row, _CommRow, "sample")
    return _measurement(read, read.sample, (2, len(read.size_bytes)))


def read_local(row: object) -> Measurement[LocalSample]:
    """One row of a part of local work.

    Raises:
        UserError: it is malformed.
    """
    read = parse(row, _LocalRow, "sample")
    return _measurement(read, read.sample, (len(LOCAL_PHASES),))


def _measurement(read: _Row, sample: Callable[[], Sample], shape: tuple[int, ...]) -> Measurement[Sample]:
    """The measurement in a row, of repeats of such shape; errors name the sample by its number."""
    try:
        return Measurement(
            sample(), read.sample_id, read.split, read.seed, read.repeats(shape), read.error, read.second_pass
        )
    except ValueError as error:
        raise UserError(f"sample {read.sample_id}: {error}") from None


def read_tables(rows: Sequence[object]) -> dict[str, Table]:
    """The tables of `tables.parquet`, by name.

    Raises:
        UserError: they are malformed, or two have one name.
    """
    tables = tuple(Table.from_json(row) for row in rows)
    check_unique_names(tables)
    return {table.name: table for table in tables}
