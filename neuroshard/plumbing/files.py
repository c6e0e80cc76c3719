"""Writing files so that a reader never sees half of one, and directories so that one run has them."""

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
from neuroshard.plumbing.schema import decode

MAX_FILE_BYTES = 1 << 30  # of any file that is read whole
_BEGINNING_BYTES = 256  # of a file, to know what it is


def write_atomically(path: Path, content: bytes) -> None:
    """Write a temporary file in the directory of `path`, force it to disk, then rename it to `path`.

    After a power failure `path` is either the old file or the new file: the content and the name of the new file are on
    the disk before this returns. If there are several writers, the file of the last writer stays, whole: each writer
    has a temporary file of its own. (Process numbers can be equal in containers that share a disk.)

    Raises:
        OSError: the system refuses to write, as on a full disk; the error names `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{randbits(64)}.tmp")
    try:
        temporary.write_bytes(content)
        _force_to_disk(temporary)
        temporary.replace(path)
        _force_to_disk(path.parent)
    except OSError as error:
        if error.filename in (None, str(temporary)):  # writing to an open file fails without a name
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _force_to_disk(path: Path) -> None:
    """Force a file's content, or a directory's names, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, content: object) -> None:
    """Write `content` as indented JSON, atomically."""
    write_atomically(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())


def ending_of(path: Path) -> str:
    """Return how the name of a file ends, as a clause for errors."""
    return f"the file name ends in {path.suffix!r}" if path.suffix else "the file name has no suffix"


def regular_file(path: Path, what: str) -> Path:
    """Check that `path` is a regular file, and return it; `what` names it ("plan", "manifest", ...).

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
    """Make the error for a file that the system does not let us read."""
    remedy = "Make the file readable, or give another path"
    return UserError("file-unreadable", f"{what} {path} cannot be read", limit=str(error), remedy=remedy)


def read_bytes(path: Path, what: str) -> bytes:
    """Read a regular file, whole; raise what `regular_file` does."""
    try:
        return regular_file(path, what).read_bytes()
    except OSError as error:
        raise _unreadable(path, what, error) from None


def read_json(path: Path, what: str) -> Any:
    """Read the JSON in `path`: plain values, for `schema.parse`.

    Raises:
        UserError: the file is missing or is not JSON; `what` names it ("plan", "manifest", ...).
    """
    return decode(read_bytes(path, what), f"{what} {path}")


def digest_of(*paths: Path) -> str:
    """Return the SHA-256 of files' contents, on which a run depends; raise what `read_bytes` raises."""
    return hashlib.sha256(b"".join(read_bytes(path, "file") for path in paths)).hexdigest()


def has_format(path: Path, name: str) -> bool:
    """Return True if a file begins as JSON whose "format" begins with `name`."""
    return re.match(rf'\s*\{{\s*"format"\s*:\s*"{re.escape(name)}'.encode(), beginning(path)) is not None


def beginning(path: Path) -> bytes:
    """Read the first bytes of a file; empty if the file is not regular or cannot be read.

    Only a few bytes, because the file may be a checkpoint of any size.
    """
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            return file.read(_BEGINNING_BYTES)
    except OSError:
        return b""


def check_directory(path: Path) -> None:
    """Raise UserError unless `path` is a directory that can be written to, or can be made; nothing is left there."""
    _check_place(path, (path, *path.absolute().parents), "DIRECTORY")


def check_file(path: Path) -> None:
    """Raise UserError unless there is, or can be made, a directory for the file `path`; nothing is left there."""
    _check_place(path, path.absolute().parents, "FILE")


def _check_place(out: Path, places: Sequence[Path], kind: str) -> None:
    """Raise UserError unless the first of some places that exists is a directory that can be written to."""
    nearest = next(place for place in places if os.path.lexists(place))
    remedy = f"Choose another {kind.lower()} with out={kind}"
    if not nearest.is_dir():
        what = f"{nearest} exists, but is not a directory"
        raise UserError("out-under-file", what, where=f"out={out}", remedy=remedy)
    try:
        with TemporaryFile(dir=nearest):  # which tells: root may write to /proc, and can't
            pass
    except OSError as error:
        reason = "has no space left" if error.errno == errno.ENOSPC else "cannot be written to"
        what = f"the directory {nearest} {reason}"
        raise UserError("out-unwritable", what, where=f"out={out}", remedy=remedy) from None


def by_place(paths: Iterable[Path]) -> list[list[Path]]:
    """Group paths that lead to the same place, in order, each as it was written."""
    return list(grouped(paths, Path.resolve).values())


@contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Keep other runs out of a directory, which is made; the lock ends with the process, however it ends.

    A run that leaves no file there, such as a refused one, leaves no new directory either.

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
        with suppress(OSError):  # not empty, as a rule
            for path in made:
                path.rmdir()


def _locked(lock: Path, directory: Path) -> int:
    """Lock the lock file, and return its descriptor; what a link points to is neither opened nor changed."""
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
        os.close(file)  # its owner has just ended and deleted it
