"""Pages are short: their lines, and the columns and cells of their tables."""

from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = sorted(page for folder in ("explanation", "reference", "results") for page in (DOCS / folder).rglob("*.md"))
LINES, COLUMNS, WORDS = 150, 7, 15


def _rows(page):
    """Return the cells of each table row outside code."""
    in_code = False
    for line in page.read_text().splitlines():
        in_code ^= line.startswith("```")
        if line.startswith("| ") and not in_code:
            yield line.removeprefix("|").removesuffix("|").split(" | ")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_and_their_tables_are_short(page):
    assert len(page.read_text().splitlines()) <= LINES
    for cells in _rows(page):
        assert len(cells) <= COLUMNS, cells
        assert max(len(cell.split()) for cell in cells) <= WORDS, cells
