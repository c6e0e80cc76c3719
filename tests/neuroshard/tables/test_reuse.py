import numpy as np

from neuroshard.tables.reuse import histogram, zipf_reuse


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
