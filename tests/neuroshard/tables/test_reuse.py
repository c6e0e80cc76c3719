import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import neuroshard as ns
from neuroshard.plumbing.errors import UserError
from neuroshard.tables.reuse import BOTTOMS, TOPS, histogram, reuse_at, zipf_reuse


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 10.0), "rows=0"),
        ((True, 10.0), "rows=True must be a whole number"),
        ((10, 0.0), "lookups=0.0 must be a number above 0"),
        ((10, float("nan")), "lookups=nan"),
        ((10, "7"), "lookups='7' must be a number"),
        ((10, 7.0, -1.0), "exponent=-1.0"),
        ((10, 7.0, 1e308), "exponent="),
        ((10, 7.0, 1.0, -2.0), "shift=-2.0"),
    ],
)
def test_the_helper_says_what_is_out_of_range(arguments, message):
    with pytest.raises(UserError, match=message):
        ns.zipf_reuse(*arguments)


@pytest.mark.parametrize("rows", [1, 2, 100, 1 << 40])
@pytest.mark.parametrize("exponent", [0.0, 1.05, 10.0])
@pytest.mark.parametrize("lookups", [1e-3, 1.0, 1e6, 1e15])
def test_the_helper_makes_what_a_table_takes(rows, exponent, lookups):
    reuse = ns.zipf_reuse(rows, lookups, exponent)
    assert ns.Table("t", rows, 4, 1.0, reuse).reuse == reuse


def test_slow_parts_of_scipy_are_not_imported():
    code = "import neuroshard as ns, sys; ns.zipf_reuse(10, 5); ns.load_tables('dlrm_like', num_tables=2)"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print('scipy.stats' in sys.modules)"], check=True, capture_output=True
    )
    assert done.stdout.decode().strip() == "False"


@given(
    st.lists(st.floats(0, 1), min_size=17, max_size=17),
    st.sampled_from([0.9, 0.5, 0.25, 1 / 8, 0.01]),
    st.integers(0, 99),
)
def test_histograms_of_smaller_batches_are_those_of_drawing(weights, fraction, seed):
    """Rows counted in a batch, each lookup of them kept or not: both histograms."""
    shares = np.array([1.0, *weights[1:]]) / (1 + sum(weights[1:]))
    rng = np.random.default_rng(seed)
    counts = _drawn(shares, 20_000, rng)
    found = reuse_at(np.array(histogram(counts)), fraction)
    thinned = rng.binomial(counts, fraction)
    touched = (thinned > 0).sum()
    assert found.sum() == pytest.approx(1)
    assert np.abs(found - histogram(thinned)).max() < 5 * (0.25 / touched) ** 0.5 + 0.01


def _drawn(shares, rows, rng):
    """(U,) counts with such a histogram, uniform within each bin."""
    bins = rng.choice(17, size=rows, p=shares)
    return rng.integers(BOTTOMS[bins] + 1, TOPS[bins], endpoint=True)


def test_the_whole_batch_has_its_own_histogram():
    reuse = np.array([zipf_reuse(10**6, 10**7), zipf_reuse(10, 10**6)])
    np.testing.assert_allclose(reuse_at(reuse, 1.0), reuse, atol=1e-12)


@pytest.mark.filterwarnings("error")
def test_histograms_of_smaller_batches_warn_of_nothing():
    reuse_at(np.array([zipf_reuse(1000, 5000)]), 0.3217)  # no other test has this share: they are kept


def test_a_smaller_batch_has_the_histogram_of_its_own_lookups():
    """What a Zipf law says of both batches, far from where counts within a bin are uniform."""
    rows, lookups = 100_000, 4_000_000
    whole, part = np.array(zipf_reuse(rows, lookups)), np.array(zipf_reuse(rows, lookups / 8))
    assert np.abs(reuse_at(whole, 1 / 8) - part).sum() < 0.1 < np.abs(whole - part).sum()
