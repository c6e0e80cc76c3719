"""Decorators that compile functions with numba, and keep the compiled code on disk until a source file changes."""

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import __version__, njit

from neuroshard.plumbing.errors import warn_of
from neuroshard.plumbing.messages import Message

_Function = TypeVar("_Function", bound=Callable[..., object])
_SEARCH = Path(__file__).resolve().parent
_FOLDERS = ("published", "space", "kernels")  # of the search, with compiled functions
_MARK = b"search.jit import"  # in every file with compiled functions
_ANY_ORDER = {"reassoc", "contract", "nsz"}


@cache
def sources_digest(search: Path = _SEARCH) -> str:
    """Return a digest (hash) of all source files with compiled functions below the directory `search`, and of this
    file. Compiled code on disk is used only if the digest is unchanged.
    """
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted(path for folder in _FOLDERS for path in (search / folder).glob("*.py")):
        if _MARK in (source := path.read_bytes()):
            digest.update(source)
    return digest.hexdigest()


def jit(function: _Function) -> _Function:
    """Compile a function, and keep the compiled code on disk until any of the source files changes."""
    return _compiled(function)


def jit_inline(function: _Function) -> _Function:
    """Compile a small function, and insert the compiled code into the compiled functions that call the small function.

    In a call, numba counts references to the arrays among the arguments, which takes longer than the work of a small
    function.
    """
    return _compiled(function, forceinline=True)


def jit_paste(function: _Function) -> _Function:
    """Copy a small function into the source of the functions that call this function, before numba compiles the
    callers.

    This is for functions that call `jit_inline` functions. Compilation takes longer, and a loop over a function that
    returns early may become slower: measure before you use this decorator.
    """
    return _compiled(function, inline="always")


def jit_inline_fast(function: _Function) -> _Function:
    """Compile a small function into the functions that call it, as `jit_inline` does, and let the compiler add
    floating-point numbers in any order.
    """
    return _compiled(function, forceinline=True, fastmath=_ANY_ORDER)


def _compiled(function: _Function, **options: Any) -> _Function:
    """Compile a function with numba; further keyword arguments are options of `numba.njit`. With NUMBA_DISABLE_JIT=1,
    return the Python function unchanged.
    """
    compiled: Any = njit(nogil=True, **options)(function)
    if compiled is not function:
        _keep_on_disk(compiled)
    return cast(_Function, compiled)


def _keep_on_disk(compiled: Any) -> None:
    """Keep a compiled function on disk until any of the sources changes; warn if numba finds no place for the compiled
    code.

    Numba looks at the file of the function alone, but the compiled code contains functions of other files. Code that
    was compiled from other sources is not read: it may name modules that no longer exist.
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
    """Warn once per process that numba cannot save compiled functions on disk."""
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
