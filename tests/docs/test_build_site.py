"""The site's navigation and Markdown: docs/build_site.py, without MkDocs."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site():
    spec = importlib.util.spec_from_file_location("build_site", DOCS / "build_site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_sections_of_the_index_become_the_navigation(site):
    index = (
        "# Docs\nText.\n\n## Tutorials\n- [First](tutorials/first_plan.md): see [that](x.md)\n\nMore.\n\n## Project\n"
    )
    assert site.navigation(index)[1:] == [
        {"Tutorials": [{"First": "docs/tutorials/first_plan.md"}]},
        {"Project": []},
    ]


def test_lists_are_set_apart_from_paragraphs_but_not_in_code(site):
    page = "They are:\n- one\n- two\n  more\n\n```\ncode\n- kept\n```\n# Title\n- three"
    assert site.on_page_markdown(page) == page.replace("They are:\n", "They are:\n\n")


def test_every_page_can_be_reached_from_the_index(site):
    found, waiting = set(), {DOCS / "index.md"}
    while waiting:
        page = waiting.pop()
        found.add(page)
        waiting |= set(site._linked(page)) - found
    assert set(DOCS.rglob("*.md")) <= found
