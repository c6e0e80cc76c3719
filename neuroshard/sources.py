"""Tables by name: the public shortcut to every table source."""

from pathlib import Path
from typing import Any

from neuroshard.registry import build
from neuroshard.tables import Table

_DEFAULT_BATCH_SIZE = 65536
_SUFFIXES = (".csv", ".parquet", ".json")


def load_tables(source: str, **settings: Any) -> tuple[Table, ...]:
    """The tables of a source in `conf/tables/` ("criteo", "dlrm_like", "dlrm"), or of the user's own file.

    `settings` override the source's, such as `batch_size` (for which reuse histograms are computed; 65,536 if not
    given) or `dim`.

    Raises:
        UserError: no such source, setting or file.
    """
    if Path(source).suffix in _SUFFIXES:
        return load_tables("user_file", path=source, **settings)
    if source != "dlrm":  # whose file fixes the batch size
        settings = {"batch_size": _DEFAULT_BATCH_SIZE} | settings
    tables: tuple[Table, ...] = build("tables", source, **settings)
    return tables
