"""Where tables come from, and the public shortcut to every source."""

from pathlib import Path
from typing import Any

from neuroshard.plumbing.registry import build
from neuroshard.tables import Table
from neuroshard.tables.sources.file_rows import SUFFIXES

_DEFAULT_BATCH_SIZE = 65536


def load_tables(source: str, **settings: Any) -> tuple[Table, ...]:
    """Load the tables of a source in `conf/tables/` ("criteo", "dlrm_like", "dlrm"), or of the user's own file.

    `settings` override the source's, such as `dim`, or `batch_size`: the task's, for which reuse histograms are
    computed (65,536 if not set). Tables carry it as `reuse_batch_size`; a task of another one warns.

    Raises:
        UserError: no such source, setting or file.
    """
    if Path(source).suffix.lower() in SUFFIXES:
        return load_tables("user_file", path=str(source), **settings)
    if source != "dlrm":  # whose file fixes the batch size
        settings = {"batch_size": _DEFAULT_BATCH_SIZE} | settings
    tables: tuple[Table, ...] = build("tables", source, **settings)
    return tables
