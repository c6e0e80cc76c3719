"""Array types for annotations, and functions on arrays: sums over groups, means over devices, and a matching of items
to places.

The docstring of each function that takes or returns an array states the array's shape and unit.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Float32Array = NDArray[np.float32]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Floats = TypeVar("Floats", FloatArray, Float32Array)


def sums_of(amounts: Floats, counts: IntArray) -> Floats:
    """Divide `amounts` (N, ...) into n consecutive groups, and return the sum of each group, (n, ...).
    For example, the amounts [1, 2, 3] with the counts [2, 1] form the groups [1, 2] and [3], with the sums [3, 3].

    `counts` (n,) has the number of amounts in each group, at least 1; the counts sum to N.
    """
    sums: Floats = np.add.reduceat(amounts, counts.cumsum() - counts, axis=0)
    return sums


def evenly(amounts: FloatArray) -> FloatArray:
    """Average `amounts` (B, D, ...) over D devices for each of B plans, and return an array of the same shape.
    In the result, every device of a plan has the plan's mean amount.
    """
    return np.broadcast_to(amounts.mean(axis=1, keepdims=True), amounts.shape).copy()


def own_places(allowed: BoolArray) -> IntArray | None:
    """Assign each of n items to one of m places, with at most one item per place.
    An item can be assigned only to the places that are allowed for the item. Return the index of each item's place,
    (n,), or None if no such assignment exists.

    `allowed` (n, m) is True for the places that an item may have. The matching takes polynomial time.
    """
    from scipy.sparse import csr_array  # slow to import: not with this module
    from scipy.sparse.csgraph import maximum_bipartite_matching

    count, places = allowed.shape
    if count > places or not allowed.any(axis=1).all():
        return None
    matched = maximum_bipartite_matching(csr_array(allowed), perm_type="column")
    return None if (matched < 0).any() else matched.astype(np.int64)
