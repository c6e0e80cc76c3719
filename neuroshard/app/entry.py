"""The entry point of the `neuroshard` command, in which Ctrl-C during imports ends the process with one line."""

import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130


def main() -> None:
    """Import the command line, and run it."""
    signal.signal(signal.SIGINT, _leave)  # an exception during an import would leave incomplete modules
    from neuroshard.app.cli import main as run

    run()


def _leave(_signal: int, _frame: FrameType | None) -> None:
    """End the process with one line and exit code 130."""
    sys.stderr.write("neuroshard: interrupted before any work was done\n")
    sys.stderr.flush()
    os._exit(INTERRUPTED)
