"""Measurements as Parquet rows, and back.

Samples refer to tables by name; the tables themselves stand once in `tables.parquet`, at their own width.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from neuroshard.errors import UserError
from neuroshard.samples import CommSample, ComputeSample, Measurement, Repeats
from neuroshard.tables import Table

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
COMPUTE_SCHEMA = pa.schema([*_COMMON, ("tables", pa.list_(pa.string())), ("dims", pa.list_(pa.int32()))])
COMM_SCHEMA = pa.schema([*_COMMON, ("dims", pa.list_(pa.int32())), ("start_ms", pa.list_(pa.float64()))])
TABLES_SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("rows", pa.int64()),
        ("dim", pa.int32()),
        ("pooling_factor", pa.float64()),
        ("reuse", pa.list_(pa.float64())),
        ("bytes_per_element", pa.int8()),
        ("reuse_batch_size", pa.int64()),
    ]
)


def compute_rows(measurements: Sequence[Measurement[ComputeSample]]) -> pa.Table:
    """Compute measurements as a Parquet table."""
    rows = [
        _common_row(m) | {"tables": [t.name for t in m.sample.tables], "dims": [t.dim for t in m.sample.tables]}
        for m in measurements
    ]
    return pa.Table.from_pylist(rows, schema=COMPUTE_SCHEMA)


def comm_rows(measurements: Sequence[Measurement[CommSample]]) -> pa.Table:
    """Exchange measurements as a Parquet table."""
    rows = [_common_row(m) | {"dims": list(m.sample.dims), "start_ms": list(m.sample.start_ms)} for m in measurements]
    return pa.Table.from_pylist(rows, schema=COMM_SCHEMA)


def tables_rows(tables: Sequence[Table]) -> pa.Table:
    """Tables as a Parquet table."""
    return pa.Table.from_pylist([table.to_json() for table in tables], schema=TABLES_SCHEMA)


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


def read_compute(row: Mapping[str, Any], tables: Mapping[str, Table]) -> Measurement[ComputeSample]:
    """One row of a compute part.

    Raises:
        UserError: it names a table that isn't among `tables`.
    """
    try:
        sized = tuple(tables[n].with_dim(int(d)) for n, d in zip(row["tables"], row["dims"], strict=True))
    except KeyError as error:
        raise UserError(f"sample {row['sample_id']} uses table {error}, which tables.parquet doesn't hold") from None
    sample = ComputeSample(sized, row["batch_size"])
    return Measurement(
        sample, row["sample_id"], row["split"], row["seed"], _repeats(row, ()), row["error"], row["second_pass"]
    )


def read_comm(row: Mapping[str, Any]) -> Measurement[CommSample]:
    """One row of an exchange part."""
    sample = CommSample(tuple(row["dims"]), tuple(row["start_ms"]), row["batch_size"])
    shape = (2, len(sample.dims))
    return Measurement(
        sample, row["sample_id"], row["split"], row["seed"], _repeats(row, shape), row["error"], row["second_pass"]
    )


def _repeats(row: Mapping[str, Any], shape: tuple[int, ...]) -> Repeats | None:
    if row["times_ms"] is None:
        return None
    return Repeats(np.array(row["times_ms"]).reshape(-1, *shape), np.array(row["at_s"]))


def read_tables(rows: pa.Table) -> dict[str, Table]:
    """The tables of `tables.parquet`, by name."""
    tables = [Table.from_json(row) for row in rows.to_pylist()]
    return {table.name: table for table in tables}
