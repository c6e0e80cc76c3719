"""What ranges of rows get of their table's lookups, against counting."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import neuroshard as ns
from neuroshard.tables.reuse import MEAN_COUNTS, histogram, lookup_share, range_reuse, reuse_of_mean
from neuroshard.testing import toy_tables

GOOD = toy_tables(1)[0]


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=40), st.integers(1, 3000), st.data())
def test_shares_of_lookups_are_what_counting_row_by_row_gives(weights, rows, data):
    """With more rows than blocks, fewer, and numbers that they don't divide: a row lies in several blocks then."""
    shares = np.array(weights) / sum(weights)
    table = replace(GOOD, rows=rows, row_lookups=tuple(shares.tolist()))
    cuts = sorted({0, rows, *data.draw(st.lists(st.integers(0, rows), max_size=5))})
    found = lookup_share(table, np.array(cuts[:-1]), np.diff(cuts))
    fine = np.repeat(shares / rows, rows).reshape(rows, -1).sum(axis=1)  # each block in `rows` parts, K of them a row
    np.testing.assert_allclose(found, [fine[first:end].sum() for first, end in pairwise(cuts)], atol=1e-9)
    assert found.sum() == pytest.approx(1)


def test_lookups_are_spread_evenly_where_nobody_knows():
    assert lookup_share(replace(GOOD, rows=8), np.array([2, 0]), np.array([3, 8])).tolist() == [3 / 8, 1]


def _counted(exponent, rows=200_000, lookups=800_000):
    """How often each row is looked up, the hottest first, and the table that a trace of it makes."""
    weight = np.arange(1, rows + 1) ** -exponent
    counts = np.random.default_rng(0).multinomial(lookups, weight / weight.sum())
    indices = np.repeat(np.arange(rows), counts)
    return counts, ns.table_from_trace("t", indices, np.arange(0, lookups + 1, 8), rows, 8, row_blocks=1024)


@pytest.mark.parametrize("exponent", [0.6, 0.8, 1.05])
def test_unique_rows_of_blocks_are_about_those_of_counting(exponent):
    """With the table's histogram everywhere the coldest block would have a third of them, or less."""
    counts, table = _counted(exponent)
    first, rows = np.arange(8) * 25_000, np.full(8, 25_000)
    found = len(counts) * 4 * lookup_share(table, first, rows) / (range_reuse(table, 8e5, first, rows) @ MEAN_COUNTS)
    true = [np.count_nonzero(block) for block in np.split(counts, 8)]
    np.testing.assert_allclose(found, true, rtol=0.1)
    plain = counts.reshape(8, -1).sum(axis=1) / (np.array(table.reuse) @ MEAN_COUNTS)
    assert plain[-1] < 0.5 * true[-1]


def test_histograms_of_cold_blocks_are_about_those_of_counting():
    counts, table = _counted(1.05)
    (found,) = range_reuse(table, 8e5, np.array([175_000]), np.array([25_000]))
    counted = np.array(histogram(counts[175_000:]))
    assert np.abs(found - counted).sum() < 0.2 < np.abs(np.array(table.reuse) - counted).sum()


def test_lookups_that_are_spread_evenly_have_the_tables_histogram():
    first, rows = np.array([0, 500]), np.array([500, 500])
    table = replace(GOOD, rows=1000)
    assert (range_reuse(table, 5000.0, first, rows) == np.array(table.reuse)).all()
    known = replace(table, row_lookups=(0.25,) * 4)
    np.testing.assert_allclose(range_reuse(known, 5000.0, first, rows), [table.reuse] * 2, atol=1e-9)


def test_rows_that_are_never_looked_up_have_a_histogram_too():
    table = replace(GOOD, rows=1000, row_lookups=(1.0, 0.0))
    found = range_reuse(table, 5000.0, np.array([0, 500]), np.array([500, 500]))
    np.testing.assert_allclose(found.sum(axis=1), 1)
    assert np.isfinite(found).all()


@given(st.lists(st.floats(0.001, 1), min_size=17, max_size=17), st.floats(0.01, 0.99))
def test_histograms_are_bent_to_any_mean_between_their_counts(weights, where):
    reuse = np.array(weights) / sum(weights)
    mean = MEAN_COUNTS[0] * (MEAN_COUNTS[-1] / MEAN_COUNTS[0]) ** where
    (found,) = reuse_of_mean(reuse[None], np.array([mean]))
    assert found @ MEAN_COUNTS == pytest.approx(mean, rel=1e-3)
    assert found.sum() == pytest.approx(1)


def test_a_histogram_of_one_bin_stays_as_it_is():
    once = np.eye(17)[:1]
    assert (reuse_of_mean(once, np.array([50.0])) == once).all()
