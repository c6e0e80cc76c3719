"""Processes that kill themselves while they write, to see what is left."""

import os
import signal
from itertools import count
from pathlib import Path
from typing import Literal

When = Literal["before", "after"]


def die_at_file(number: int, when: When) -> None:
    """From now on, this process kills itself before or after it puts its file of this number in place.

    Files count from 0 on; what counts is `Path.replace`, by which all are put in place.
    """
    files, rename = count(), Path.replace

    def deadly(self: Path, target: str | os.PathLike[str]) -> Path:
        """Rename a file, and kill this process before or after the fatal one."""
        fatal = next(files) == number
        if fatal and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        moved = rename(self, target)
        if fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return Path(moved)

    Path.replace = deadly  # type: ignore[method-assign, assignment]
