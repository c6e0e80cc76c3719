"""Reading and writing of files: atomic writes, checked reads, and directories that only one run may write to."""

import errno
import fcntl
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import randbits
from tempfile import TemporaryFile
from typing import Any

from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.grouping import grouped
from neuroshard.plumbing.messages import number_of
from neuroshard.plumbing.schema import decode, shown

MAX_FILE_BYTES = 1 << 30  # of any file that is read whole
_BEGINNING_BYTES = 256  # that are read of a file to recognise the format
_LONGEST_NAME = 255  # bytes of a file name on Linux
_LONGEST_KEPT = 200  # bytes of a file name that fit into the longer name of a temporary file


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to `path` atomically: write a temporary file, force the file to disk, and rename it to `path`.

    After a power failure `path` is either the old file or the new file: the content and the name of the new file are on
    the disk before this function returns. If several processes write `path` at the same time, the file of the last
    writer remains, complete, because each writer has a separate temporary file. (The name of this file is random:
    process numbers can be equal in containers that share a disk.)

    Raises:
        OSError: the system refuses to write, as on a full disk; the error names `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.name if len(os.fsencode(path.name)) <= _LONGEST_KEPT else path.name[: _LONGEST_KEPT // 4]
    temporary = path.with_name(f".{name}.{randbits(64)}.tmp")
    try:
        temporary.write_bytes(content)
        _force_to_disk(temporary)
        temporary.replace(path)
        _force_to_disk(path.parent)
    except OSError as error:
        if error.filename in (None, str(temporary)):  # writing to an open file fails without a name
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _force_to_disk(path: Path) -> None:
    """Wait until the operating system has written the content of a file, or the names in a directory, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, content: object) -> None:
    """Write `content` to `path` as indented JSON, atomically as `write_atomically` does."""
    write_atomically(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())


def ending_of(path: Path) -> str:
    """Return a clause for error messages that states the suffix of a file, such as "the file name ends in '.txt'"."""
    return f"the file name ends in {path.suffix!r}" if path.suffix else "the file name has no suffix"


def regular_file(path: Path, what: str) -> Path:
    """Return `path` after checking that it is a regular file of at most 1 GiB; raise UserError if it is not.
    Errors call the file by the noun `what`, such as "plan" or "manifest".

    Raises:
        UserError: the file is missing, is not regular (reading a pipe or a device might never end), or is larger than
            1 GiB.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        remedy = "Correct the path, or make the file first"
        raise UserError("file-missing", f"{what} {path} does not exist", remedy=remedy) from None
    except (OSError, ValueError) as error:
        raise _unreadable(path, what, error) from None
    if not stat.S_ISREG(status.st_mode):
        remedy = "Give the path of a regular file, not of a directory, pipe or device"
        raise UserError("file-irregular", f"{what} {path} is not a regular file", remedy=remedy)
    if status.st_size > MAX_FILE_BYTES:
        size, limit = number_of(status.st_size, "byte"), "the maximum is 1 GiB"
        remedy = "Give a smaller file"
        raise UserError("file-large", f"{what} {path} has {size}", limit=limit, remedy=remedy)
    return path


def _unreadable(path: Path, what: str, error: Exception) -> UserError:
    """Return the error for a file that the operating system refuses to read."""
    remedy = "Make the file readable, or give another path"
    return UserError("file-unreadable", f"{what} {path} cannot be read", limit=str(error), remedy=remedy)


def read_bytes(path: Path, what: str) -> bytes:
    """Return the bytes in a regular file; the function raises the same errors as `regular_file`."""
    try:
        return regular_file(path, what).read_bytes()
    except OSError as error:
        raise _unreadable(path, what, error) from None


def read_json(path: Path, what: str) -> Any:
    """Read a JSON file; return the content as plain values (dicts, lists, numbers, text), which `schema.parse` accepts.

    Raises:
        UserError: the file is missing or is not JSON; `what` names the file ("plan", "manifest", ...).
    """
    return decode(read_bytes(path, what), f"{what} {path}")


def digest_of(*paths: Path) -> str:
    """Return the SHA-256 hash of the contents of files, joined in order; raises the same errors as `read_bytes`."""
    return hashlib.sha256(b"".join(read_bytes(path, "file") for path in paths)).hexdigest()


def has_format(path: Path, name: str) -> bool:
    """Return True if a file is a JSON object that begins with a field "format" whose value begins with `name`.
    Only the beginning of the file is read.
    """
    return re.match(rf'\s*\{{\s*"format"\s*:\s*"{re.escape(name)}'.encode(), beginning(path)) is not None


def beginning(path: Path) -> bytes:
    """Return the first 256 bytes of a file; empty if the file is not regular or cannot be read.

    The rest is not read, because the file may be a checkpoint of any size.
    """
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            return file.read(_BEGINNING_BYTES)
    except OSError:
        return b""


def check_directory(path: Path) -> None:
    """Raise UserError unless `path` is a writable directory or can be created; the check creates no directory."""
    _check_place(path, (path, *path.absolute().parents), "DIRECTORY")


def check_file(path: Path) -> None:
    """Raise UserError unless the directory of the file `path` is writable or can be created; no file is created."""
    _check_place(path, path.absolute().parents, "FILE")


def _check_place(out: Path, places: Sequence[Path], kind: str) -> None:
    """Raise UserError if a command cannot write the file or directory `out`. `places` are the paths of the directories
    for the output, from the innermost to the outermost. The first path in `places` that exists must be a writable
    directory, and no name in `out` may be too long.
    """
    if longest := next((name for name in out.parts if len(os.fsencode(name)) > _LONGEST_NAME), None):
        raise UserError(
            "out-name-long",
            f"a file name has {number_of(len(os.fsencode(longest)), 'byte')}",
            where=f"out={shown(str(out))}",
            limit=f"the maximum is {number_of(_LONGEST_NAME, 'byte')}",
            remedy=f"Choose a shorter name with out={kind}",
        )
    nearest = next(place for place in places if os.path.lexists(place))
    remedy = f"Choose another {kind.lower()} with out={kind}"
    if not nearest.is_dir():
        what = f"{nearest} exists, but is not a directory"
        raise UserError("out-under-file", what, where=f"out={out}", remedy=remedy)
    try:
        # Only a real write shows whether files can be made: root has the permission to write to /proc, but cannot.
        with TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        reason = "has no space left" if error.errno == errno.ENOSPC else "cannot be written to"
        what = f"the directory {nearest} {reason}"
        raise UserError("out-unwritable", what, where=f"out={out}", remedy=remedy) from None


def by_place(paths: Iterable[Path]) -> list[list[Path]]:
    """Group the paths that lead to the same file or directory, for example through links, and return the groups.
    The groups are in the order of the first path in each group. The paths stay as the user wrote them.
    """
    return list(grouped(paths, Path.resolve).values())


@contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Make a directory if it does not exist, and lock the directory against other runs until the `with` block ends.

    The operating system releases the lock when the process ends, even if the process is killed. A run that writes no
    file to the directory, such as a run with a wrong setting, leaves no new directory.

    Raises:
        UserError: another run is writing to the directory, or `.lock` is not a plain file.
    """
    made = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    lock = directory / ".lock"
    file = _locked(lock, directory)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(file)
        with suppress(OSError):  # the directory is usually not empty, and then stays
            for path in made:
                path.rmdir()


def _locked(lock: Path, directory: Path) -> int:
    """Open and lock the file `lock` in `directory`, and return the descriptor of the open file.

    A symbolic link is refused: the file that the link points to is neither opened nor changed.
    """
    while True:
        try:
            file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
        except OSError as error:
            reason = "the file is a symbolic link" if lock.is_symlink() else str(error.strerror)
            what = f"the lock file {lock} cannot be opened"
            remedy = f"Delete {lock}, or choose another directory with out=DIRECTORY"
            raise UserError("out-lock-refused", what, limit=reason, remedy=remedy) from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file), lock.lstat()):
                return file
        except BlockingIOError:
            os.close(file)
            what = f"another run is writing to the directory '{directory}'"
            remedy = "Wait for the other run to end, or choose another directory with out=DIRECTORY"
            raise UserError("out-in-use", what, remedy=remedy) from None
        except FileNotFoundError:
            pass
        os.close(file)  # the previous run has just ended and deleted the file that was locked here: try again
