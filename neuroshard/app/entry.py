"""The entry point of the `neuroshard` command.
If the user presses Ctrl-C during the imports, the process ends with one line of text instead of a traceback.
"""

import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130


def main() -> None:
    """Import the command line from `neuroshard.app.cli`, and run the command line."""
    signal.signal(signal.SIGINT, _leave)  # an exception during an import would leave incomplete modules
    from neuroshard.app.cli import main as run

    run()


def _leave(_signal: int, _frame: FrameType | None) -> None:
    """Print one line on standard error, and end the process with exit code 130; this function handles Ctrl-C."""
    sys.stderr.write("neuroshard: interrupted before any work was done\n")
    sys.stderr.flush()
    os._exit(INTERRUPTED)
