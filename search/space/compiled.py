"""How functions are compiled that others call in their innermost loops."""

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

_Function = TypeVar("_Function", bound=Callable[..., object])


def leaf(function: _Function) -> _Function:
    """Compiled into its callers: in a call, counting references to its arrays takes longer than what it does."""
    compiled: Any = njit(cache=True, nogil=True, forceinline=True)(function)
    return compiled  # type: ignore[no-any-return]


def fast_leaf(function: _Function) -> _Function:
    """A leaf whose sums may be taken in any order."""
    compiled: Any = njit(cache=True, nogil=True, forceinline=True, fastmath={"reassoc", "contract", "nsz"})(function)
    return compiled  # type: ignore[no-any-return]
