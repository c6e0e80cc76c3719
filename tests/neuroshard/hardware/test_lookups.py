import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neuroshard.hardware.lookups import draw_counts, draw_lookups
from neuroshard.tables import Table
from neuroshard.tables.reuse import histogram, zipf_reuse
from neuroshard.testing import toy_tables


def _generator(seed):
    return torch.Generator().manual_seed(seed)


@given(st.integers(0, 50), st.integers(1, 300))
@settings(max_examples=40, deadline=None)
def test_lookups_match_the_table(seed, batch_size):
    table = toy_tables(1, seed)[0]
    indices, lengths = draw_lookups(table, batch_size, _generator(seed))
    assert len(lengths) == batch_size
    assert lengths.sum() == len(indices) == max(1, round(batch_size * table.pooling_factor))
    assert lengths.max() - lengths.min() <= 1
    assert 0 <= indices.min() <= indices.max() < table.rows


def test_lookups_follow_the_reuse_histogram():
    for table in toy_tables(8, seed=3, max_rows=20_000):
        indices, _ = draw_lookups(table, 256, _generator(0))
        drawn = np.array(histogram(indices.unique(return_counts=True)[1].numpy()))
        assert np.abs(drawn - table.reuse).sum() < 0.3


def _table(rows, reuse):
    return Table("t", rows, 4, 1.0, reuse)


@given(rows=st.integers(1, 10**6), pooling=st.floats(0.1, 200), exponent=st.floats(0, 2), seed=st.integers(0, 99))
@settings(max_examples=80, deadline=None)
def test_drawn_counts_keep_lookups_and_rows(rows, pooling, exponent, seed):
    lookups = max(1, round(512 * pooling))
    counts = draw_counts(_table(rows, zipf_reuse(rows, lookups, exponent)), lookups, _generator(seed))
    assert counts.sum() == lookups
    assert counts.min() >= 1
    assert len(counts) <= rows


@pytest.mark.parametrize(("rows", "exponent"), [(100_000, 0.6), (3000, 1.1), (200, 0.3)])
def test_drawn_counts_follow_the_histogram(rows, exponent):
    reuse = zipf_reuse(rows, 30_000, exponent)
    counts = draw_counts(_table(rows, reuse), 30_000, _generator(1))
    assert np.abs(np.array(histogram(counts.numpy())) - reuse).sum() < 0.25


def test_the_same_seed_draws_the_same():
    table = toy_tables(1)[0]
    one, other, third = (draw_lookups(table, 64, _generator(seed))[0] for seed in (1, 1, 2))
    assert torch.equal(one, other)
    assert not torch.equal(one, third)


def test_hot_rows_are_different_ones_of_the_table():
    """Few rows of many, and most rows of few."""
    for rows in (10**7, 150):
        table = Table("t", rows, 4, 1.0, (1.0, *(0.0,) * 16))
        indices, _ = draw_lookups(table, 100, _generator(0))
        assert len(indices.unique()) == 100
        assert rows // 3 < float(indices.double().mean()) < 2 * rows // 3
