"""Commands as people give them, in tests."""

from typing import Any

from rich.console import Console

from neuroshard.app import cli


def run_command(capsys: Any, *arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command; `capsys` is pytest's."""
    code: Any = 0
    try:
        cli.main([str(argument) for argument in arguments])
    except SystemExit as stop:
        code = stop.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def done(capsys: Any, *arguments: object) -> str:
    """Return what a command writes to standard output.

    Raises:
        AssertionError: it doesn't end with 0; the message is what it writes to standard error.
    """
    code, out, err = run_command(capsys, *arguments)
    assert code == 0, err
    return out


def shown(result: Any, width: int = 160) -> str:
    """Return what a result, by its `show`, writes to a terminal of this width."""
    console = Console(record=True, width=width)
    result.show(console)
    return console.export_text()
