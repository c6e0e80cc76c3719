"""How tables are laid out over devices: a file for each form, with everything that is known of it."""

from neuroshard.layouts.columns import in_columns
from neuroshard.layouts.copies import in_copies
from neuroshard.layouts.every import (
    COLUMNS,
    COPIES,
    LAYOUTS,
    ROWS,
    are,
    given_bytes,
    layout_of,
    layouts_of,
    placed_loads,
)
from neuroshard.layouts.layout import Layout
from neuroshard.layouts.rows import has_row_blocks, in_rows, row_blocks

__all__ = [
    "COLUMNS", "COPIES", "LAYOUTS", "ROWS", "Layout", "are", "given_bytes", "has_row_blocks", "in_columns",
    "in_copies", "in_rows", "layout_of", "layouts_of", "placed_loads", "row_blocks",
]  # fmt: skip
