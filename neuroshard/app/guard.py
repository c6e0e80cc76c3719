"""The edge of the program: whatever goes wrong inside becomes one line; tracebacks go to a file."""

import sys
import tempfile
import traceback
from pathlib import Path

from neuroshard.plumbing.errors import UserError

EXIT_USER_ERROR = 2
EXIT_BUG = 70


def one_line(error: BaseException) -> str:
    """Say in a line what an error is; of one that is no user's mistake, write the traceback to a file."""
    text = " ".join(str(error).split())
    if isinstance(error, UserError):
        return text
    if isinstance(error, OSError):
        # a full disk, or a directory that can't be written, is the user's to mend too
        return f"{text}; what was finished is kept, start it again when this is mended"
    if isinstance(error, MemoryError):
        return "out of memory; what was finished is kept. Give fewer or smaller tables, or a larger machine"
    return f"{type(error).__name__}: {text[:200]}. This is a defect of neuroshard; {_kept(error)}"


def exit_code(error: BaseException) -> int:
    """Choose the exit code: 2 for what the user can mend, 70 for a defect."""
    return EXIT_USER_ERROR if isinstance(error, (UserError, OSError, MemoryError)) else EXIT_BUG


def complain(text: str) -> None:
    """Print one line on standard error, whatever it can show."""
    print(f"neuroshard: error: {text}", file=sys.stderr, flush=True)


def _kept(error: BaseException) -> str:
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="neuroshard-", suffix=".log", encoding="utf-8", errors="backslashreplace", delete=False
        ) as file:
            file.write("".join(traceback.format_exception(error)))
    except OSError:
        return "its traceback could not be written"
    return f"please report it with the traceback in {Path(file.name)}"
