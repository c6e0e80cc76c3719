"""Writing of Parquet files, and checked reading of Parquet files from any source."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from neuroshard.plumbing.errors import UserError, first_line
from neuroshard.plumbing.files import MAX_FILE_BYTES, read_bytes, write_atomically
from neuroshard.plumbing.messages import number_of

Row = dict[str, object]
_MAX_ROWS = 10_000_000
_WORD_BYTES = 8  # of a number, or of the place of a text
_END_BYTES = 4  # of the place where a list ends
_LISTS = (pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray, pa.ListViewArray, pa.LargeListViewArray)
_NO_PYTHON_VALUE = (ValueError, KeyError, OverflowError, pa.ArrowException)
_UNREADABLE = (*_NO_PYTHON_VALUE, OSError, IndexError, MemoryError)


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

    Raises:
        UserError: `read_table` refuses the file, or Python cannot represent a value, such as a date in the year 10000.
    """
    table = read_table(path, what)
    try:
        rows: list[Row] = table.to_pylist()
    except _NO_PYTHON_VALUE as error:
        raise _without_python_value(table, f"{what} {path}") from error
    return rows


def read_table(path: Path, what: str) -> pa.Table:
    """Return the content of a Parquet file as an Arrow table.

    Only this file is read: the path does not add partition columns, and a directory is refused. Not much more than
    1 GiB is ever unpacked in memory, provided that the sizes in the file's metadata are right.

    Raises:
        UserError: the file is missing, is not Parquet, has two columns of one name, has more than 10,000,000 rows, or
            may unpack to more than 1 GiB; `what` names the file.
    """
    packed = pa.BufferReader(read_bytes(path, what))
    try:
        return _unpacked(packed, f"{what} {path}")
    except UserError:
        raise
    except _UNREADABLE as error:
        reason = first_line(error)
        remedy = "Restore the file from a copy, or write the file again"
        raise UserError("parquet-damaged", f"{what} {path} is damaged", limit=reason, remedy=remedy) from None


def _unpacked(packed: pa.BufferReader, file_name: str) -> pa.Table:
    """Return the content of a Parquet file, after checks of the names of columns and of the unpacked size.

    A few kilobytes can stand for gigabytes of equal texts. If a file might do so, its texts are read as dictionaries,
    in which equal texts are stored once, and are only unpacked if their total size is within the limit.
    """
    file = pq.ParquetFile(packed)
    columns, schema = _columns(file.metadata), file.schema_arrow
    _check_size(file.metadata.num_rows, sum(column.least_bytes for column in columns), file_name)
    if twice := {name for name in schema.names if schema.names.count(name) > 1}:
        remedy = "Rename or delete one of these two columns"
        raise UserError("parquet-column-twice", f"{file_name} has two columns named {min(twice)!r}", remedy=remedy)
    most_bytes = sum(column.most_bytes for column in columns)
    if most_bytes > MAX_FILE_BYTES:
        if any(isinstance(inner, pa.BaseExtensionType) for field in schema for inner in _types(field.type)):
            _check_size(file.metadata.num_rows, most_bytes, file_name)  # such texts are not read as dictionaries
        texts = sorted({column.path for column in columns if column.is_text})
        chunks = [chunk for column in pq.ParquetFile(packed, read_dictionary=texts).read() for chunk in column.chunks]
        _check_size(file.metadata.num_rows, sum(map(_bytes_of, chunks)), file_name)
    return file.read()


def _check_size(num_rows: int, size_bytes: int, file_name: str) -> None:
    """Raise UserError if a file has too many rows, or unpacks to too many bytes."""
    if size_bytes > MAX_FILE_BYTES or num_rows > _MAX_ROWS:
        what = f"{file_name} has {number_of(num_rows, 'row')} and unpacks to {number_of(size_bytes, 'byte')}"
        limit = f"the maximum is {number_of(_MAX_ROWS, 'row')}, and {number_of(MAX_FILE_BYTES, 'byte')} unpacked"
        raise UserError("parquet-large", what, limit=limit, remedy="Give a smaller file")


@dataclass(frozen=True)
class _Column:
    """Sizes of a column in a row group, from the metadata of the file.

    Attributes:
        path: name of the column; of nested columns, the names of all levels, joined by dots.
        is_text: True for texts and other values of any length.
        least_bytes: about the bytes of the unpacked values if equal texts are stored once.
        most_bytes: upper bound of the bytes of the unpacked values.
    """

    path: str
    is_text: bool
    least_bytes: int
    most_bytes: int


def _columns(metadata: pq.FileMetaData) -> list[_Column]:
    """Return the sizes of all columns of all row groups."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    kinds = [metadata.schema.column(number) for number in range(metadata.num_columns)]
    return [_column(group.column(number), kind) for group in groups for number, kind in enumerate(kinds)]


def _column(chunk: pq.ColumnChunkMetaData, kind: pq.ColumnSchema) -> _Column:
    """Return the sizes of a column in a row group.

    Each level of lists takes 4 bytes per value for the ends of the lists. A text of any encoding is at most as long as
    all encoded bytes together. Texts that are encoded as DELTA_BYTE_ARRAY count as the upper bound, because they are
    stored neither as a dictionary nor in full.
    """
    width = max(_WORD_BYTES, kind.length if chunk.physical_type == "FIXED_LEN_BYTE_ARRAY" else 0)
    fixed = chunk.num_values * (width + _END_BYTES * kind.max_repetition_level)
    if chunk.physical_type != "BYTE_ARRAY":
        return _Column(chunk.path_in_schema, False, fixed, fixed)
    most = fixed + chunk.num_values * chunk.total_uncompressed_size
    least = most if "DELTA_BYTE_ARRAY" in chunk.encodings else fixed + chunk.total_uncompressed_size
    return _Column(chunk.path_in_schema, True, least, most)


def _types(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Yield a type of Arrow and all types inside it, such as the type of the values of a list."""
    yield kind
    for number in range(kind.num_fields):
        yield from _types(kind.field(number).type)


def _bytes_of(array: pa.Array) -> int:
    """Return about the bytes of an array if equal texts are not stored once, but as often as they occur."""
    if isinstance(array, pa.DictionaryArray):
        lengths = pc.binary_length(array.dictionary)
        return int(array.indices.nbytes) + (pc.sum(lengths.take(array.indices)).as_py() or 0)
    if isinstance(array, pa.StructArray):
        return sum(map(_bytes_of, array.flatten()))
    if isinstance(array, pa.MapArray):
        return len(array) * _END_BYTES + _bytes_of(array.keys) + _bytes_of(array.items)
    if isinstance(array, _LISTS):
        return len(array) * _END_BYTES + _bytes_of(array.flatten())
    return int(array.nbytes)


def _without_python_value(table: pa.Table, file_name: str) -> UserError:
    """Return the error for a table with a value that Python cannot represent; the error names the first such column."""
    for name in table.column_names:
        column = table.column(name)
        try:
            column.to_pylist()
        except _NO_PYTHON_VALUE as error:
            what = f"column {name!r} of {file_name} has values of type {column.type}"
            limit = f"Python cannot represent a value: {first_line(error)}"
            return UserError("parquet-column-type", what, limit=limit, remedy="Write the column as numbers or text")
    raise AssertionError("the values of each column can be represented")
