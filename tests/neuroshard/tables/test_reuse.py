"""Reuse histograms, and the lookups of ranges of rows, compared with counting."""

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import neuroshard as ns
from neuroshard import zipf_reuse
from neuroshard.tables.reuse import (
    BOTTOMS,
    MEAN_COUNTS,
    TOPS,
    histogram,
    lookup_share,
    range_reuse,
    reuse_at,
    reuse_of_mean,
)
from neuroshard.testing import toy_tables
from tests.kit.messages import refused

GOOD = toy_tables(1)[0]


def test_histogram_bins_by_powers_of_two():
    shares = histogram(np.array([1, 1, 2, 3, 4, 5, 8, 0, 32768, 32769]))
    expected = np.zeros(17)
    expected[[0, 1, 2, 3, 15, 16]] = np.array([2, 1, 2, 2, 1, 1]) / 9
    assert np.allclose(shares, expected)


def _drawn_by_zipf(rows, lookups, exponent):
    """(rows,) how often each row is looked up, the hottest first."""
    weight = np.arange(1, rows + 1) ** -exponent
    return np.random.default_rng(0).multinomial(lookups, weight / weight.sum())


def test_zipf_reuse_agrees_with_counts_of_drawn_rows():
    counts = _drawn_by_zipf(5000, 40000, 0.9)
    assert np.abs(np.array(zipf_reuse(5000, 40000, 0.9)) - histogram(counts)).sum() < 0.05


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((0, 10.0), ["rows", 0]),
        ((True, 10.0), ["rows", True]),
        ((10, 0.0), ["lookups", 0.0]),
        ((10, float("nan")), ["lookups", "nan"]),
        ((10, "7"), ["lookups", "'7'"]),
        ((10, 7.0, -1.0), ["exponent", -1.0]),
        ((10, 7.0, 1e308), ["exponent", 1e308]),
        ((10, 7.0, 1.0, -2.0), ["shift", -2.0]),
    ],
)
def test_zipf_reuse_errors_name_the_value_out_of_range(arguments, names):
    with refused("value-outside-limits", names=names):
        ns.zipf_reuse(*arguments)


@pytest.mark.parametrize("rows", [1, 2, 100, 1 << 40])
@pytest.mark.parametrize("exponent", [0.0, 1.05, 10.0])
@pytest.mark.parametrize("lookups", [1e-3, 1.0, 1e6, 1e15])
def test_zipf_reuse_returns_a_valid_histogram(rows, exponent, lookups):
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
def test_histogram_of_a_smaller_batch_agrees_with_drawn_lookups(weights, fraction, seed):
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


def test_reuse_at_a_share_of_one_equals_the_given_histogram():
    reuse = np.array([zipf_reuse(10**6, 10**7), zipf_reuse(10, 10**6)])
    np.testing.assert_allclose(reuse_at(reuse, 1.0), reuse, atol=1e-12)


@pytest.mark.filterwarnings("error")
def test_reuse_at_a_smaller_share_gives_no_numerical_warning():
    reuse_at(np.array([zipf_reuse(1000, 5000)]), 0.3217)  # no other test has this share: they are kept


def test_reuse_at_an_eighth_of_a_zipf_batch_is_near_the_zipf_histogram():
    """Both batches follow a Zipf law, with counts that are far from uniform within a bin."""
    rows, lookups = 100_000, 4_000_000
    whole, part = np.array(zipf_reuse(rows, lookups)), np.array(zipf_reuse(rows, lookups / 8))
    assert np.abs(reuse_at(whole, 1 / 8) - part).sum() < 0.1 < np.abs(whole - part).sum()


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=40), st.integers(1, 3000), st.data())
def test_lookup_shares_equal_shares_counted_row_by_row(weights, rows, data):
    """With more rows than blocks, fewer, and numbers that they don't divide: a row is in several blocks then."""
    shares = np.array(weights) / sum(weights)
    table = replace(GOOD, rows=rows, row_lookups=tuple(shares.tolist()))
    cuts = sorted({0, rows, *data.draw(st.lists(st.integers(0, rows), max_size=5))})
    found = lookup_share(table, np.array(cuts[:-1]), np.diff(cuts))
    fine = np.repeat(shares / rows, rows).reshape(rows, -1).sum(axis=1)  # each block in `rows` parts, K of them a row
    np.testing.assert_allclose(found, [fine[first:end].sum() for first, end in pairwise(cuts)], atol=1e-9)
    assert found.sum() == pytest.approx(1)


