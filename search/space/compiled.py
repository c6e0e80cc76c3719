"""How functions are compiled that others call in their innermost loops."""

from typing import Any

from numba import njit

# Without counting references to the arrays that it is given, which would take longer than what it does with them; so
# it must make no arrays of its own.
leaf: Any = njit(cache=True, nogil=True, _nrt=False)
