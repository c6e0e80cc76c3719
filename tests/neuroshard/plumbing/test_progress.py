"""Progress bars in a terminal, and lines of progress in a file; markup in names is shown as text."""

import sys
from io import StringIO
from queue import Queue
from threading import Semaphore

import pytest
from rich.console import Console
from rich.table import Table

from neuroshard.plumbing.progress import plain_console, printer, progress_bar
from tests.kit.processes import PATIENCE_S


@pytest.mark.parametrize("name", ["[bold]", "[/red]", "$x_1$", ":smile:"])
def test_progress_shows_markup_as_plain_text(name, capsys):
    console = plain_console()
    grid = Table(title=name)
    grid.add_column(name)
    grid.add_row(name)
    console.print(name)
    console.print(grid)
    assert capsys.readouterr().out.count(name) == 4


def test_progress_description_with_markup_is_shown_as_text():
    shown = StringIO()
    with progress_bar(Console(file=shown, force_terminal=False, width=120)) as progress:
        progress.add_task("[/bold] method", total=1)
        printer(progress)("[/red] said")
    assert "[/bold] method" in shown.getvalue()
    assert "[/red] said" in shown.getvalue()


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_console_and_progress_of_a_closed_stream_print_nothing(monkeypatch, stream):
    monkeypatch.setattr(sys, stream, None)
    plain_console(stderr=stream == "stderr").print("text")
    with progress_bar() as progress:
        progress.add_task("method", total=1)
        printer(progress)("said")


class Ticks:
    """A clock that advances only when a test says so."""

    def __init__(self):
        self._asked, self._answers = Semaphore(0), Queue()

    def __call__(self, ended):
        self._asked.release()
        return self._answers.get(timeout=PATIENCE_S)

    def tick(self):
        """Make the next line due, and wait until the line is printed."""
        assert self._asked.acquire(timeout=PATIENCE_S)
        self._answers.put(False)
        assert self._asked.acquire(timeout=PATIENCE_S)
        self._asked.release()

    def end(self):
        self._answers.put(True)


def test_progress_in_a_file_is_a_line_at_each_tick_and_one_at_the_end():
    shown, ticks = StringIO(), Ticks()

    def lines():
        return [line.partition(",")[0] for line in shown.getvalue().splitlines()]

    with progress_bar(Console(file=shown, force_terminal=False, width=20), ticks) as progress:
        bar = progress.add_task("kernels and exchanges", total=300)
        assert lines() == []
        ticks.tick()
        progress.advance(bar, 100)
        ticks.tick()
        ticks.tick()
        progress.advance(bar, 200)
        other = progress.add_task("batches", total=None)
        progress.advance(other, 2)
        ticks.tick()
        ticks.end()
    one = "kernels and exchanges"
    expected = [f"{one}: 0 of 300", *[f"{one}: 100 of 300"] * 2, "batches: 2", f"{one}: 300 of 300", "batches: 2"]
    assert lines() == expected


@pytest.mark.parametrize(
    ("seconds", "rate"), [(100, "3/s"), (10, "30/s"), (3.01, "100/s"), (3, "100/s"), (1, "300/s"), (0.1, "3,000/s")]
)
def test_rates_are_shown_without_exponents(seconds, rate):
    shown, now = StringIO(), 0.0
    with progress_bar(Console(file=shown, force_terminal=False, width=120), lambda ended: True) as progress:
        progress.get_time = lambda: now
        bar = progress.add_task("work", total=301)
        progress.advance(bar, 1)
        now = seconds
        progress.advance(bar, 300)
    assert shown.getvalue().split()[-1] == rate


def test_progress_in_a_file_prints_no_line_if_the_work_fails():
    shown, ticks = StringIO(), Ticks()
    with pytest.raises(ZeroDivisionError), progress_bar(Console(file=shown, force_terminal=False), ticks) as bar:
        bar.add_task("work", total=2)
        ticks.end()
        raise ZeroDivisionError
    assert shown.getvalue() == ""


def test_progress_on_a_terminal_is_a_bar():
    shown = StringIO()
    with progress_bar(Console(file=shown, force_terminal=True, width=100), lambda ended: True) as progress:
        progress.advance(progress.add_task("work", total=2))
    assert "work" in shown.getvalue()
    assert "1 of 2" not in shown.getvalue()
