"""Writing of Parquet files, and checked reading of Parquet files from any source."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from neuroshard.plumbing.errors import UserError, first_line
from neuroshard.plumbing.files import MAX_FILE_BYTES, read_bytes, write_atomically
from neuroshard.plumbing.messages import number_of

Row = dict[str, object]
_Read = TypeVar("_Read")
_MAX_ROWS = 10_000_000


def write_frame(path: Path, frame: pd.DataFrame) -> None:
    """Write a pandas data frame to a Parquet file, atomically.

    `path` is used literally, unlike in pandas, which reads some paths as URLs and expands "~".
    """
    write_table(path, pa.Table.from_pandas(frame, preserve_index=False))


def write_table(path: Path, table: pa.Table) -> None:
    """Write an Arrow table to a Parquet file, atomically."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    write_atomically(path, sink.getvalue().to_pybytes())


def read_rows(path: Path, what: str) -> list[Row]:
    """Return the rows of a Parquet file as dicts of plain values, for `schema.parse`.
    The function raises the same errors as `read_table`.
    """
    return _read(path, what, pa.Table.to_pylist)


def read_table(path: Path, what: str) -> pa.Table:
    """Return the content of a Parquet file as an Arrow table.

    Only this file is read: the path does not add partition columns, and a directory is refused.

    Raises:
        UserError: the file is missing, is not Parquet, has two columns of one name, has more than 10,000,000 rows, or
            unpacks to more than 1 GiB; `what` names the file.
    """
    return _read(path, what, lambda table: table)


def _read(path: Path, what: str, taken: Callable[[pa.Table], _Read]) -> _Read:
    packed = pa.BufferReader(read_bytes(path, what))
    try:
        file = pq.ParquetFile(packed)
        names = file.schema_arrow.names
        size = sum(file.metadata.row_group(number).total_byte_size for number in range(file.metadata.num_row_groups))
        if size > MAX_FILE_BYTES or file.metadata.num_rows > _MAX_ROWS:
            there = f"{number_of(file.metadata.num_rows, 'row')} that unpack to {number_of(size, 'byte')}"
            limit = f"the maximum is {number_of(_MAX_ROWS, 'row')}, and {number_of(MAX_FILE_BYTES, 'byte')} unpacked"
            remedy = "Give a smaller file"
            raise UserError("parquet-large", f"{what} {path} has {there}", limit=limit, remedy=remedy)
        if twice := {name for name in names if names.count(name) > 1}:
            remedy = "Rename or delete one of these two columns"
            raise UserError(
                "parquet-column-twice", f"{what} {path} has two columns named {min(twice)!r}", remedy=remedy
            )
        return taken(file.read())
    except UserError:
        raise
    except (OSError, ValueError, KeyError, IndexError, OverflowError, MemoryError, pa.ArrowException) as error:
        reason = first_line(error)
        remedy = "Restore the file from a copy, or write the file again"
        raise UserError("parquet-damaged", f"{what} {path} is damaged", limit=reason, remedy=remedy) from None
