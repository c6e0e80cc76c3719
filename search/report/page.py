"""Sections of text, pandas tables and pictures: on one HTML page that needs no other file, or printed in short; CSV."""

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

_FORMULA = re.compile(r"\s*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")  # also as wide as Chinese and Japanese letters
_SHOWN = 16  # rows that are printed


def save_csv(path: Path, frame: pd.DataFrame) -> None:
    """Write a frame, atomically; a text that a spreadsheet would take for a formula gets a quote before it."""
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
    """Make a table of texts for people, by the heads of its columns; as objects, for Arrow refuses some characters."""
    return pd.DataFrame(dict(columns), dtype=object)


def in_words(frame: pd.DataFrame, columns: Mapping[str, tuple[str, str]]) -> pd.DataFrame:
    """Make a table of texts for people; a column without any known value is left out.

    Args:
        frame: of numbers and texts.
        columns: by their heads in the table, each with its name in the frame and the format of its cells.
    """
    cells = {head: [_in_words(cell, how) for cell in frame[name]] for head, (name, how) in columns.items()}
    return texts({head: some for head, some in cells.items() if any(some)})


def _in_words(cell: object, how: str) -> str:
    unknown = cell is None or (isinstance(cell, float) and not np.isfinite(cell))
    return "" if unknown else format(cell, how)


@dataclass(frozen=True)
class Picture:
    """A PNG with a caption."""

    name: str
    caption: str
    png: bytes

    @property
    def data(self) -> str:
        """The PNG as a data URL, for an img element."""
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
        """The whole table as an HTML element whose cells pandas escapes; empty without a table."""
        if self.table is None:
            return ""
        with pd.option_context("display.max_colwidth", None):
            html: str = self.table.to_html(index=False, border=0, justify="left")
        return html


def render(title: str, intro: str, sections: Sequence[Section]) -> str:
    """Render sections as an HTML page; every text is shown as it is, whatever it holds."""
    loader = PackageLoader("neuroshard.stages.search.report", "templates")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.get_template("page.html.j2").render(title=title, intro=intro, sections=sections)


def save_page(path: Path, html: str) -> None:
    """Write a page, atomically; halves of characters, which UTF-8 can't hold, become question marks."""
    write_atomically(path, html.encode("utf-8", errors="replace"))


def show_sections(console: Console, sections: Sequence[Section]) -> None:
    """Print sections; of a long table the first rows, and how many rows it has."""
    for section in sections:
        console.print()
        console.print(plain(section.title, "bold"), soft_wrap=True)
        if section.text:
            console.print(plain(section.text))
        if section.table is not None:
            _show_table(console, section.table)


def plain(text: str, style: str = "") -> Text:
    """Make text in which brackets are brackets; what can't be printed, such as a terminal's commands, is spelt out."""
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
