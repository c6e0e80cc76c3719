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
    _open_closed_streams()
    signal.signal(signal.SIGINT, _leave)  # an exception during an import would leave incomplete modules
    from neuroshard.app.cli import main as run

    run()


def _open_closed_streams() -> None:
    """Connect standard input, output and error to /dev/null if they are closed, as in `neuroshard search >&-`.

    Otherwise they would be None in Python, and the next opened file would get the descriptor of standard output, and
    with this descriptor the output of libraries and child processes.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != descriptor:
                os.dup2(null, descriptor)
                os.close(null)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, "w" if descriptor else "r", encoding="utf-8", closefd=False))


def _leave(_signal: int, _frame: FrameType | None) -> None:
    """Print one line on standard error, and end the process with exit code 130; this function handles Ctrl-C."""
    sys.stderr.write("neuroshard: interrupted before any work was done\n")
    sys.stderr.flush()
    os._exit(INTERRUPTED)
