"""Commands of the command line, run in the process of a test."""

from typing import Any

from rich.console import Console

from neuroshard.app import cli


def run_command(capsys: Any, *arguments: object) -> tuple[int, str, str]:
    """Return exit code, standard output and standard error of a command; `capsys` is the fixture of pytest."""
    code: Any = 0
    try:
        cli.main([str(argument) for argument in arguments])
    except SystemExit as stop:
        code = stop.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def done(capsys: Any, *arguments: object) -> str:
    """Run a command that must succeed; return the text that it writes to standard output.

    Raises:
        AssertionError: the exit code is not 0; the message is the command's standard error.
    """
    code, out, err = run_command(capsys, *arguments)
    assert code == 0, err
    return out


def shown(result: Any, width: int = 160) -> str:
    """Return the text that `result.show` writes to a terminal of `width` columns."""
    console = Console(record=True, width=width)
    result.show(console)
    return console.export_text()
