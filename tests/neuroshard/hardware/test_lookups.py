import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from neuroshard.hardware.lookups import draw_lookups
from neuroshard.tables.reuse import histogram
from neuroshard.testing import toy_tables


@given(st.integers(0, 50), st.integers(1, 300))
@settings(max_examples=40, deadline=None)
def test_lookups_match_the_table(seed, batch_size):
    table = toy_tables(1, seed)[0]
    indices, lengths = draw_lookups(table, batch_size, np.random.default_rng(seed))
    assert len(lengths) == batch_size
    assert lengths.sum() == len(indices) == max(1, round(batch_size * table.pooling_factor))
    assert lengths.max() - lengths.min() <= 1
    assert 0 <= indices.min() <= indices.max() < table.rows


def test_lookups_follow_the_reuse_histogram():
    for table in toy_tables(8, seed=3, max_rows=20_000):
        indices, _ = draw_lookups(table, 256, np.random.default_rng(0))
        drawn = np.array(histogram(np.unique(indices, return_counts=True)[1]))
        assert np.abs(drawn - table.reuse).sum() < 0.3
