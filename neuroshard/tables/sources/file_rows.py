"""Reading of the rows of a user's CSV, Parquet or JSON file, as plain numbers and texts."""

import csv
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from io import StringIO
from itertools import zip_longest
from math import isfinite
from pathlib import Path
from typing import Any

from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import ending_of, read_bytes, read_json
from neuroshard.plumbing.messages import number_of
from neuroshard.plumbing.parquet import read_rows as read_parquet
from neuroshard.plumbing.schema import shown

SUFFIXES = (".csv", ".parquet", ".json")
_WHAT = "table file"
_INDEX = re.compile(r"__index_level_\d+__")  # the column with row numbers that pandas adds to Parquet files
_NUMBERING = re.compile(r"|unnamed:_\d+|index")  # names of this column in CSV and JSON files
_OTHER_SEPARATOR = re.compile(r"[;\t|]")
_WHOLE = re.compile(r"\s*[+-]?\d{1,400}\s*", re.ASCII)
_NUMBER = re.compile(r"\s*[+-]?(\d{1,30}(\.\d{0,30})?|\.\d{1,30})(e[+-]?\d{1,3})?\s*", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class Row:
    """One row of a table file: the cells by column name, and the place of the row in the file (`where`).
    Errors begin with this place, such as "tables.csv, line 3".
    """

    where: str
    cells: dict[str, object]


def read_rows(
    path: Path, texts: frozenset[str], named: Callable[[str], str], check: Callable[[Iterable[str]], None]
) -> list[Row]:
    """Return the rows of a CSV, Parquet or JSON file, without the index column that pandas adds.

    Args:
        path: path of the file.
        texts: names of the columns that contain text, without spaces around the text in a CSV file; other columns of a
            CSV file contain numbers.
        named: function that returns our name of a column for the name in the file.
        check: function that raises UserError for wrong names of columns; it is called here if a CSV file has names, but
            no rows.

    Raises:
        UserError: the file cannot be read, or its cells cannot be assigned to columns.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(
            "tables-file-suffix",
            ending_of(path),
            where=str(path),
            limit=f"tables are read from {', '.join(SUFFIXES)} files",
            remedy="Save the tables as a CSV, Parquet or JSON file",
        )
    if suffix == ".csv":
        return _without_index(list(_of_csv(path, texts, named, check)))
    written = _of_parquet(path) if suffix == ".parquet" else _of_json(read_json(path, _WHAT), path)
    names = ((row, _names(list(row.cells), named, row.where)) for row in written)
    return _without_index(
        [Row(row.where, dict(zip(columns, row.cells.values(), strict=True))) for row, columns in names]
    )


def _names(written: list[str], named: Callable[[str], str], where: str) -> list[str]:
    """Convert the names of columns in a file to NeuroShard's names, and return the converted names in order.

    Raises:
        UserError: two columns have the same name, or mean the same field.
    """
    names = [named(name) for name in written]
    if len(set(names)) < len(names):
        twice = min(name for name in names if names.count(name) > 1)
        first, other = [column for column, name in zip(written, names, strict=True) if name == twice][:2]
        raise UserError(
            "tables-file-column-twice",
            f"two columns are named {first!r}"
            if first == other
            else f"columns {first!r} and {other!r} both mean {twice!r}",
            where=where,
            remedy="Remove one of the two columns",
        )
    return names


def _without_index(rows: list[Row]) -> list[Row]:
    """Return the rows after removal of the columns that contain only row numbers, such as an index of pandas.

    These are the columns that pandas adds to Parquet files, and columns without a name or called "index" that contain
    only whole numbers or empty cells.
    """
    index = {
        name
        for name in {name for row in rows for name in row.cells}
        if _INDEX.fullmatch(name) or (_NUMBERING.fullmatch(name) and all(_numbers(row.cells.get(name)) for row in rows))
    }
    if not index:
        return rows
    return [Row(row.where, {name: cell for name, cell in row.cells.items() if name not in index}) for row in rows]


def _numbers(cell: object) -> bool:
    """Return True if a cell is a whole number or empty."""
    return type(cell) is int or cell in (None, "")


def _of_parquet(path: Path) -> Iterator[Row]:
    for number, cells in enumerate(read_parquet(path, _WHAT), 1):
        yield Row(f"{path}, row {number}", cells)


def _of_csv(
    path: Path, texts: frozenset[str], named: Callable[[str], str], check: Callable[[Iterable[str]], None]
) -> Iterator[Row]:
    lines = _lines(path)
    if not lines:
        raise UserError(
            "tables-file-empty",
            "the file is empty",
            where=str(path),
            remedy="Write a line with the names of columns, and a line for each table",
        )
    first, written = lines[0]
    if len(written) == 1 and (other := _OTHER_SEPARATOR.search(written[0])):
        raise UserError(
            "tables-file-separator",
            f"cells are separated by {other[0]!r}, not by commas",
            where=f"{path}, line {first}",
            remedy="Save the file with commas between cells",
        )
    header = _names(written, named, f"{path}, line {first}")
    if len(lines) == 1:
        check(name for name in header if not _NUMBERING.fullmatch(name))
    for number, cells in lines[1:]:
        where = f"{path}, line {number}"
        if len(cells) != len(header):
            raise UserError(
                "tables-file-cell-count",
                f"the line has {number_of(len(cells), 'cell')}",
                where=where,
                limit=f"the header has {number_of(len(header), 'column')}",
                remedy="Give the line one cell for each column",
            )
        by_name = zip(header, cells, strict=True)
        yield Row(where, {name: cell.strip() if name in texts else number_in(cell) for name, cell in by_name})


def _lines(path: Path) -> list[tuple[int, list[str]]]:
    """Return the line number and the cells of every line of a CSV file, except blank lines.

    Raises:
        UserError: the file is not UTF-8, or is not valid CSV.
    """
    try:
        text = read_bytes(path, _WHAT).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            "tables-file-encoding",
            "the file is not UTF-8 text",
            where=str(path),
            limit=str(error),
            remedy="Save the file as UTF-8",
        ) from None
    reader = csv.reader(StringIO(text, newline=""), strict=True)
    try:
        return [(reader.line_num, cells) for cells in reader if cells]
    except csv.Error as error:
        raise UserError(
            "tables-file-csv-malformed",
            "the line is not valid CSV",
            where=f"{path}, line {reader.line_num}",
            limit=str(error),
            remedy="Correct the line, such as the quotation marks in the line",
        ) from None


def number_in(cell: str) -> object:
    """Return the number that a cell contains.
    A cell that is not a number, or is a number like 1e400 that no float can store, is returned unchanged, so that a
    later error can show the text of the file.
    """
    if _WHOLE.fullmatch(cell):
        return int(cell)
    return float(cell) if _NUMBER.fullmatch(cell) and isfinite(float(cell)) else cell


def _of_json(content: Any, path: Path) -> Iterator[Row]:
    """Yield a `Row` for each table in JSON content, which is a list of tables or an object of columns.

    A column is a list of cells or, as pandas writes it, an object with a cell for each row label.

    Raises:
        UserError: the content has another structure.
    """
    if isinstance(content, dict):
        content = _of_columns(content, path)
    if not isinstance(content, list):
        raise UserError(
            "tables-file-json-list",
            f"the file contains {shown(content)}, not a list of tables",
            where=str(path),
            remedy="Write a list with one object for each table, or an object with one list for each column",
        )
    for number, cells in enumerate(content, 1):
        where = f"{path}, table {number}"
        if not isinstance(cells, dict):
            raise UserError(
                "tables-file-json-table",
                f"the table is {shown(cells)}, not an object",
                where=where,
                remedy='Write an object with a field for each column, such as {"name": "user", "rows": 1000}',
            )
        yield Row(where, cells)


def _of_columns(columns: dict[str, Any], path: Path) -> list[dict[str, object]]:
    """Convert tables in a JSON object from columns to rows, and return a list with a dict of cells for each table.
    `columns` has, for each column name, the cells of all tables in this column.

    Raises:
        UserError: a column is not a list or an object, or the columns do not have cells for the same tables.
    """
    labels = [list(column) if isinstance(column, dict) else None for column in columns.values()]
    for name, column in columns.items():
        if not isinstance(column, (list, dict)):
            raise UserError(
                "tables-file-json-column",
                f"column {shown(name)} is {shown(column)}, not a list of cells",
                where=str(path),
                remedy="Write a list of tables, or a list of cells for each column",
            )
    cells = [list(column.values()) if isinstance(column, dict) else column for column in columns.values()]
    if any(label != labels[0] for label in labels) or any(len(column) != len(cells[0]) for column in cells):
        raise UserError(
            "tables-file-json-rows",
            "the columns do not have cells for the same tables",
            where=str(path),
            remedy="Give every column one cell for each table, in the same order",
        )
    return [dict(zip(columns, row, strict=True)) for row in zip_longest(*cells)]
