"""Who goes where when everybody needs a place of one's own: bipartite matching, in polynomial time."""

import numpy as np

from neuroshard.plumbing.arrays import BoolArray, IntArray


def own_places(allowed: BoolArray) -> IntArray | None:
    """(n,) a place for each of n that no other has, of those that `allowed` (n, m) lets it have.

    None proves that there is no way.
    """
    from scipy.sparse import csr_array  # slow to import: only where it is used
    from scipy.sparse.csgraph import maximum_bipartite_matching

    count, places = allowed.shape
    if count > places or not allowed.any(axis=1).all():
        return None
    found = maximum_bipartite_matching(csr_array(allowed), perm_type="column")
    return None if (found < 0).any() else found.astype(np.int64)
