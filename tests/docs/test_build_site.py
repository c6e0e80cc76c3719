"""The site's navigation and Markdown: docs/build_site.py, without MkDocs."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
# Pages by purpose, whose form is limited: lines, columns of tables and words in a cell.
SHORT = [DOCS / "index.md", *sorted((DOCS / "tutorials").rglob("*.md")), *sorted((DOCS / "how-to").rglob("*.md"))]
LONGEST_PAGE, WIDEST_TABLE, LONGEST_CELL = 150, 7, 15


@pytest.fixture(scope="module")
def site():
    spec = importlib.util.spec_from_file_location("build_site", DOCS / "build_site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_navigation_has_the_sections_and_linked_pages_of_the_index(site):
    first = "- [First](tutorials/first_plan.md): see [that](x.md)"
    index = f"# Docs\nText.\n\n## Tutorials\n{first}\n\nMore.\n\n## Commands\n| a |\n"
    assert site.navigation(index)[1:] == [{"Tutorials": [{"First": "docs/tutorials/first_plan.md"}]}]


def test_site_pages_get_a_blank_line_before_lists_except_in_code_blocks(site):
    page = "They are:\n- one\n- two\n  more\n\n```\ncode\n- kept\n```\n# Title\n- three"
    assert site.with_lists_apart(page) == page.replace("They are:\n", "They are:\n\n")


def test_without_links_to_folders_keeps_only_the_link_text(site, tmp_path):
    (tmp_path / "data").mkdir()
    page = "[files](data), [a page](data.md), ![picture](data.png) and [web](https://data.example)"
    assert site.without_links_to_folders(page, tmp_path) == page.replace("[files](data)", "files")


def test_every_page_can_be_reached_from_the_index(site):
    found, waiting = set(), {DOCS / "index.md"}
    while waiting:
        page = waiting.pop()
        found.add(page)
        waiting |= set(site._linked(page)) - found
    assert set(DOCS.rglob("*.md")) <= found


@pytest.mark.parametrize("page", SHORT, ids=lambda page: page.name)
def test_pages_are_short_and_tables_are_narrow(page):
    lines = page.read_text().splitlines()
    assert len(lines) <= LONGEST_PAGE
    rows = [re.split(r"(?<!\\)\|", line.strip("| ")) for line in lines if line.startswith("|")]
    assert all(len(row) <= WIDEST_TABLE for row in rows)
    assert not [cell for row in rows for cell in row if len(_words(cell)) > LONGEST_CELL]


def test_messages_quoted_by_the_troubleshooting_page_are_printed_by_the_code():
    """NeuroShard has every message that the troubleshooting page quotes, except for values (`...`)."""
    known = json.loads((ROOT / "tests" / "golden" / "messages.json").read_text())
    texts = [text for entry in known.values() for text in entry["messages"]]
    page = (DOCS / "how-to" / "troubleshooting.md").read_text()
    quoted = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert len(quoted) > 20
    for message in quoted:
        pieces = [piece.strip() for piece in message.split("...") if piece.strip()]
        assert any(all(piece in text for piece in pieces) for text in texts), message


def _words(cell):
    """Return the words of a cell that readers see, with code and titles of links, and without addresses."""
    return re.sub(r"\]\([^)]*\)", "]", cell).split()
