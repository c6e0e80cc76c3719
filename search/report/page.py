"""One page that needs nothing but itself: styles and pictures are inside."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined


@dataclass(frozen=True)
class Picture:
    """A PNG with the words beside it."""

    name: str
    caption: str
    png: bytes

    @property
    def data(self) -> str:
        """For an img element."""
        return f"data:image/png;base64,{b64encode(self.png).decode()}"


@dataclass(frozen=True)
class Grid:
    """A table: texts, row by row; `marked` rows stand out."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    marked: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Section:
    """A part of the page."""

    title: str
    text: str
    grids: tuple[Grid, ...] = ()
    pictures: tuple[Picture, ...] = ()


def render(title: str, intro: str, sections: Sequence[Section]) -> str:
    """HTML."""
    loader = PackageLoader("neuroshard.search.report", "templates")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    return environment.get_template("page.html.j2").render(title=title, intro=intro, sections=sections)
