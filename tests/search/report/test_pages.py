"""Sections as a page and in a terminal, and CSV: every text is shown as it is."""

import csv
from io import StringIO

import pandas as pd
import pytest
from rich.console import Console

from neuroshard.stages.search.report.page import Grid, Section, render, save_csv, save_page, show_sections

HOSTILE = "<script>x</script> & [bold]b[/bold] [/] {{ 1 }} '\""


def _section(text):
    return Section(text, text, ((text, text),), (text,), (), (Grid((text, "n"), ((text, "1"),)),))


def test_a_page_holds_no_markup_of_others():
    page = render(HOSTILE, HOSTILE, [_section(HOSTILE)])
    assert "<script>x" not in page
    assert page.count("&lt;script&gt;x&lt;/script&gt; &amp; [bold]b[/bold] [/] {{ 1 }}") == 11


def test_halves_of_characters_do_not_stop_a_page(tmp_path):
    save_page(tmp_path / "page.html", render("\ud800", "", []))
    assert "<h1>?</h1>" in (tmp_path / "page.html").read_text(encoding="utf-8")


def _printed(sections, width=80):
    console = Console(width=width, file=StringIO(), force_terminal=True, color_system=None)
    show_sections(console, sections)
    return console.file.getvalue()


def test_a_terminal_shows_markup_as_it_is():
    assert _printed([_section(HOSTILE)], 300).count(HOSTILE) == 7


def test_a_terminal_is_given_no_commands():
    shown = _printed([_section("a\x1b[31m\x07\u202eb\ud800")], 300)
    assert "\x1b[31m" not in shown
    assert "\x07" not in shown
    assert "\\x1b[31m\\x07\\u202eb\\ud800" in shown


def test_long_tables_and_lists_are_cut_and_counted():
    rows = tuple((f"row{i}", "1") for i in range(256))
    shown = _printed([Section("many", items=tuple(f"item{i}" for i in range(50)), grids=(Grid(("a", "b"), rows),))])
    assert len(shown.splitlines()) < 40
    assert "10 of 256 rows" in shown
    assert "and 40 more" in shown
    chosen = _printed([Section("some", grids=(Grid(("a", "b"), rows, short=(200, 7)),))])
    assert [line.split()[0] for line in chosen.splitlines() if line.startswith("row")] == ["row200", "row7"]


def test_long_names_stay_within_the_width():
    shown = _printed([_section("n" * 300)])
    assert max(map(len, shown.splitlines()[2:])) <= 80  # a title is one line, to be copied


@pytest.mark.parametrize(
    ("cell", "safe"),
    [
        ("=1+1", "'=1+1"), ("+x", "'+x"), ("-x", "'-x"), ("@x", "'@x"), ("\tx", "'\tx"), ("\r=x", "'\r=x"),
        (" =x", "' =x"), ("-5", "-5"), ("+1e3", "+1e3"), ("-2+3", "'-2+3"), ("a=1", "a=1"), ("", ""), ("'x", "'x"),
        ("\n=x", "'\n=x"), ("\uff1d1+1", "'\uff1d1+1"),
    ],
)  # fmt: skip
def test_a_spreadsheet_gets_no_formulas(tmp_path, cell, safe):
    save_csv(tmp_path / "t.csv", pd.DataFrame({"text": [cell, "other"], "number": [-1.5, float("nan")]}))
    with (tmp_path / "t.csv").open(newline="") as file:
        assert next(csv.DictReader(file)) == {"text": safe, "number": "-1.5"}
    save_csv(tmp_path / "names.csv", pd.DataFrame({cell: [1]}))
    with (tmp_path / "names.csv").open(newline="") as file:
        assert next(csv.reader(file)) == [safe]
