"""Names are shown as they are, whatever they hold."""

from io import StringIO

import pytest
from rich.console import Console
from rich.table import Table

from neuroshard.progress import plain_console, printer, progress_bar


@pytest.mark.parametrize("name", ["[bold]", "[/red]", "$x_1$", ":smile:"])
def test_markup_is_text(name, capsys):
    console = plain_console()
    grid = Table(title=name)
    grid.add_column(name)
    grid.add_row(name)
    console.print(name)
    console.print(grid)
    assert capsys.readouterr().out.count(name) == 4


def test_a_bars_description_is_text():
    shown = StringIO()
    with progress_bar(Console(file=shown, force_terminal=False, width=120)) as progress:
        progress.add_task("[/bold] method", total=1)
        printer(progress)("[/red] said")
    assert "[/bold] method" in shown.getvalue()
    assert "[/red] said" in shown.getvalue()
