"""Output of commands as JSON.
With `format=json`, a command prints one JSON object to standard output, and everything else to standard error.

A result is printed from its facts: a frozen dataclass whose fields are rows, numbers and text. Numbers that are not
finite become null.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
import numpy as np

from neuroshard.plumbing.progress import Result

OutputFormat = Literal["text", "json"]
JSON: OutputFormat = "json"


class ResultWithFacts(Result, Protocol):
    """The result of a command that has the setting `format`, so that the result can be printed as JSON.
    The printed JSON object is made from `facts`.
    """

    @property
    def facts(self) -> object:
        """The content of the result for output as JSON.
        The content is a frozen dataclass, whose fields become the fields of the JSON object.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class OutputSettings:
    """The setting `format` of a command that can print the result as JSON.

    Attributes:
        format: text | json: json prints the result as one JSON object to standard output, and everything else to
            standard error; a command that fails prints no JSON object.
    """

    format: OutputFormat = "text"


def print_facts(facts: object) -> None:
    """Print the content of a result (`ResultWithFacts.facts`) on standard output, as one indented JSON object."""
    print(as_json(facts), flush=True)


def as_json(facts: object) -> str:
    """Return the content of a result (`ResultWithFacts.facts`) as the text of one indented JSON object.
    Dataclasses become objects, and numbers that are not finite become null.
    """
    return msgspec.json.format(msgspec.json.encode(facts, enc_hook=_plain), indent=2).decode()


def _plain(value: Any) -> Any:
    """Convert a NumPy value or a path, which msgspec cannot encode, to a plain value such as a number, list or text."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} has no form in JSON")


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """While the block runs, send the output of this process, of libraries and of child processes to standard error."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()
        os.dup2(stdout, 1)
        os.close(stdout)