def test_lookup_share_is_the_share_of_rows_if_row_lookups_are_unknown():
    assert lookup_share(replace(GOOD, rows=8), np.array([2, 0]), np.array([3, 8])).tolist() == [3 / 8, 1]


def _counted(exponent, rows=200_000, lookups=800_000):
    """How often each row is looked up, and the table that a trace of it makes."""
    counts = _drawn_by_zipf(rows, lookups, exponent)
    indices = np.repeat(np.arange(rows), counts)
    return counts, ns.table_from_trace("t", indices, np.arange(0, lookups + 1, 8), rows, 8, row_blocks=1024)


@pytest.mark.parametrize("exponent", [0.6, 0.8, 1.05])
def test_unique_rows_of_blocks_agree_with_counted_rows(exponent):
    """With the histogram of the whole table, the coldest block would have less than half of its unique rows."""
    counts, table = _counted(exponent)
    first, rows = np.arange(8) * 25_000, np.full(8, 25_000)
    found = len(counts) * 4 * lookup_share(table, first, rows) / (range_reuse(table, 8e5, first, rows) @ MEAN_COUNTS)
    true = [np.count_nonzero(block) for block in np.split(counts, 8)]
    np.testing.assert_allclose(found, true, rtol=0.1)
    plain = counts.reshape(8, -1).sum(axis=1) / (np.array(table.reuse) @ MEAN_COUNTS)
    assert plain[-1] < 0.5 * true[-1]


def test_histograms_of_cold_blocks_agree_with_counted_rows():
    counts, table = _counted(1.05)
    (found,) = range_reuse(table, 8e5, np.array([175_000]), np.array([25_000]))
    counted = np.array(histogram(counts[175_000:]))
    assert np.abs(found - counted).sum() < 0.2 < np.abs(np.array(table.reuse) - counted).sum()


def test_row_ranges_with_evenly_spread_lookups_have_the_table_histogram():
    first, rows = np.array([0, 500]), np.array([500, 500])
    table = replace(GOOD, rows=1000)
    assert (range_reuse(table, 5000.0, first, rows) == np.array(table.reuse)).all()
    known = replace(table, row_lookups=(0.25,) * 4)
    np.testing.assert_allclose(range_reuse(known, 5000.0, first, rows), [table.reuse] * 2, atol=1e-9)


def test_row_ranges_without_lookups_have_a_valid_histogram():
    table = replace(GOOD, rows=1000, row_lookups=(1.0, 0.0))
    found = range_reuse(table, 5000.0, np.array([0, 500]), np.array([500, 500]))
    np.testing.assert_allclose(found.sum(axis=1), 1)
    assert np.isfinite(found).all()


@given(st.lists(st.floats(0.001, 1), min_size=17, max_size=17), st.floats(0.01, 0.99))
def test_reuse_of_mean_returns_a_histogram_of_any_mean_between_bin_counts(weights, where):
    reuse = np.array(weights) / sum(weights)
    mean = MEAN_COUNTS[0] * (MEAN_COUNTS[-1] / MEAN_COUNTS[0]) ** where
    (found,) = reuse_of_mean(reuse[None], np.array([mean]))
    assert found @ MEAN_COUNTS == pytest.approx(mean, rel=1e-3)
    assert found.sum() == pytest.approx(1)


def test_reuse_histogram_with_one_bin_is_unchanged():
    once = np.eye(17)[:1]
    assert (reuse_of_mean(once, np.array([50.0])) == once).all()
