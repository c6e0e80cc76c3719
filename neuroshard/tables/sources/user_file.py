"""The user's own tables, read from a CSV, Parquet or JSON file.

Required columns: `name` (text), `rows` (number of vectors), `dim` (number of columns, a multiple of 4) and
`pooling_factor` (mean lookups per sample, of all features together; 0 counts as one lookup in a batch).

Optional columns:

- `bytes_per_element` (2 or 4, default 4) or `dtype` (fp16 or fp32);
- `features` (number of features that read the table, default 1);
- `pooled` (false for sequence tables, default true);
- the reuse histogram: `reuse_0` ... `reuse_16` (shares of unique rows, with the sum 1), or `reuse`, a list of these
  shares; and `reuse_batch_size`, the batch size for which the histogram was made. If there is no histogram, it is
  estimated from rows, pooling factor, batch size and a Zipf exponent;
- `row_lookups` (shares of lookups in equal blocks of rows, as in `Table`): a list, or text with spaces between the
  shares; empty if unknown.

Names of columns may also be names of other systems (`num_embeddings`, `embedding_dim`, `table_name`), and may have
capitals or blanks.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError, unknown_name
from neuroshard.plumbing.schema import (
    DIM_MULTIPLE,
    MAX_DIM,
    BatchSize,
    BytesPerElement,
    Dim,
    Features,
    Name,
    PoolingFactor,
    Rows,
    padded,
    parse,
    readable_list,
    shown,
)
from neuroshard.tables.reuse import ZIPF_EXPONENT, Exponent, zipf_reuse
from neuroshard.tables.sources.file_rows import Row, number_in, read_rows
from neuroshard.tables.table import NUM_REUSE_BINS, Reuse, RowLookups, Table, check_unique_names

_REQUIRED = ("name", "rows", "dim", "pooling_factor")
_REUSE = tuple(f"reuse_{i}" for i in range(NUM_REUSE_BINS))
_COLUMNS = (
    *_REQUIRED, "bytes_per_element", "dtype", "reuse", "reuse_batch_size", "row_lookups", "features", "pooled",
)  # fmt: skip
_ALIASES = {
    "table": "name", "table_name": "name",
    "num_embeddings": "rows", "num_rows": "rows", "hash_size": "rows",
    "embedding_dim": "dim", "emb_dim": "dim",
    "pooling": "pooling_factor", "avg_pooling_factor": "pooling_factor", "mean_pooling_factor": "pooling_factor",
    "data_type": "dtype", "num_features": "features",
}  # fmt: skip
_TEXTS = frozenset(["name", "row_lookups", "dtype"])
_WHOLE = ("rows", "dim", "bytes_per_element", "reuse_batch_size", "features")
_DTYPES = {"fp32": 4, "float32": 4, "float": 4, "fp16": 2, "float16": 2, "half": 2}
_MOST_SHOWN = 5  # maximum number of tables that an error lists
_LOOKUPS = ("reuse", "reuse_batch_size", "row_lookups")  # columns about lookups, except their number


@checked
def user_file(
    path: str, batch_size: BatchSize = 65536, zipf_exponent: Exponent = ZIPF_EXPONENT, pad_dims: bool = False
) -> tuple[Table, ...]:
    """Return the tables in the file at `path`; if `pad_dims` is True, widths are rounded up to multiples of 4.

    Args:
        path: path of a CSV, Parquet or JSON file with your tables; tables=FILE.csv is short for tables.path=FILE.csv.
        batch_size: global batch size (samples per step over all devices) for the reuse histogram (how often a batch
            looks up the same row) of tables that have no histogram in the file.
        zipf_exponent: exponent of the Zipf distribution of lookups over the rows, from 0 (all rows equally popular) to
            10, for tables that have no reuse histogram in the file.
        pad_dims: true rounds the number of columns of every table up to a multiple of 4, and your model must use the
            same widths; false rejects tables with other widths.

    Raises:
        UserError: the file cannot be read, has an unknown column, lacks a column, or has values out of range. The
            message lists the errors of at most five tables, and the number of other tables with errors.
    """
    rows = read_rows(Path(path), _TEXTS, _named, partial(_check_columns, path=path))
    if not rows:
        raise UserError(
            "tables-file-no-table", "the file has no table", where=path, remedy="Add a row for each of your tables"
        )
    alike = len({frozenset(row.cells) for row in rows}) == 1  # the records of a JSON file may have different fields
    for row in rows:
        _check_columns(row.cells, path if alike else row.where)
    outcomes = [_read(row, batch_size, zipf_exponent, pad_dims) for row in rows]
    tables = tuple(table for table in outcomes if isinstance(table, Table))
    if len(tables) < len(rows):
        raise _together([error for error in outcomes if isinstance(error, UserError)], path)
    check_unique_names(tables, path)
    return tables


@cache
def _named(column: str) -> str:
    """Return NeuroShard's name for a column of a file. The name is in lower case, with underscores for blanks and
    hyphens, and aliases are replaced. For example, the column "Emb-Dim" becomes "dim".
    """
    name = re.sub(r"[\s-]+", "_", column.strip().lower())
    return _ALIASES.get(name, name)


def _read(row: Row, batch_size: int, zipf_exponent: float, pad_dims: bool) -> Table | UserError:
    try:
        given = parse(_cells(row, batch_size, pad_dims), _UserTable, row.where)
        reuse, made_for = given.reuse, given.reuse_batch_size
        if reuse is None:
            reuse, made_for = zipf_reuse(given.rows, batch_size * given.pooling_factor, zipf_exponent), batch_size
        return Table(
            given.name, given.rows, given.dim, given.pooling_factor, reuse, given.bytes_per_element, made_for,
            given.row_lookups or (), given.features, given.pooled, given.unpadded_dim,
        )  # fmt: skip
    except UserError as error:
        where = " ".join(row.where.split())  # messages replace several blanks, which a path may have, by one blank
        return error if error.message.where.startswith(where) else error.at(where)


def _together(errors: list[UserError], path: str) -> UserError:
    """Join all errors of a file in one error.
    This error has the number of errors, the first five errors, and the remedies for these five errors.
    """
    if len(errors) == 1:
        return errors[0]
    file, first = f"{' '.join(path.split())}, ", errors[:_MOST_SHOWN]
    lines = [f"({error.changed(where=error.message.where.removeprefix(file), remedy='')})" for error in first]
    more = [f"and {len(errors) - len(lines)} more"] if len(errors) > len(lines) else []
    remedies = dict.fromkeys(error.message.remedy for error in first if error.message.remedy)
    return UserError(
        "tables-file-several-errors",
        f"{len(errors)} tables cannot be read: {', '.join([*lines, *more])}",
        where=path,
        remedy=". ".join(remedies) or "Correct these tables",
    )


def _check_columns(columns: Iterable[str], path: str) -> None:
    names = list(columns)
    if names and not any(name in _COLUMNS or name in _REUSE for name in names):
        raise UserError(
            "tables-file-header-missing",
            f"no column has a known name: {readable_list(names, _MOST_SHOWN)}",
            where=path,
            limit=f"the file must have the columns {', '.join(_REQUIRED)}",
            remedy="Name the columns, in a CSV file in the first line",
        )
    for name in names:
        if name not in _COLUMNS and name not in _REUSE:
            raise unknown_name("column", name, _COLUMNS, first=_REQUIRED).at(path)
    for name in _REQUIRED:
        if name not in names:
            raise UserError(
                "tables-file-column-missing",
                f"there is no column {name!r}",
                where=path,
                limit=f"the file must have the columns {', '.join(_REQUIRED)}, and has {', '.join(names)}",
                remedy=f"Add the column {name!r}",
            )
    num_bins = sum(name in names for name in _REUSE)
    if 0 < num_bins < NUM_REUSE_BINS:
        raise UserError(
            "tables-file-reuse-incomplete",
            f"the file has {num_bins} of the {NUM_REUSE_BINS} columns reuse_0 ... reuse_16",
            where=path,
            remedy=f"Give all {NUM_REUSE_BINS} columns, or none of them",
        )
    if "dtype" in names and "bytes_per_element" in names:
        raise UserError(
            "tables-file-dtype-twice",
            "the file has both the column dtype and the column bytes_per_element",
            where=path,
            remedy="Remove one of these columns",
        )
    if num_bins and "reuse" in names:
        raise UserError(
            "tables-file-reuse-twice",
            "the file has both the column reuse and the columns reuse_0 ... reuse_16",
            where=path,
            remedy="Remove the column reuse, or remove reuse_0 ... reuse_16",
        )
    if "reuse_batch_size" in names and not num_bins and "reuse" not in names:
        raise UserError(
            "tables-file-reuse-missing",
            "the file has the column reuse_batch_size but no reuse histogram",
            where=path,
            limit="reuse_batch_size is the batch size that the histogram was made for",
            remedy="Add the histogram as reuse or reuse_0 ... reuse_16, or remove reuse_batch_size",
        )


@dataclass(frozen=True)
class _UserTable:
    name: Name
    rows: Rows
    dim: Dim
    pooling_factor: PoolingFactor
    bytes_per_element: BytesPerElement = 4
    reuse: Reuse | None = None
    reuse_batch_size: BatchSize | None = None
    row_lookups: RowLookups | None = None
    features: Features = 1
    pooled: bool = True
    unpadded_dim: Rows | None = None


def _cells(row: Row, batch_size: int, pad_dims: bool) -> dict[str, object]:
    """Convert the cells of a row to values for the fields of `_UserTable`, and return the values by field name.

    Raises:
        UserError: a share, data type or width is not valid.
    """
    cells = {name: _whole(cell) if name in _WHOLE else cell for name, cell in row.cells.items()}
    if "reuse_0" in cells:
        cells["reuse"] = [_checked_share(cells.pop(name), name) for name in _REUSE]
    if isinstance(spread := cells.get("row_lookups"), str):
        cells["row_lookups"] = [number_in(share) for share in spread.split()]
    if "dtype" in cells:
        cells["bytes_per_element"] = _bytes_of(cells.pop("dtype"))
    if type(dim := cells["dim"]) is int and 0 < dim < MAX_DIM and dim % DIM_MULTIPLE:
        cells |= {"dim": _padded(dim, pad_dims), "unpadded_dim": dim}
    if type(cells["pooling_factor"]) in (int, float) and not cells["pooling_factor"]:
        # A table without lookups needs memory, too. It is given one lookup per batch, the least that models can cost.
        cells = {name: cell for name, cell in cells.items() if name not in _LOOKUPS}
        cells["pooling_factor"] = 1 / batch_size
    if "pooled" in cells:
        cells["pooled"] = _truth(cells["pooled"])
    return cells


def _whole(cell: object) -> object:
    """Convert a float without a fraction to an int, because pandas and spreadsheets write whole numbers as 10.0 or 1e6.
    Other cells are returned unchanged.
    """
    return int(cell) if isinstance(cell, float) and cell.is_integer() else cell


def _padded(dim: int, pad_dims: bool) -> int:
    """Return the width `dim`, rounded up to a multiple of 4, which FBGEMM needs. `pad_dims` is True if the user agrees
    to wider tables; otherwise an error is raised.

    Raises:
        UserError: `pad_dims` is False, so the user has not agreed to other widths.
    """
    if not pad_dims:
        raise UserError(
            "table-dim-not-padded",
            f"dim is {dim}",
            limit=f"dim must be a multiple of {DIM_MULTIPLE}, and the next multiple is {padded(dim)}",
            remedy="Do one of these: set dim to that multiple, here and in your model; or set tables.pad_dims=true, "
            "which pads all tables, and use the padded widths in your model",
        )
    return padded(dim)


def _bytes_of(dtype: object) -> int:
    """Return the bytes per weight of a data type with any common name, such as "fp16", "torch.half" or "DataType.FP16".

    Raises:
        UserError: the data type is unknown.
    """
    name = str(dtype).strip().lower().rpartition(".")[2]
    if name not in _DTYPES:
        raise UserError(
            "table-dtype-unknown",
            f"dtype is {shown(dtype)}",
            limit="dtype must be fp32 or fp16",
            remedy="Set dtype to fp32 or fp16, or replace the column dtype by bytes_per_element (4 or 2)",
        )
    return _DTYPES[name]


def _truth(cell: object) -> object:
    """Return True or False for a cell such as "TRUE" or 0.
    Other cells are returned unchanged, so that a later error can show them.
    """
    return {"true": True, "1": True, "false": False, "0": False}.get(str(cell).lower(), cell)


def _checked_share(cell: object, name: str) -> object:
    """Check that a cell is a number from 0 to 1, and return the cell. The cell is a share in the reuse histogram of a
    table. Each bin of the histogram has a column in the file; `name` is the column of the cell, such as "reuse_3".

    The share is checked here, because later checks see a list of shares and cannot name the column.

    Raises:
        UserError: the cell is not a number from 0 to 1.
    """
    if isinstance(cell, bool) or not isinstance(cell, (int, float)) or not 0 <= cell <= 1:
        raise UserError(
            "table-reuse-share",
            f"{name} is {shown(cell)}",
            limit="shares of the reuse histogram are numbers from 0 to 1",
            remedy="Correct the cell",
        )
    return cell
