"""Writing files so that a reader never sees half of one."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from neuroshard.errors import UserError


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, force it to disk, then rename it into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, content: object) -> None:
    """Write `content` as indented JSON, atomically."""
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text))


def read_json(path: Path, what: str) -> Any:
    """The JSON in `path`.

    Raises:
        UserError: the file is missing or is not JSON; `what` names it ("plan", "manifest", ...).
    """
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"no {what} at {path}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{what} {path} is not readable JSON: {error}") from None
