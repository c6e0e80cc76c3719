"""The end of a failed command: one line on standard error, and exit code 2 for a user's mistake or 70 for a defect."""

import os
import select
import sys
import tempfile
import traceback
from collections.abc import Collection
from concurrent.futures import BrokenExecutor
from pathlib import Path

from neuroshard.plumbing.errors import InfeasibleError, UserError, raised_by, user_error_in
from neuroshard.plumbing.messages import Message

EXIT_USER_ERROR = 2
EXIT_BUG = 70
_OUTPUTS = (1, 2)  # standard output and standard error
NO_PLAN, FAILED, DEFECT = "no plan", "failed", "defect"


class Ended(SystemExit):
    """The exception that ends the process with an exit code. If the process ends because of an error, the error is
    printed before this exception is raised. Any other SystemExit counts as a defect of NeuroShard.
    """


def report_of(error: BaseException) -> Message:
    """Return the message that reports an error to the user.
    If the error is a defect of NeuroShard, the message names a file that contains the traceback.
    """
    if (mistake := user_error_in(error)) is not None:
        return mistake.message
    if _is_of_the_system(error):
        # Users can correct the cause of such errors, such as a full disk or a directory that cannot be written to.
        what, remedy = "the operating system reports an error", "Remove the cause and run the command again"
        return Message("system-refused", what, limit=str(error), remedy=f"{remedy}; finished work is kept")
    if isinstance(error, BrokenExecutor):
        remedy = (
            "Run fewer jobs at a time (hydra.launcher.n_jobs), and start the sweep again; finished runs are skipped"
        )
        limit = "the system may have ended the process because memory ran out"
        return Message("sweep-process-ended", "a process that runs jobs of the sweep was killed", "", limit, remedy)
    if isinstance(error, MemoryError):
        remedy = "Give fewer or smaller tables, or use a machine with more memory; finished work is kept"
        return Message("memory-exhausted", "this machine is out of memory", remedy=remedy)
    what = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    remedy = f"Report the defect, and attach the traceback, which {_log(error)}"
    return Message("neuroshard-defect", what, limit="this is a defect of neuroshard", remedy=remedy)


def in_own_part(error: BaseException, packages: Collection[str]) -> BaseException:
    """Return a UserError if code of one of `packages`, which have parts that the user added, raised `error` itself.
    Return any other error unchanged.
    """
    if not packages or isinstance(error, (MemoryError, OSError)) or user_error_in(error) is not None:
        return error
    if not raised_by(error, *packages):
        return error
    return UserError(
        "own-part-failed",
        f"{type(error).__name__}: {' '.join(str(error).split())[:200]}",
        limit=f"this error was raised by {' or '.join(sorted(packages))}, which is not part of neuroshard",
        remedy=f"Correct this code; the traceback {_log(error)}",
    )


def exit_code(error: BaseException) -> int:
    """Return the exit code for an error: 2 if the user can correct the cause, 70 for a defect."""
    of_machine = _is_of_the_system(error) or isinstance(error, (MemoryError, BrokenExecutor))
    correctable = user_error_in(error) is not None or of_machine
    return EXIT_USER_ERROR if correctable else EXIT_BUG


def failure_of(error: BaseException) -> str:
    """Return the reason why a job of a sweep failed: `NO_PLAN`, `FAILED` (a user's mistake) or `DEFECT`."""
    if exit_code(error) == EXIT_BUG:
        return DEFECT
    return NO_PLAN if isinstance(user_error_in(error), InfeasibleError) else FAILED


def end_without_reader(error: BaseException) -> None:
    """Raise Ended with exit code 0 if `error` means that the reader of the output has closed the pipe, as `head` does.

    A broken pipe of a worker process, for example, is a failure, for which this function does nothing.
    """
    if isinstance(error, BrokenPipeError) and _reader_has_gone():
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise Ended(0) from None


def _reader_has_gone() -> bool:
    """Return True if standard output or standard error is a pipe whose reading process has ended."""
    outputs = select.poll()
    for descriptor in _OUTPUTS:
        outputs.register(descriptor, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in outputs.poll(0))


def complain(message: Message) -> None:
    """Print a message on standard error."""
    print(f"neuroshard: error: {message}", file=sys.stderr, flush=True)


def _is_of_the_system(error: BaseException) -> bool:
    """Return True if the operating system raised the error, for example because the disk is full.
    Return False for broken connections.
    """
    return isinstance(error, OSError) and not isinstance(error, ConnectionError)


def _log(error: BaseException) -> str:
    """Write the traceback of an error to a file, and return text for the user that names this file."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="neuroshard-", suffix=".log", encoding="utf-8", errors="backslashreplace", delete=False
        ) as file:
            file.write("".join(traceback.format_exception(error)))
    except OSError:
        return "could not be written to a file"
    return f"is in the file {Path(file.name)}"
