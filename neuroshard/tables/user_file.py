"""The user's own tables: CSV, Parquet or JSON.

Columns: `name` (text), `rows` (vectors), `dim` (columns, a multiple of 4), `pooling_factor` (mean lookups per
sample); optional `bytes_per_element` (2 or 4, default 4) and `reuse_0` ... `reuse_16` (shares of unique rows,
together 1). Without the histogram it is estimated from rows, pooling factor, batch size and a Zipf exponent.
"""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa

from neuroshard.errors import UserError
from neuroshard.tables.reuse import ZIPF_EXPONENT, zipf_reuse
from neuroshard.tables.table import NUM_REUSE_BINS, Table, check_unique_names

_REQUIRED = ("name", "rows", "dim", "pooling_factor")
_REUSE = tuple(f"reuse_{i}" for i in range(NUM_REUSE_BINS))


def user_file(path: str, batch_size: int = 65536, zipf_exponent: float = ZIPF_EXPONENT) -> tuple[Table, ...]:
    """The tables in the file at `path`.

    Raises:
        UserError: the file can't be read, lacks a column, or holds a value that is out of range.
    """
    frame = _read(Path(path))
    missing = [column for column in _REQUIRED if column not in frame]
    if missing:
        raise UserError(f"{path}: no column {missing[0]!r}; needed: {', '.join(_REQUIRED)} (found: {list(frame)})")
    given = [column for column in _REUSE if column in frame]
    if given and len(given) < NUM_REUSE_BINS:
        raise UserError(f"{path}: {len(given)} of the {NUM_REUSE_BINS} columns reuse_0 ... reuse_16; give all or none")
    if frame.empty:
        raise UserError(f"{path} holds no table")
    tables = tuple(_table(row, bool(given), batch_size, zipf_exponent) for _, row in frame.iterrows())
    check_unique_names(tables)
    return tables


def _read(path: Path) -> pd.DataFrame:
    readers: dict[str, Callable[[Path], pd.DataFrame]] = {
        ".csv": pd.read_csv,
        ".parquet": pd.read_parquet,
        ".json": pd.read_json,
    }
    if path.suffix not in readers:
        raise UserError(f"{path}: tables are read from .csv, .parquet or .json, not {path.suffix or 'no suffix'!r}")
    try:
        return readers[path.suffix](path)
    except FileNotFoundError:
        raise UserError(f"no table file at {path}") from None
    except (OSError, ValueError, pa.ArrowException) as error:
        raise UserError(f"{path} can't be read: {str(error).splitlines()[0]}") from None


def _table(row: "pd.Series[float]", has_reuse: bool, batch_size: int, zipf_exponent: float) -> Table:
    name = str(row["name"])
    rows, dim = (_whole(row[column], name, column) for column in ("rows", "dim"))
    pooling_factor = _number(row["pooling_factor"], name, "pooling_factor")
    if rows < 1 or not 0 < pooling_factor < float("inf"):
        raise UserError(f"table {name!r}: rows={rows} and pooling_factor={pooling_factor:g} must be positive")
    reuse = (
        tuple(_number(row[column], name, column) for column in _REUSE)
        if has_reuse
        else zipf_reuse(rows, batch_size * pooling_factor, zipf_exponent)
    )
    return Table(name, rows, dim, pooling_factor, reuse, _whole(row.get("bytes_per_element", 4), name, "bytes"))


def _number(value: object, name: str, column: str) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise UserError(f"table {name!r}: {column}={value!r} is not a number") from None


def _whole(value: object, name: str, column: str) -> int:
    number = _number(value, name, column)
    if not number.is_integer():
        raise UserError(f"table {name!r}: {column}={value!r} must be a whole number")
    return int(number)
