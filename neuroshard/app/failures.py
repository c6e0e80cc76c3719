"""How a command ends that fails: in one line, with exit code 2 for a user's mistake and 70 for a defect."""

import sys
import tempfile
import traceback
from pathlib import Path

from neuroshard.plumbing.errors import InfeasibleError, user_error_in

EXIT_USER_ERROR = 2
EXIT_BUG = 70
NO_PLAN, FAILED, DEFECT = "no plan", "failed", "defect"


class Ended(SystemExit):
    """The end of a command whose failure is reported already. Any other SystemExit is a defect of the part it ends."""


def one_line(error: BaseException) -> str:
    """Return the one line that reports an error; the traceback of a defect is written to a file that the line names."""
    if (mistake := user_error_in(error)) is not None:
        return str(mistake)
    text = " ".join(str(error).split())
    if isinstance(error, OSError):
        # a full disk, or a directory that can't be written, is the user's to mend too
        return f"{text}; what was finished is kept, start it again when this is mended"
    if isinstance(error, MemoryError):
        return "out of memory; what was finished is kept. Give fewer or smaller tables, or a larger machine"
    return f"{type(error).__name__}: {text[:200]}. This is a defect of neuroshard; {_kept(error)}"


def exit_code(error: BaseException) -> int:
    """Choose the exit code: 2 for what the user can mend, 70 for a defect."""
    users = user_error_in(error) is not None or isinstance(error, (OSError, MemoryError))
    return EXIT_USER_ERROR if users else EXIT_BUG


def failure_of(error: BaseException) -> str:
    """Return in a word or two why a job of a sweep failed: `NO_PLAN`, `FAILED` (a user's mistake) or `DEFECT`."""
    if exit_code(error) == EXIT_BUG:
        return DEFECT
    return NO_PLAN if isinstance(user_error_in(error), InfeasibleError) else FAILED


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
