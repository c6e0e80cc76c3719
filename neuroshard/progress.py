"""Progress bars: one look for every stage."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

_PLAIN_WIDTH = 120  # of tables in a file or a pipe


class _Rate(ProgressColumn):
    """Steps per second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:.2g}/s")


@contextmanager
def progress_bar(console: Console | None = None) -> Iterator[Progress]:
    """A bar with description, count, rate, time spent and time left, on standard error."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console or plain_console(stderr=True), speed_estimate_period=120) as progress:
        yield progress


def plain_console(*, stderr: bool = False) -> Console:
    """A console that shows text as it is: names may hold what rich takes for markup."""
    width = None if (sys.stderr if stderr else sys.stdout).isatty() else _PLAIN_WIDTH
    return Console(stderr=stderr, width=width, markup=False, highlight=False, emoji=False)


def printer(progress: Progress) -> Callable[[str], None]:
    """Prints lines above the bar, as they are: names may hold what rich takes for markup."""
    return lambda text: progress.console.print(text, markup=False, highlight=False)
