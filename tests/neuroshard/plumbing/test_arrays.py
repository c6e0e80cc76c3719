"""Assignments of distinct places, compared with trying all."""

from itertools import permutations

import numpy as np
import pytest

from neuroshard.plumbing.arrays import own_places


@pytest.mark.parametrize("seed", range(60))
def test_own_places_finds_distinct_places_if_and_only_if_there_are_any(seed):
    rng = np.random.default_rng(seed)
    count, places = int(rng.integers(1, 5)), int(rng.integers(1, 6))
    allowed = rng.random((count, places)) < rng.uniform(0.2, 0.8)
    ways = [way for way in permutations(range(places), count) if allowed[range(count), list(way)].all()]
    found = own_places(allowed)
    if found is None:
        assert not ways
    else:
        assert tuple(found.tolist()) in ways


def test_own_places_handles_hundreds_of_places():
    """Trying all assignments would never end: each item allows the places of the item before it, and one more."""
    assert own_places(np.tril(np.ones((200, 200), dtype=np.bool_))) is not None
    crowded = np.zeros((40, 60), dtype=np.bool_)
    crowded[:, :39] = True
    assert own_places(crowded) is None


def test_places_of_an_empty_array_are_empty():
    assert own_places(np.zeros((0, 3), dtype=np.bool_)).tolist() == []
