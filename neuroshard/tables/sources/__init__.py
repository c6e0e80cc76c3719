"""The sources of tables, and `load_tables`, which loads the tables of any source."""

from pathlib import Path
from typing import Any

from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.registry import build
from neuroshard.plumbing.schema import shown
from neuroshard.tables import Table
from neuroshard.tables.sources.file_rows import SUFFIXES

_DEFAULT_BATCH_SIZE = 65536


def load_tables(source: str | Path, **settings: Any) -> tuple[Table, ...]:
    """Return the tables of a source in `conf/tables/` ("criteo", "dlrm_like", "dlrm"), or of the user's own file.

    `settings` replace settings of the source, such as `dim`. The setting `batch_size` is the global batch size for
    which reuse histograms are computed (65,536 if not set); the tables store it as `reuse_batch_size`, and a task with
    another batch size warns.

    Raises:
        UserError: there is no such source, setting or file, or `source` is not a text or a path.
    """
    if not isinstance(source, (str, Path)):
        raise UserError(
            "tables-source-type",
            f"source is {shown(source)}",
            limit="the type must be str or Path",
            remedy="Pass the name of a source, such as 'criteo', or the path of a file",
        )
    if Path(source).suffix.lower() in SUFFIXES:
        return load_tables("user_file", path=str(source), **settings)
    if str(source) != "dlrm":  # the file of this source determines the batch size
        settings = {"batch_size": _DEFAULT_BATCH_SIZE} | settings
    tables: tuple[Table, ...] = build("tables", str(source), **settings)
    return tables
