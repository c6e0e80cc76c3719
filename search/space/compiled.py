"""How functions are compiled, and how long what was compiled is kept."""

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import __version__, njit

from neuroshard.plumbing.errors import warn_of
from neuroshard.plumbing.messages import Message

_Function = TypeVar("_Function", bound=Callable[..., object])
_SEARCH = Path(__file__).resolve().parents[1]
_FOLDERS = ("kernels", "space")  # of the search, that hold compiled functions
_MARK = b"space.compiled import"  # in every file that does
_ANY_ORDER = {"reassoc", "contract", "nsz"}


@cache
def sources_digest(search: Path = _SEARCH) -> str:
    """Compute a digest of all files of a search that hold compiled functions, and of this one."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted(path for folder in _FOLDERS for path in (search / folder).glob("*.py")):
        if _MARK in (source := path.read_bytes()):
            digest.update(source)
    return digest.hexdigest()


def kernel(function: _Function) -> _Function:
    """Compile a function, and keep it on disk until any of the sources changes."""
    return _compiled(function)


def leaf(function: _Function) -> _Function:
    """Compile a function into its callers: in a call, counting references to its arrays takes longer than its work."""
    return _compiled(function, forceinline=True)


def inlined(function: _Function) -> _Function:
    """Copy a function into its callers before they are compiled, where a leaf that calls leaves would count all along.

    It takes longer to compile, and functions that return early in loops may become slower so: measure.
    """
    return _compiled(function, inline="always")


def fast_leaf(function: _Function) -> _Function:
    """Compile a leaf whose sums may be taken in any order."""
    return _compiled(function, forceinline=True, fastmath=_ANY_ORDER)


def _compiled(function: _Function, **options: Any) -> _Function:
    """Compile a function by numba's `options`; with NUMBA_DISABLE_JIT=1, numba leaves it a function of plain Python."""
    compiled: Any = njit(nogil=True, **options)(function)
    if compiled is not function:
        _keep_on_disk(compiled)
    return cast(_Function, compiled)


def _keep_on_disk(compiled: Any) -> None:
    """Keep a compiled function on disk until any of the sources changes, or warn that numba finds no place for it.

    Numba looks at the file of the function alone, but what it keeps holds what the function calls in other files. What
    is kept of other versions isn't read any further: it may name modules that there are no longer.
    """
    try:
        compiled.enable_caching()
    except RuntimeError:
        _warn_uncached()
        return
    kept, digest = compiled._cache._cache_file, sources_digest()
    kept._source_stamp, kept._version = digest, f"{__version__} {digest}"


@cache
def _warn_uncached() -> None:
    """Warn once per process that no compiled function is saved."""
    warn_of(
        "neuroshard.search",
        [
            Message(
                "compiled-search-not-saved",
                "the compiled search cannot be saved, so every process compiles the search again",
                limit="neither the installation nor the home directory is writable",
                remedy="Set NUMBA_CACHE_DIR to a writable directory",
            )
        ],
    )
