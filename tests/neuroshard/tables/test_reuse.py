import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuroshard.tables.reuse import draw_counts, histogram, zipf_reuse


def test_histogram_bins_by_powers_of_two():
    shares = histogram(np.array([1, 1, 2, 3, 4, 5, 8, 0, 32768, 32769]))
    expected = np.zeros(17)
    expected[[0, 1, 2, 3, 15, 16]] = np.array([2, 1, 2, 2, 1, 1]) / 9
    assert np.allclose(shares, expected)


def test_zipf_reuse_agrees_with_drawing():
    rows, lookups, exponent = 5000, 40000, 0.9
    weight = np.arange(1, rows + 1) ** -exponent
    counts = np.random.default_rng(0).multinomial(lookups, weight / weight.sum())
    assert np.abs(np.array(zipf_reuse(rows, lookups, exponent)) - histogram(counts)).sum() < 0.05


@given(rows=st.integers(1, 10**6), pooling=st.floats(0.1, 200), exponent=st.floats(0, 2), seed=st.integers(0, 99))
@settings(max_examples=80, deadline=None)
def test_drawn_counts_keep_lookups_and_rows(rows, pooling, exponent, seed):
    lookups = max(1, round(512 * pooling))
    counts = draw_counts(zipf_reuse(rows, lookups, exponent), rows, lookups, np.random.default_rng(seed))
    assert counts.sum() == lookups
    assert counts.min() >= 1
    assert len(counts) <= rows


@pytest.mark.parametrize(("rows", "exponent"), [(100_000, 0.6), (3000, 1.1), (200, 0.3)])
def test_drawn_counts_follow_the_histogram(rows, exponent):
    reuse = zipf_reuse(rows, 30_000, exponent)
    counts = draw_counts(reuse, rows, 30_000, np.random.default_rng(1))
    assert np.abs(np.array(histogram(counts)) - reuse).sum() < 0.25
