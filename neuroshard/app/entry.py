"""The start of the `neuroshard` command: Ctrl-C during imports ends it with one line."""

import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130


def main() -> None:
    """Import the command line, then run it."""
    signal.signal(signal.SIGINT, _leave)  # an import that is interrupted leaves half-made modules
    from neuroshard.app.cli import main as run

    run()


def _leave(_signal: int, _frame: FrameType | None) -> None:
    sys.stderr.write("neuroshard: interrupted before any work was done\n")
    sys.stderr.flush()
    os._exit(INTERRUPTED)
