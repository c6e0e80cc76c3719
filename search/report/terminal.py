"""Sections of a page, printed: short, and every text as it is."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from neuroshard.stages.search.report.page import Grid, Section

_SHOWN = 10  # rows and list items


def show_sections(console: Console, sections: Sequence[Section]) -> None:
    """Print them; of long tables and lists the rows that matter most, and how many more there are."""
    for section in sections:
        console.print()
        console.print(plain(section.title, "bold"), soft_wrap=True)
        if section.facts:
            console.print(_facts(section.facts))
        if section.text:
            console.print(plain(section.text))
        for item in section.items[:_SHOWN]:
            console.print(plain(f"- {item}"))
        if len(section.items) > _SHOWN:
            console.print(plain(f"... and {len(section.items) - _SHOWN:,} more", "dim"))
        for grid in section.grids:
            _show_grid(console, grid)


def plain(text: str, style: str = "") -> Text:
    """Text in which brackets are brackets; what can't be printed, such as a terminal's commands, is spelt out."""
    shown = "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
    return Text(shown, style=style, overflow="fold")


def _facts(facts: Sequence[tuple[str, str]]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in facts:
        table.add_row(plain(name, "dim"), plain(value))
    return table


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
