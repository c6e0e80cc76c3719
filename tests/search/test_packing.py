import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from neuroshard.search.catalog import Catalog
from neuroshard.search.packing import pack, smallest_cap
from neuroshard.testing import linear_models, toy_task


def _catalog(count, seed):
    task = toy_task(count, seed=seed)
    return task, Catalog.of(task, linear_models().compute)


@given(st.integers(1, 20), st.integers(0, 9), st.integers(1, 6), st.floats(0.8, 2.0))
@settings(max_examples=60, deadline=None)
def test_packings_hold_every_column_within_every_cap(count, seed, num_devices, slack):
    task, catalog = _catalog(count, seed)
    caps = np.linspace(0.8, 1.2, num_devices) * slack * task.size_bytes / num_devices
    held = pack(catalog, caps.astype(np.int64))
    if held is None:
        return
    assert (held.sum(axis=1) == catalog.full_width).all()
    assert (catalog.size_bytes[catalog.first[:, None] + held].sum(axis=0) <= caps).all()


@given(st.integers(1, 20), st.integers(0, 9), st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_the_smallest_cap_is_enough_and_near_the_bound(count, seed, num_devices):
    task, catalog = _catalog(count, seed)
    cap = smallest_cap(catalog, num_devices)
    assert pack(catalog, np.full(num_devices, cap)) is not None
    slice_bytes = int(catalog.size_bytes[catalog.first + 1].max())
    assert task.size_bytes / num_devices <= cap <= 1.01 * (task.size_bytes / num_devices + slice_bytes)


def test_half_the_memory_is_not_enough():
    task, catalog = _catalog(6, 0)
    assert pack(catalog, np.full(2, task.size_bytes // 4)) is None
