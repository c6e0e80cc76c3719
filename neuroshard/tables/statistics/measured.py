"""Tables whose statistics were counted in batches, and functions that write these tables to files."""

import csv
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd

from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import ending_of, write_atomically, write_json
from neuroshard.plumbing.messages import Message
from neuroshard.plumbing.parquet import write_frame
from neuroshard.plumbing.schema import shown
from neuroshard.tables.statistics.tally import Counted
from neuroshard.tables.table import Table


@dataclass(frozen=True)
class MeasuredTables:
    """Tables whose statistics were counted in batches.
    The object also has the numbers of lookups and rows from which the statistics were computed (`counted`).

    Attributes:
        tables: (T,) tables for `Task`.
        counted: (T,) numbers of lookups and rows from which the statistics of each table were computed.
        batch_size: samples of a global batch; if there was no whole global batch, all samples.
        batches: number of global batches that were counted.
        left_out: number of samples after the last whole global batch.
        warnings: messages about assumptions that were made.
    """

    tables: tuple[Table, ...] = field(repr=False)
    counted: tuple[Counted, ...] = field(repr=False)
    batch_size: int
    batches: int
    left_out: int
    warnings: tuple[Message, ...] = ()

    @property
    def samples(self) -> int:
        """Number of samples that were counted."""
        return self.batches * self.batch_size

    def __str__(self) -> str:
        each = [
            f"{table.name}: {table.pooling_factor:.4g} lookups per sample; reuse of {counts.rows_kept:,} unique rows, "
            f"{counts.rows_share:.0%} of those touched, shares +- {max(counts.reuse_error):.2%}"
            for table, counts in zip(self.tables, self.counted, strict=True)
        ]
        return "\n".join(
            [*each, f"{self.batches} global batches of {self.batch_size}; samples left out: {self.left_out}"]
        )

    def save(self, path: str | Path) -> None:
        """Write the tables, without the counts, to a CSV, Parquet or JSON file.
        Commands load the tables from this file with the setting `tables=PATH`.

        Raises:
            UserError: as `write_tables`.
        """
        write_tables(Path(path), self.tables)


def write_tables(path: Path, tables: Sequence[Table]) -> None:
    """Write tables to a CSV, Parquet or JSON file; the suffix of `path` chooses the format.
    Commands load the tables from this file with the setting `tables=PATH`.

    Raises:
        UserError: the path has another suffix; or the file is a CSV file, and a name begins or ends with a blank, which
            would be lost when the file is read.
    """
    writers: dict[str, Callable[[Path, list[dict[str, Any]]], None]] = {
        ".csv": _write_csv,
        ".parquet": lambda to, rows: write_frame(to, pd.DataFrame(rows)),
        ".json": write_json,
    }
    suffix = path.suffix.lower()
    if suffix not in writers:
        raise UserError(
            "tables-write-suffix",
            ending_of(path),
            where=str(path),
            limit=f"tables are written to {', '.join(writers)} files",
            remedy="Give a path that ends in one of these suffixes",
        )
    if suffix == ".csv" and (blank := next((one.name for one in tables if one.name != one.name.strip()), None)):
        raise UserError(
            "tables-write-blank",
            f"the name of table {shown(blank)} begins or ends with a blank",
            where=str(path),
            limit="blanks around names in CSV files are ignored",
            remedy="Write a .parquet or .json file instead",
        )
    rows = [asdict(table) for table in tables]
    writers[suffix](path, [{name: row[name] for name in row if name != "unpadded_dim"} for row in rows])


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write tables to a CSV file with one line for each table. Each share of the reuse histogram has a column of its
    own (`reuse_0`, `reuse_1`, ...). All shares in `row_lookups`, the lookups of blocks of rows, are in one column, with
    spaces between the shares.
    """
    cells = [
        {name: value for name, value in row.items() if name != "reuse"}
        | {f"reuse_{i}": share for i, share in enumerate(row["reuse"])}
        | {"row_lookups": " ".join(map(repr, row["row_lookups"]))}
        for row in rows
    ]
    text = StringIO(newline="")
    writer = csv.DictWriter(text, list(cells[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(cells)
    write_atomically(path, text.getvalue().encode())
