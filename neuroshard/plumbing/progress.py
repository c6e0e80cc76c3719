"""Progress output of commands: bars on a terminal, or a plain line every half minute in a file or pipe."""

import errno
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from threading import Event, Thread
from typing import NoReturn, Protocol

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

_PLAIN_WIDTH = 120  # columns of text for tables that are printed to a file or a pipe
_EVERY_S = 30.0  # seconds between the lines in a file or a pipe

Wait = Callable[[Event], bool]


class Result(Protocol):
    """The result of a command, which the method `show` prints for people to read."""

    def show(self, console: Console) -> None:
        """Print the result on a console for people to read."""
        ...


class _Rate(ProgressColumn):
    """A progress column that shows steps per second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else _shown_rate(speed))


@contextmanager
def progress_bar(console: Console | None = None, wait: Wait = lambda ended: ended.wait(_EVERY_S)) -> Iterator[Progress]:
    """Show the progress of tasks on standard error while the block runs: description, count, rate, time spent and left.

    A terminal shows a bar for each task. Elsewhere, a line for each unfinished task is printed every half minute, and a
    line for each task at the end. `wait` is the clock: it returns False when the next line is due, and True when the
    event shows that the work has ended.
    """
    shown_on = console or plain_console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    live = shown_on.is_terminal or shown_on.is_jupyter
    with (
        Progress(*columns, console=shown_on, speed_estimate_period=120, disable=not live) as progress,
        nullcontext() if live else _printed_lines(progress, wait),
    ):
        yield progress


@contextmanager
def _printed_lines(progress: Progress, wait: Wait) -> Iterator[None]:
    """Print progress lines from another thread while the block runs, for output to a file or pipe.
    If the block ends without an error, print a last line for each task.
    """
    ended = Event()
    printing = Thread(target=_print_until, args=(ended, progress, wait), daemon=True)
    printing.start()
    try:
        yield
    finally:
        ended.set()
        printing.join()
    print_lines(progress.console, map(_line, progress.tasks))


def _print_until(ended: Event, progress: Progress, wait: Wait) -> None:
    """Print a progress line for each unfinished task, again and again, until the event `ended` is set.
    Before each round of lines, call `wait(ended)`, and stop if the call returns True. The default `wait` waits until
    `ended` is set, but at most half a minute, and returns True if `ended` is set.
    """
    while not wait(ended):
        print_lines(progress.console, [_line(task) for task in progress.tasks if not task.finished])


def _shown_rate(per_second: float) -> str:
    """Return a rate in steps per second as text: two significant digits below 100, or else a whole number (1,230/s)."""
    return f"{per_second:.2g}/s" if per_second < 99.5 else f"{per_second:,.0f}/s"  # 99.5 would be 1e+02


def _line(task: Task) -> str:
    """Return the progress of a task as text: count, time spent, rate and time left."""
    done = f"{task.completed:.0f}" if task.total is None else f"{task.completed:.0f} of {task.total:.0f}"
    spent = _clock(task.elapsed or 0.0)
    texts = [f"{task.description}: {done}", f"in {spent}" if task.finished else f"{spent} so far"]
    speed = task.finished_speed or task.speed
    texts += [] if speed is None else [_shown_rate(speed)]
    texts += [] if task.finished or task.time_remaining is None else [f"about {_clock(task.time_remaining)} left"]
    return ", ".join(texts)


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def plain_console(*, stderr: bool = False) -> Console:
    """Return a console that prints text unchanged.
    Other consoles of rich would read parts of some names as markup.
    """
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream is not None and stream.isatty() else _PLAIN_WIDTH  # None: a closed stream
    return _Console(stderr=stderr, width=width, markup=False, highlight=False, emoji=False)


class _Console(Console):
    """A console that raises BrokenPipeError if it prints into a pipe, and the program that reads the pipe has ended.
    In this case, the console of rich would raise SystemExit.
    """

    def on_broken_pipe(self) -> NoReturn:
        """Raise BrokenPipeError, which the commands of this package handle.
        The same method of rich's console would end the process instead.
        """
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def printer(progress: Progress) -> Callable[[object], None]:
    """Return a function that prints a line, or a message, above the progress bar."""
    return lambda line: print_lines(progress.console, [line])


def print_lines(console: Console, lines: Iterable[object]) -> None:
    """Print lines or messages unchanged; otherwise rich would read parts of some names as markup."""
    for line in lines:
        console.print(str(line), markup=False, highlight=False, soft_wrap=True)
