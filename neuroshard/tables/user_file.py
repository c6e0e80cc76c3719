"""The user's own tables: CSV, Parquet or JSON.

Columns: `name` (text), `rows` (vectors), `dim` (columns, a multiple of 4), `pooling_factor` (mean lookups per
sample); optional `bytes_per_element` (2 or 4, default 4), `features` (how many read the table, default 1; the pooling
factor is that of all of them), `pooled` (false for sequence tables, default true), and the reuse histogram: `reuse_0`
... `reuse_16` (shares of unique rows, together 1), or `reuse`, a list of them, and `reuse_batch_size`, the batch size
that it was made for. Without the histogram it is estimated from rows, pooling factor, batch size and a Zipf exponent.
`row_lookups` says how lookups are spread over the rows, as `Table` has it: a list of shares, or text with spaces
between them; empty where nobody knows.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from neuroshard.checked import checked
from neuroshard.errors import UserError, unknown_name
from neuroshard.schema import BatchSize, BytesPerElement, Dim, Features, Name, PoolingFactor, Rows, parse, shown
from neuroshard.tables.reuse import ZIPF_EXPONENT, Exponent, zipf_reuse
from neuroshard.tables.rows import Row, number_in, read_rows
from neuroshard.tables.table import NUM_REUSE_BINS, Reuse, RowLookups, Table, check_unique_names

_REQUIRED = ("name", "rows", "dim", "pooling_factor")
_REUSE = tuple(f"reuse_{i}" for i in range(NUM_REUSE_BINS))
_COLUMNS = (*_REQUIRED, "bytes_per_element", "reuse", *_REUSE, "reuse_batch_size", "row_lookups", "features", "pooled")
_WHOLE = ("rows", "dim", "bytes_per_element", "reuse_batch_size", "features")


@checked
def user_file(path: str, batch_size: BatchSize = 65536, zipf_exponent: Exponent = ZIPF_EXPONENT) -> tuple[Table, ...]:
    """The tables in the file at `path`.

    Raises:
        UserError: the file can't be read, has a column that nobody knows or lacks one, or holds a value that is out of
            range.
    """
    rows = read_rows(Path(path), frozenset(["name", "row_lookups"]))
    if not rows:
        raise UserError(f"{path} holds no table")
    for row in rows:
        _check_columns(row.cells, path)
    tables = tuple(_table(row, batch_size, zipf_exponent) for row in rows)
    check_unique_names(tables)
    return tables


def _check_columns(found: Iterable[str], path: str) -> None:
    names = list(found)
    for name in names:
        if name not in _COLUMNS:
            raise UserError(f"{path}: {unknown_name('column', name, _COLUMNS)}")
    for name in _REQUIRED:
        if name not in names:
            raise UserError(f"{path}: no column {name!r}; needed: {', '.join(_REQUIRED)} (found: {', '.join(names)})")
    given = sum(name in names for name in _REUSE)
    if 0 < given < NUM_REUSE_BINS:
        raise UserError(f"{path}: {given} of the {NUM_REUSE_BINS} columns reuse_0 ... reuse_16; give all or none")
    if given and "reuse" in names:
        raise UserError(f"{path}: both reuse and reuse_0 ... reuse_16; give one of them")
    if "reuse_batch_size" in names and not given and "reuse" not in names:
        raise UserError(f"{path}: reuse_batch_size without the histogram that was made for it; give both or none")


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


def _table(row: Row, batch_size: int, zipf_exponent: float) -> Table:
    cells = {name: _whole(cell) if name in _WHOLE else cell for name, cell in row.cells.items()}
    if "reuse_0" in cells:
        cells["reuse"] = [_checked_share(cells.pop(name), name, row) for name in _REUSE]
    if isinstance(spread := cells.get("row_lookups"), str):
        cells["row_lookups"] = [number_in(share) for share in spread.split()]
    if "pooled" in cells:
        cells["pooled"] = _truth(cells["pooled"])
    given = parse(cells, _UserTable, row.where)
    reuse, made_for = given.reuse, given.reuse_batch_size
    try:
        if reuse is None:
            reuse, made_for = zipf_reuse(given.rows, batch_size * given.pooling_factor, zipf_exponent), batch_size
        return Table(
            given.name, given.rows, given.dim, given.pooling_factor, reuse, given.bytes_per_element, made_for,
            given.row_lookups or (), given.features, given.pooled,
        )  # fmt: skip
    except UserError as error:
        raise UserError(f"{row.where}: {error}") from None


def _whole(cell: object) -> object:
    """Whole numbers that were written as 10.0 or 1e6, as pandas and spreadsheets do."""
    return int(cell) if isinstance(cell, float) and cell.is_integer() and abs(cell) < 2**53 else cell


def _truth(cell: object) -> object:
    """What is true or false, however it was written."""
    return {"true": True, "1": True, "false": False, "0": False}.get(str(cell).lower(), cell)


def _checked_share(cell: object, name: str, row: Row) -> object:
    """A share of the histogram; its column is named here, for the list that it goes into has none."""
    if isinstance(cell, bool) or not isinstance(cell, (int, float)) or not 0 <= cell <= 1:
        raise UserError(f"{row.where}: {name}={shown(cell)} must be a number from 0 to 1")
    return cell
