import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuroshard.errors import UserError
from neuroshard.records.splits import split_tables
from neuroshard.stages.augment.comm import CommAugmentation
from neuroshard.stages.augment.compute import ComputeAugmentation
from neuroshard.testing import toy_tables

TABLES = toy_tables(30)


@given(st.integers(0, 10_000), st.sampled_from([8, 32, 128]), st.integers(1, 15), st.integers(40_000, 10_000_000))
@settings(max_examples=60, deadline=None)
def test_combinations_keep_their_caps(seed, max_dim, max_tables, max_bytes):
    augmentation = ComputeAugmentation(max_dim, 1, max_tables, max_bytes)
    split = split_tables(TABLES, 0)
    sample, name = augmentation.draw(split, 256, np.random.default_rng(seed))
    assert 1 <= len(sample.tables) <= max_tables
    assert sample.size_bytes <= max_bytes
    assert all(table.dim <= max_dim and (table.dim & (table.dim - 1)) == 0 for table in sample.tables)
    assert {table.name for table in sample.tables} <= {table.name for table in split.group(name)}


def test_combinations_cover_every_width_and_count():
    rng = np.random.default_rng(0)
    samples = [
        ComputeAugmentation(max_dim=32, max_tables=5).draw(split_tables(TABLES, 0), 256, rng)[0] for _ in range(300)
    ]
    assert {len(sample.tables) for sample in samples} == {1, 2, 3, 4, 5}
    assert {table.dim for sample in samples for table in sample.tables} == {4, 8, 16, 32}


def test_a_share_of_the_tables_has_any_width():
    rng = np.random.default_rng(0)
    augmentation = ComputeAugmentation(max_dim=32, max_tables=5, any_width_share=0.5)
    samples = [augmentation.draw(split_tables(TABLES, 0), 256, rng)[0] for _ in range(300)]
    dims = [table.dim for sample in samples for table in sample.tables]
    assert set(dims) == set(range(4, 36, 4))
    odd = sum((dim & (dim - 1)) != 0 for dim in dims) / len(dims)
    assert 0.1 < odd < 0.3


def test_a_small_group_repeats_tables_at_other_widths_only():
    rng = np.random.default_rng(0)
    for _ in range(50):
        sample, _ = ComputeAugmentation(max_dim=16).draw(split_tables(toy_tables(3), 0), 256, rng)
        assert len({(table.name, table.dim) for table in sample.tables}) == len(sample.tables)


def test_a_table_that_fits_at_no_width_is_refused():
    with pytest.raises(UserError, match="above max_bytes=100"):
        ComputeAugmentation(max_bytes=100).check(TABLES)


def test_exchanges_range_from_balanced_to_lopsided():
    rng = np.random.default_rng(0)
    samples = [CommAugmentation(max_start_ms=20).draw(4, 256, rng)[0] for _ in range(300)]
    imbalance = [max(s.dims) / (sum(s.dims) / 4) for s in samples]
    assert min(imbalance) < 1.1
    assert max(imbalance) > 1.6
    starts = np.array([s.start_ms for s in samples])
    assert starts.min() >= 0
    assert 15 < starts.max() <= 20
    assert all(dim % 4 == 0 for s in samples for dim in s.dims)


def test_splits_are_disjoint_and_complete():
    split = split_tables(TABLES, 7)
    assert split == split_tables(TABLES, 7)
    names = [table.name for group in (split.train, split.valid, split.test) for table in group]
    assert sorted(names) == sorted(table.name for table in TABLES)
    assert (len(split.valid), len(split.test)) == (3, 3)
    with pytest.raises(UserError, match="at least 3"):
        split_tables(TABLES[:2], 0)


@pytest.mark.parametrize("settings", [{"min_tables": 0}, {"min_tables": 9, "max_tables": 3}, {"max_dim": 20}])
def test_impossible_augmentations_are_refused(settings):
    for kind in (ComputeAugmentation, CommAugmentation):
        with pytest.raises(UserError, match=next(iter(settings))):
            kind(**settings)


def test_impossible_shares_and_device_counts_are_refused():
    with pytest.raises(UserError, match="any_width_share=2"):
        ComputeAugmentation(any_width_share=2)
    for counts in ((), (0,), 4):
        with pytest.raises(UserError, match=r"num_devices.* must be a (list|whole number)"):
            CommAugmentation(num_devices=counts)
