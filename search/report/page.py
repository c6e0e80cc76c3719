"""Sections of text, tables and pictures, which can be written as a self-contained HTML page, printed in short form, or
saved as CSV.
"""

import csv
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from neuroshard.plumbing.files import write_atomically

_FORMULA = re.compile(r"\s*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")  # also the full-width forms of these characters
_SHOWN = 16  # maximum number of printed rows


def save_csv(path: Path, frame: pd.DataFrame) -> None:
    """Write a frame as CSV, atomically. A text that a spreadsheet would read as a formula, such as "=1+1", gets a quote
    in front.
    """
    safe = frame.apply(lambda column: column.map(_as_text)).rename(columns=_as_text)
    text = safe.to_csv(index=False, quoting=csv.QUOTE_NONNUMERIC)
    write_atomically(path, text.encode("utf-8", errors="replace"))


def _as_text(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) and not _is_number(cell) else cell


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def texts(columns: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """Return a data frame of texts.
    The keys of `columns` are the column titles. Each value has the texts of the column, from top to bottom.

    The cells are objects, because Arrow refuses some characters.
    """
    return pd.DataFrame(dict(columns), dtype=object)


def in_words(frame: pd.DataFrame, columns: Mapping[str, tuple[str, str]]) -> pd.DataFrame:
    """Format the cells of a frame as texts for a report, and return the table of texts.
    The argument `columns` selects the columns. An unknown value (None, NaN or infinite) becomes an empty text. A column
    in which all texts are empty is left out.

    Args:
        frame: table of numbers and texts.
        columns: for each column title, the column's name in the frame and the format of its cells.
    """
    cells = {head: [_in_words(cell, how) for cell in frame[name]] for head, (name, how) in columns.items()}
    return texts({head: some for head, some in cells.items() if any(some)})


def _in_words(cell: object, how: str) -> str:
    unknown = cell is None or (isinstance(cell, float) and not np.isfinite(cell))
    return "" if unknown else format(cell, how)


@dataclass(frozen=True)
class Picture:
    """A PNG picture with a name and a caption."""

    name: str
    caption: str
    png: bytes

    @property
    def data(self) -> str:
        """The picture as a data URL, for an img element."""
        return f"data:image/png;base64,{b64encode(self.png).decode()}"


@dataclass(frozen=True, eq=False)
class Section:
    """A section of a page: a text, pictures and a table of texts, in this order."""

    title: str
    text: str = ""
    table: pd.DataFrame | None = None
    pictures: tuple[Picture, ...] = ()

    @property
    def table_html(self) -> str:
        """The whole table as an HTML element with escaped cells; empty if there is no table."""
        if self.table is None:
            return ""
        with pd.option_context("display.max_colwidth", None):
            html: str = self.table.to_html(index=False, border=0, justify="left")
        return html


def render(title: str, intro: str, sections: Sequence[Section]) -> str:
    """Return an HTML page with these sections; all texts on the page are escaped."""
    loader = PackageLoader("neuroshard.stages.search.report", "templates")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.get_template("page.html.j2").render(title=title, intro=intro, sections=sections)


def save_page(path: Path, html: str) -> None:
    """Write an HTML page atomically; characters that UTF-8 cannot encode become question marks."""
    write_atomically(path, html.encode("utf-8", errors="replace"))


def show_sections(console: Console, sections: Sequence[Section]) -> None:
    """Print sections; if a table is long, print only the first rows and the number of rows."""
    for section in sections:
        console.print()
        console.print(plain(section.title, "bold"), soft_wrap=True)
        if section.text:
            console.print(plain(section.text))
        if section.table is not None:
            _show_table(console, section.table)


def plain(text: str, style: str = "") -> Text:
    """Return a text in which brackets have no special meaning, and in which unprintable characters are escaped."""
    shown = "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
    return Text(shown, style=style, overflow="fold")


def _show_table(console: Console, frame: pd.DataFrame) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="", show_edge=False)
    for name, cells in frame.items():
        numbers = all(map(_is_number, cells))
        table.add_column(plain(str(name)), justify="right" if numbers else "left", overflow="fold")
    for row in frame[:_SHOWN].itertuples(index=False):
        table.add_row(*map(plain, row))
    console.print(table)
    if len(frame) > _SHOWN:
        console.print(plain(f"{_SHOWN} of {len(frame):,} rows", "dim"))
