"""Sections on pages, in terminals and in CSV: every text is shown unchanged."""

import csv
from io import StringIO

import pandas as pd
import pytest
from rich.console import Console

from neuroshard.stages.search.report.page import Section, in_words, render, save_csv, save_page, show_sections, texts

HOSTILE = "<script>x</script> & [bold]b[/bold] [/] {{ 1 }} '\""


def _section(text):
    return Section(text, text, texts({"name": [text], "n": ["1"]}))


def test_rendered_page_escapes_markup_in_texts():
    page = render(HOSTILE, HOSTILE, [_section(HOSTILE)])
    assert "<script>x" not in page
    assert page.count("&lt;script&gt;x&lt;/script&gt; &amp; [bold]b[/bold] [/] {{ 1 }}") == 6


def test_page_replaces_lone_surrogates_by_question_marks(tmp_path):
    save_page(tmp_path / "page.html", render("\ud800", "", []))
    assert "<h1>?</h1>" in (tmp_path / "page.html").read_text(encoding="utf-8")


def _printed(sections, width=80):
    console = Console(width=width, file=StringIO(), force_terminal=True, color_system=None)
    show_sections(console, sections)
    return console.file.getvalue()


def test_page_in_a_terminal_shows_markup_as_text():
    assert _printed([_section(HOSTILE)], 300).count(HOSTILE) == 3


def test_page_in_a_terminal_contains_no_control_codes():
    shown = _printed([_section("a\x1b[31m\x07\u202eb\ud800")], 300)
    assert "\x1b[31m" not in shown
    assert "\x07" not in shown
    assert "\\x1b[31m\\x07\\u202eb\\ud800" in shown


def test_a_page_shows_whole_tables_and_a_terminal_their_first_rows():
    long = Section("many", table=texts({"a": [f"row{i}{'x' * 200}" for i in range(256)], "b": ["1"] * 256}))
    page, shown = render("", "", [long]), _printed([long], 300)
    assert all(f"<td>row{i}{'x' * 200}</td>" in page for i in range(256))
    assert "16 of 256 rows" in shown
    assert shown.count("xrow") + shown.count("\nrow") == 16


def test_in_words_leaves_unknown_values_empty_and_drops_unknown_columns():
    frame = pd.DataFrame({"n": [1, 2], "ms": [1.25, float("nan")], "x": [float("inf"), None], "text": [None, "why"]})
    heads = {"number": ("n", "d"), "cost": ("ms", ".1f"), "nothing": ("x", ".1f"), "why": ("text", "")}
    table = in_words(frame, heads)
    assert table.to_dict("list") == {"number": ["1", "2"], "cost": ["1.2", ""], "why": ["", "why"]}


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
def test_save_csv_writes_cells_that_spreadsheets_do_not_run(tmp_path, cell, safe):
    save_csv(tmp_path / "t.csv", pd.DataFrame({"text": [cell, "other"], "number": [-1.5, float("nan")]}))
    with (tmp_path / "t.csv").open(newline="") as file:
        assert next(csv.DictReader(file)) == {"text": safe, "number": "-1.5"}
    save_csv(tmp_path / "names.csv", pd.DataFrame({cell: [1]}))
    with (tmp_path / "names.csv").open(newline="") as file:
        assert next(csv.reader(file)) == [safe]
