"""What is known of tables by measuring, in place of what TorchRec's constraints guess."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from neuroshard.plumbing.errors import UserError
from neuroshard.tables import Table, check_unique_names
from neuroshard.tables.sources import load_tables
from neuroshard.tables.statistics.measured import MeasuredTables
from neuroshard.torchrec.modules import listed

_log = logging.getLogger(__name__)
Known = MeasuredTables | Sequence[Table] | str | Path | None


def known_tables(tables: Known, batch_size: int) -> dict[str, Table]:
    """Collect tables by name: as `profile` counted them, of a file, or as they are.

    `batch_size`, global, is what a file without histograms is read for.

    Raises:
        UserError: the file can't be read, or two tables share a name.
    """
    if tables is None:
        return {}
    if isinstance(tables, Mapping):
        raise UserError("tables= is a mapping, and must be a sequence of tables; give list(tables.values())")
    if isinstance(tables, (str, Path)):
        all_tables = load_tables(str(tables), batch_size=batch_size)
    else:
        all_tables = tables.tables if isinstance(tables, MeasuredTables) else tuple(tables)
    check_unique_names(all_tables)
    return {table.name: table for table in all_tables}


def with_statistics(guessed: Sequence[Table], known: Mapping[str, Table]) -> tuple[Table, ...]:
    """Give the model's tables the statistics of those that are known by their names; others stay as guessed.

    A table that grew since its statistics were counted keeps them (`warn_of_growth`).

    Raises:
        UserError: a known table has more rows than the model's.
    """
    return tuple(_with_statistics(table, known[table.name]) if table.name in known else table for table in guessed)


def warn_of_guesses(guessed: Mapping[str, bool], known: Mapping[str, Table]) -> None:
    """Log which tables are planned here without statistics, and which statistics are of no such table.

    `guessed` says of each table that is planned here whether nobody says how many lookups it has.
    """
    for name in sorted(set(known) - set(guessed)):
        _log.warning("statistics are given for a table %r that is not planned here; they are left out", name)
    missing = [name for name in guessed if name not in known]
    assumed = [name for name in missing if guessed[name]]
    partly = [name for name in missing if not guessed[name]]
    if known and partly:
        _log.warning("no statistics of %d of %d tables, such as %r: guessed", len(partly), len(guessed), partly[0])
    if assumed:
        _log.warning(
            "one lookup a sample and feature is assumed of %d of %d tables, of which nothing is known (%s): give "
            "tables=neuroshard.torchrec.profile(model, batches), or pooling_factors in constraints",
            len(assumed),
            len(guessed),
            listed(assumed),
        )


def warn_of_growth(guessed: Sequence[Table], known: Mapping[str, Table]) -> None:
    """Warn of tables whose rows or columns changed since their statistics were counted."""
    pairs = [(table, known[table.name]) for table in guessed if table.name in known]
    other = [(its, was) for its, was in pairs if (its.rows, its.dim) != (was.rows, was.dim)]
    if other:
        shapes = [f"{its.name}: {was.rows:,} x {was.dim} -> {its.rows:,} x {its.dim}" for its, was in other]
        _log.warning(
            "%d table(s) changed since their statistics were counted (%s), which are used: profile the tables again",
            len(other),
            listed(shapes),
        )


def _with_statistics(guessed: Table, known: Table) -> Table:
    if known.rows > guessed.rows:
        raise UserError(
            f"tables= describes {known.name!r} with {known.rows:,} rows, but the model's table has {guessed.rows:,}. "
            "Profile it again, or remove it from tables="
        )
    return replace(
        guessed,
        pooling_factor=known.pooling_factor,
        reuse=known.reuse,
        reuse_batch_size=known.reuse_batch_size,
        row_lookups=known.row_lookups,
    )
