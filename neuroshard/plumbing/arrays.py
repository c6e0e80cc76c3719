"""Array types used in signatures, whose shapes and units stand in each docstring; sums and a matching over arrays."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Float32Array = NDArray[np.float32]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Floats = TypeVar("Floats", FloatArray, Float32Array)


def sums_of(amounts: Floats, counts: IntArray) -> Floats:
    """Add up amounts (N, ...) by group, (n, ...): groups of so many, (n,), one at least, follow one another."""
    sums: Floats = np.add.reduceat(amounts, counts.cumsum() - counts, axis=0)
    return sums


def own_places(allowed: BoolArray) -> IntArray | None:
    """Give each of n a place of its own, (n,), of those that `allowed` (n, m) lets it have, in polynomial time.

    None proves that there is no way.
    """
    from scipy.sparse import csr_array  # slow to import: only where it is used
    from scipy.sparse.csgraph import maximum_bipartite_matching

    count, places = allowed.shape
    if count > places or not allowed.any(axis=1).all():
        return None
    matched = maximum_bipartite_matching(csr_array(allowed), perm_type="column")
    return None if (matched < 0).any() else matched.astype(np.int64)
