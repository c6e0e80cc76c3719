"""What people read: sections, on one page that needs nothing but itself (`terminal.py` prints them too); CSV."""

import csv
import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from neuroshard.plumbing.files import write_atomically

_FORMULA = re.compile(r"\s*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")  # also as wide as Chinese and Japanese letters


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
        """Return the PNG as a data URL, for an img element."""
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
    """A part of the page, in this order.

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
    """HTML; every text is shown as it is, whatever it holds."""
    loader = PackageLoader("neuroshard.stages.search.report", "templates")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("page.html.j2").render(title=title, intro=intro, sections=sections)


def save_page(path: Path, html: str) -> None:
    """Write a page, atomically; halves of characters, which UTF-8 can't hold, become question marks."""
    write_atomically(path, html.encode("utf-8", errors="replace"))
