"""What people read: sections, on one page that needs nothing but itself, or printed in short; CSV."""

import csv
import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from neuroshard.plumbing.files import write_atomically

_FORMULA = re.compile(r"\s*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")  # also as wide as Chinese and Japanese letters
_SHOWN = 10  # rows and list items


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


@dataclass(frozen=True)
class Picture:
    """A PNG with the words beside it."""

    name: str
    caption: str
    png: bytes

    @property
    def data(self) -> str:
        """The PNG as a data URL, for an img element."""
        return f"data:image/png;base64,{b64encode(self.png).decode()}"


@dataclass(frozen=True)
class Grid:
    """A table: texts, row by row.

    Attributes:
        marked: numbers of the rows that stand out.
        texts: numbers of the columns that hold words rather than numbers.
        short: the rows to show where there is room for few only; None for the first ones.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    marked: frozenset[int] = frozenset()
    texts: frozenset[int] = frozenset({0})
    short: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Section:
    """A section of the page: its facts, text, items, pictures and grids, shown in this order.

    Attributes:
        facts: key figures, each with its name.
        text: a sentence or two.
        items: a list of sentences.
    """

    title: str
    text: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    items: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()
    grids: tuple[Grid, ...] = ()


def render(title: str, intro: str, sections: Sequence[Section]) -> str:
    """Render sections as an HTML page; every text is shown as it is, whatever it holds."""
    loader = PackageLoader("neuroshard.stages.search.report", "templates")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("page.html.j2").render(title=title, intro=intro, sections=sections)


def save_page(path: Path, html: str) -> None:
    """Write a page, atomically; halves of characters, which UTF-8 can't hold, become question marks."""
    write_atomically(path, html.encode("utf-8", errors="replace"))


def show_sections(console: Console, sections: Sequence[Section]) -> None:
    """Print sections; of long tables and lists the rows that matter most, and how many more there are."""
    for section in sections:
        console.print()
        console.print(plain(section.title, "bold"), soft_wrap=True)
        if section.facts:
            table = Table(box=None, show_header=False, pad_edge=False)
            for name, value in section.facts:
                table.add_row(plain(name, "dim"), plain(value))
            console.print(table)
        if section.text:
            console.print(plain(section.text))
        for item in section.items[:_SHOWN]:
            console.print(plain(f"- {item}"))
        if len(section.items) > _SHOWN:
            console.print(plain(f"... and {len(section.items) - _SHOWN:,} more", "dim"))
        for grid in section.grids:
            _show_grid(console, grid)


def plain(text: str, style: str = "") -> Text:
    """Make text in which brackets are brackets; what can't be printed, such as a terminal's commands, is spelt out."""
    shown = "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
    return Text(shown, style=style, overflow="fold")


def _show_grid(console: Console, grid: Grid) -> None:
    chosen = range(min(_SHOWN, len(grid.rows))) if grid.short is None else grid.short
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="", show_edge=False)
    for number, column in enumerate(grid.columns):
        table.add_column(plain(column), justify="left" if number in grid.texts else "right", overflow="fold")
    for number in chosen:
        style = "bold" if number in grid.marked else ""
        table.add_row(*(plain(cell, style) for cell in grid.rows[number]))
    console.print(table)
    if len(chosen) < len(grid.rows):
        console.print(plain(f"{len(chosen)} of {len(grid.rows):,} rows", "dim"))
