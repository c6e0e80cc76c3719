"""Measured statistics of tables, which replace the guesses in TorchRec's constraints."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.messages import Message, number_of
from neuroshard.tables import Table, check_unique_names
from neuroshard.tables.sources import load_tables
from neuroshard.tables.statistics.measured import MeasuredTables
from neuroshard.torchrec.modules import listed

_log = logging.getLogger(__name__)
Statistics = MeasuredTables | Sequence[Table] | str | Path | None


def table_statistics(tables: Statistics, batch_size: int) -> dict[str, Table]:
    """Return tables with measured statistics, as a dictionary by table name.
    The argument `tables` is the result of `profile`, the path of a file, or a sequence of tables. For None, the
    dictionary is empty.

    `batch_size` is the global batch size for a file without histograms.

    Raises:
        UserError: the file cannot be read, or two tables have the same name.
    """
    if tables is None:
        return {}
    if isinstance(tables, Mapping):
        raise UserError(
            "statistics-mapping",
            "tables= is a mapping",
            limit="tables= must be a sequence of tables",
            remedy="Pass list(tables.values())",
        )
    if isinstance(tables, (str, Path)):
        all_tables = load_tables(str(tables), batch_size=batch_size)
    else:
        all_tables = tables.tables if isinstance(tables, MeasuredTables) else tuple(tables)
    check_unique_names(all_tables)
    return {table.name: table for table in all_tables}


def with_statistics(guessed: Sequence[Table], known: Mapping[str, Table]) -> tuple[Table, ...]:
    """Return the model's tables (`guessed`) with measured statistics in place of the statistics that the planner
    assumed. The measured statistics of a table come from `known`, by name of the table. Tables that `known` lacks are
    returned unchanged.

    A table that grew since its statistics were counted keeps these statistics (`warn_of_growth`).

    Raises:
        UserError: a known table has more rows than the model's table.
    """
    return tuple(_with_statistics(table, known[table.name]) if table.name in known else table for table in guessed)


def warn_of_guesses(guessed: Mapping[str, bool], known: Mapping[str, Table]) -> None:
    """Warn about planned tables without statistics, and about statistics of tables that NeuroShard does not plan.
    `guessed` has an entry for each planned table, and `known` has the measured statistics, both by table name.

    An entry of `guessed` is True if no constraint sets the number of lookups of the table.
    """
    for name in sorted(set(known) - set(guessed)):
        _log.warning(
            Message(
                "statistics-table-not-planned",
                f"tables= describes table {name!r}, which NeuroShard does not plan",
                limit="the planner ignores these statistics",
                remedy="Correct the name of the table, or remove the table from tables=",
            )
        )
    missing = [name for name in guessed if name not in known]
    assumed = [name for name in missing if guessed[name]]
    partly = [name for name in missing if not guessed[name]]
    if known and partly:
        _log.warning(
            Message(
                "statistics-tables-missing",
                f"tables= has no statistics for {len(partly)} of {len(guessed)} tables, such as {partly[0]!r}",
                limit="for these tables the planner takes the number of lookups from constraints and assumes "
                "Zipf-distributed indices",
                remedy="Pass statistics of these tables, such as from neuroshard.torchrec.profile(model, batches)",
            )
        )
    if assumed:
        _log.warning(
            Message(
                "statistics-lookups-assumed",
                f"the number of lookups is unknown for {len(assumed)} of {len(guessed)} tables ({listed(assumed)})",
                limit="for these tables the planner assumes 1 lookup per sample and feature",
                remedy="Pass tables=neuroshard.torchrec.profile(model, batches), or set pooling_factors in constraints",
            )
        )


def warn_of_growth(guessed: Sequence[Table], known: Mapping[str, Table]) -> None:
    """Warn about tables whose rows or columns changed since their statistics were counted."""
    pairs = [(table, known[table.name]) for table in guessed if table.name in known]
    other = [(table_now, was) for table_now, was in pairs if (table_now.rows, table_now.dim) != (was.rows, was.dim)]
    if other:
        shapes = [
            f"{table_now.name}: {was.rows:,} x {was.dim} -> {table_now.rows:,} x {table_now.dim}"
            for table_now, was in other
        ]
        _log.warning(
            Message(
                "statistics-shapes-changed",
                f"tables= describes {number_of(len(other), 'table')} whose rows or columns differ from the model "
                f"({listed(shapes)})",
                limit="the planner still uses the lookups in these statistics",
                remedy="Profile the tables again",
            )
        )


def _with_statistics(guessed: Table, known: Table) -> Table:
    """Return the table `guessed` with the measured statistics of `known` in place of assumed statistics. Both describe
    the same table: `guessed` comes from the model, and `known` was measured. Raise UserError if `known` has more rows
    than `guessed`.
    """
    if known.rows > guessed.rows:
        raise UserError(
            "statistics-more-rows",
            f"tables= describes table {known.name!r} with {known.rows:,} rows",
            limit=f"the model's table has {guessed.rows:,} rows",
            remedy="Profile the table again, or remove the table from tables=",
        )
    return replace(
        guessed,
        pooling_factor=known.pooling_factor,
        reuse=known.reuse,
        reuse_batch_size=known.reuse_batch_size,
        row_lookups=known.row_lookups,
    )
