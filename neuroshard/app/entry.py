"""Where the `neuroshard` command begins: Ctrl-C while Python still imports is one line too."""

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
    sys.stderr.write("neuroshard: interrupted before anything was begun\n")
    sys.stderr.flush()
    os._exit(INTERRUPTED)
