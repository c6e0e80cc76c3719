"""The rows of a user's file, CSV, Parquet or JSON, as plain values: numbers and texts as they were written."""

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from io import StringIO
from itertools import zip_longest
from pathlib import Path
from typing import Any

from neuroshard.errors import UserError
from neuroshard.files import read_bytes, read_json
from neuroshard.parquet import read_rows as read_parquet
from neuroshard.schema import shown

SUFFIXES = (".csv", ".parquet", ".json")
_WHAT = "table file"
_INDEX = re.compile(r"__index_level_\d+__")  # pandas numbers the rows in a column of its own
_WHOLE = re.compile(r"\s*[+-]?\d{1,30}\s*", re.ASCII)
_NUMBER = re.compile(r"\s*[+-]?(\d{1,30}\.?\d{0,30}|\.\d{1,30})(e[+-]?\d{1,3})?\s*", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class Row:
    """What stands in one row, and where it stands: what an error begins with."""

    where: str
    cells: dict[str, object]


def read_rows(path: Path, texts: frozenset[str]) -> list[Row]:
    """The rows of the file; in a CSV file, columns that aren't among `texts` hold numbers.

    Raises:
        UserError: the file can't be read, or leaves open what belongs to which column.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(f"{path}: tables are read from {', '.join(SUFFIXES)}, not {path.suffix or 'no suffix'!r}")
    if suffix == ".csv":
        return list(_of_csv(path, texts))
    if suffix == ".parquet":
        return [
            Row(f"{path}, row {number}", {name: cell for name, cell in cells.items() if not _INDEX.fullmatch(name)})
            for number, cells in enumerate(read_parquet(path, _WHAT), 1)
        ]
    return list(_of_json(read_json(path, _WHAT), path))


def _of_csv(path: Path, texts: frozenset[str]) -> Iterator[Row]:
    lines = _lines(path)
    if not lines:
        raise UserError(f"{_WHAT} {path} can't be read: it is empty")
    first, header = lines[0]
    if twice := {name for name in header if header.count(name) > 1}:
        raise UserError(f"{path}, line {first}: two columns are named {min(twice)!r}")
    for number, cells in lines[1:]:
        where = f"{path}, line {number}"
        if len(cells) != len(header):
            raise UserError(f"{where} has {len(cells)} cells, the header {len(header)}")
        named = zip(header, cells, strict=True)
        yield Row(where, {name: cell if name in texts else number_in(cell) for name, cell in named})


def _lines(path: Path) -> list[tuple[int, list[str]]]:
    """(line number, cells) of every line that isn't blank."""
    try:
        text = read_bytes(path, _WHAT).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{_WHAT} {path} can't be read: it is not UTF-8 ({error})") from None
    reader = csv.reader(StringIO(text, newline=""), strict=True)
    try:
        return [(reader.line_num, cells) for cells in reader if cells]
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: {error}") from None


def number_in(cell: str) -> object:
    """The number that a cell holds; the cell itself, for the error, if it holds none."""
    if _WHOLE.fullmatch(cell):
        return int(cell)
    return float(cell) if _NUMBER.fullmatch(cell) else cell


def _of_json(content: Any, path: Path) -> Iterator[Row]:
    """A list of objects; or an object of columns, each a list or, as pandas writes it, an object with row labels."""
    if isinstance(content, dict):
        content = _of_columns(content, path)
    if not isinstance(content, list):
        raise UserError(f"{_WHAT} {path} must hold a list of tables, not {shown(content)}")
    for number, cells in enumerate(content, 1):
        where = f"{path}, table {number}"
        if not isinstance(cells, dict):
            raise UserError(f"{where}: {shown(cells)} must be named fields")
        yield Row(where, cells)


def _of_columns(columns: dict[str, Any], path: Path) -> list[dict[str, object]]:
    labels = [list(column) if isinstance(column, dict) else None for column in columns.values()]
    for name, column in columns.items():
        if not isinstance(column, (list, dict)):
            raise UserError(f"{path}: column {shown(name)} is {shown(column)}, not a list of cells")
    cells = [list(column.values()) if isinstance(column, dict) else column for column in columns.values()]
    if any(label != labels[0] for label in labels) or any(len(column) != len(cells[0]) for column in cells):
        raise UserError(f"{path}: its columns don't have the same rows")
    return [dict(zip(columns, row, strict=True)) for row in zip_longest(*cells)]
