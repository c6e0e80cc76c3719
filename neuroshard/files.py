"""Writing files so that a reader never sees half of one, and directories so that one run has them."""

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from neuroshard.errors import UserError


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, force it to disk, then rename it into place.

    After a power failure there is either what was there or what was written: both the file and its name are on the disk
    before this returns.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        _force_to_disk(temporary)
        temporary.replace(path)
        _force_to_disk(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _force_to_disk(path: Path) -> None:
    """A file's content, or a directory's names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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


@contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Keep other runs out of a directory, which is made; the lock ends with the process, however it ends.

    Raises:
        UserError: another run is at work there.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another run is at work in {directory}; wait for it, or give another out=DIRECTORY"
            ) from None
        yield
