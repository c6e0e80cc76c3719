import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuroshard.tables.misses import Popularity, cache_misses, touched_rows
from neuroshard.tables.reuse import histogram, zipf_reuse

SHARES = np.array([0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95])


def _chances(rows, exponent):
    weight = np.arange(1, rows + 1.0) ** -exponent
    return weight / weight.sum()


def _rates(rows, exponent, lookups):
    """Of a table of any size: ranks of a Zipf law in groups."""
    edges = np.unique(np.geomspace(1, rows + 1, 1000).round())
    count, rank = np.diff(edges), np.sqrt(edges[:-1] * (edges[1:] - 1))
    weight = rank**-exponent
    return Popularity(count[None], lookups * weight / (weight * count).sum())


def _simulated(chances, lookups, cached_rows, batches=1000, warm=800, seed=0):
    """Return mean unique rows of a batch of random lookups, and mean rows missed in a warm LRU cache of each size."""
    rng = np.random.default_rng(seed)
    last = np.full(len(chances), -1.0)
    unique, missed = [], []
    for batch in range(batches):
        rows = rng.choice(len(chances), lookups, p=chances)
        if batch >= warm:
            oldest = np.maximum(np.sort(last)[-cached_rows], 0)
            touched = np.unique(rows)
            unique.append(len(touched))
            missed.append((last[touched] < oldest[:, None]).sum(axis=1))
        last[rows] = batch * lookups + np.arange(lookups)
    return np.mean(unique), np.mean(missed, axis=0)


def _by_histogram(rows, lookups, reuse, shares=SHARES):
    count = len(shares)
    table = np.full(count, float(rows)), np.full(count, float(lookups)), np.tile(reuse, (count, 1))
    return cache_misses(*table, shares)


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.0, 1.2])
def test_popularity_predicts_the_misses_of_a_simulated_cache(exponent):
    chances, lookups, cached_rows = _chances(4000, exponent), 500, np.array([100, 800, 2000, 3000])
    rates = Popularity(np.ones((1, 4000)), lookups * chances)
    unique, missed = _simulated(chances, lookups, cached_rows)
    assert rates.unique_rows(np.ones(1))[0, 0] == pytest.approx(unique, rel=0.01)
    found = unique * np.array([rates.missed_share(np.array([rows / 4000]))[0] for rows in cached_rows])
    assert found == pytest.approx(missed, rel=0.04, abs=0.01 * unique)


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.0, 1.2])
@pytest.mark.parametrize(("rows", "lookups"), [(10**6, 10**5), (10**5, 10**5), (10**6, 5000), (20_000, 200_000)])
def test_missed_share_follows_from_the_reuse_histogram(exponent, rows, lookups):
    """The number of missed rows is within 7% of the unique rows of a batch."""
    rates = _rates(rows, exponent, lookups)
    right = np.array([rates.missed_share(np.array([share]))[0] for share in SHARES])
    counts = np.random.default_rng(0).poisson(lookups * _chances(rows, exponent))
    reuse = np.array(histogram(counts))
    touched = touched_rows(np.array([rows]), np.array([lookups]), reuse[None])
    assert touched == pytest.approx(rates.unique_rows(np.ones(1))[0], rel=0.15)
    assert _by_histogram(rows, lookups, reuse) / touched == pytest.approx(right, abs=0.07)


tables = st.tuples(
    st.integers(1, 10**9),
    st.floats(1, 1e8),
    st.lists(st.floats(0, 1), min_size=17, max_size=17).filter(lambda shares: sum(shares) > 0.01),
)


@given(tables, st.lists(st.floats(0, 1), min_size=2, max_size=6))
def test_larger_cache_shares_do_not_increase_misses(table, shares):
    rows, lookups, counts = table
    reuse = np.array(counts) / sum(counts)
    shares = np.array([0.0, *sorted(shares), 1.0])
    missed = _by_histogram(rows, lookups, reuse, shares)
    touched = touched_rows(np.array([rows]), np.array([lookups]), reuse[None])
    assert missed[0] == pytest.approx(touched[0])
    assert missed[-1] == pytest.approx(0, abs=1e-9 * touched[0])
    assert (np.diff(missed) <= 1e-9 * touched[0]).all()


@given(st.integers(10, 10**7), st.floats(1e-5, 2), st.floats(0, 1.3), st.floats(0, 0.9))
def test_more_lookups_per_batch_increase_cache_misses(rows, lookups_per_row, exponent, share):
    """Up to 2 lookups per row and batch; with more, histograms say too little of rows that are all looked up."""
    lookups = max(rows * lookups_per_row, 10)
    few, many = (
        _by_histogram(rows, of_batch, np.array(zipf_reuse(rows, of_batch, exponent)), np.array([share]))[0]
        for of_batch in (lookups, 4 * lookups)
    )
    assert many >= few * 0.8


def test_popularity_predicts_more_misses_at_higher_rates():
    rates = 50 * _chances(1000, 1.05)
    missed = [Popularity(np.ones((len(SHARES), 1000)), factor * rates) for factor in (1, 2, 4, 8)]
    found = np.array([one.missed_share(SHARES) * one.unique_rows(np.ones(1))[:, 0] for one in missed])
    assert (np.diff(found, axis=0) > 0).all()


def test_tables_without_lookups_have_no_misses():
    once = np.eye(17)[0]
    assert _by_histogram(1000, 0.0, once) == pytest.approx(np.zeros(len(SHARES)))


def test_cache_misses_of_a_table_do_not_depend_on_other_tables():
    """The misses of a table do not depend on the other tables of the call, or on their order."""
    rng = np.random.default_rng(0)
    rows, lookups = rng.integers(1, 10**6, 12) * 1.0, rng.uniform(1, 1e5, 12)
    reuse, cached = rng.dirichlet(np.ones(17), 12), rng.uniform(0, 1, 12)
    twice = [np.concatenate([values, values[::-1]]) for values in (rows, lookups, reuse, cached)]
    alone = [
        cache_misses(rows[i : i + 1], lookups[i : i + 1], reuse[i : i + 1], cached[i : i + 1])[0] for i in range(12)
    ]
    assert cache_misses(*twice) == pytest.approx([*alone, *alone[::-1]])
