"""Drawn lookups match reuse histograms, row blocks, and rows that stay popular over batches."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neuroshard.measure.kernels._compute_bench import build_operator, make_arenas
from neuroshard.measure.kernels._inputs import host_run
from neuroshard.measure.kernels.drawn_lookups import (
    PopularRows,
    draw_batch,
    draw_counts,
    draw_lookups,
    in_block,
    seen_in,
)
from neuroshard.measure.specs import EmbeddingSettings
from neuroshard.measure.store.samples import ComputeSample, RowBlock
from neuroshard.tables.misses import cache_misses
from neuroshard.tables.reuse import MEAN_COUNTS, histogram, zipf_reuse
from neuroshard.testing import toy_tables
from neuroshard.words.form import Form
from neuroshard.words.placement import Tier, TierAssignment
from tests.kit.plans import table

CPU = torch.device("cpu")


def _generator(seed=0):
    return torch.Generator().manual_seed(seed)


@given(st.integers(0, 50), st.integers(1, 300), st.integers(1, 9))
def test_drawn_lookups_match_pooling_factor_and_rows(seed, batch_size, features):
    one = replace(toy_tables(1, seed)[0], features=features)
    indices, lengths = draw_lookups(one, batch_size, _generator(seed))
    assert len(lengths) == features * batch_size
    assert lengths.sum() == len(indices) == max(1, round(batch_size * one.pooling_factor))
    assert lengths.max() - lengths.min() <= 1
    assert 0 <= indices.min() <= indices.max() < one.rows


def test_drawn_lookups_follow_the_reuse_histogram_of_the_table():
    for one in toy_tables(8, seed=3, max_rows=20_000):
        indices, _ = draw_lookups(one, 256, _generator(0))
        drawn = np.array(histogram(indices.unique(return_counts=True)[1].numpy()))
        assert np.abs(drawn - one.reuse).sum() < 0.3


@given(rows=st.integers(1, 10**6), pooling=st.floats(0.1, 200), exponent=st.floats(0, 2), seed=st.integers(0, 99))
@settings(max_examples=80)
def test_draw_counts_draws_all_lookups_from_at_most_the_rows_of_the_table(rows, pooling, exponent, seed):
    lookups = max(1, round(512 * pooling))
    counts = draw_counts(table(rows=rows, reuse=zipf_reuse(rows, lookups, exponent)), lookups, _generator(seed))
    assert counts.sum() == lookups
    assert counts.min() >= 1
    assert len(counts) <= rows


@pytest.mark.parametrize(("rows", "exponent"), [(100_000, 0.6), (3000, 1.1), (200, 0.3)])
def test_draw_counts_matches_the_reuse_histogram(rows, exponent):
    reuse = zipf_reuse(rows, 30_000, exponent)
    counts = draw_counts(table(rows=rows, reuse=reuse), 30_000, _generator(1))
    assert np.abs(np.array(histogram(counts.numpy())) - reuse).sum() < 0.25


def test_draw_lookups_with_the_same_seed_draws_the_same_lookups():
    one, other, third = (draw_lookups(toy_tables(1)[0], 64, _generator(seed))[0] for seed in (1, 1, 2))
    assert torch.equal(one, other)
    assert not torch.equal(one, third)


def test_hot_rows_are_distinct_rows_of_the_table():
    """Few rows of many, and most rows of few."""
    for rows in (10**7, 150):
        indices, _ = draw_lookups(table(rows=rows, pooling_factor=1.0), 100, _generator(0))
        assert len(indices.unique()) == 100
        assert rows // 3 < float(indices.double().mean()) < 2 * rows // 3


def _blocks(rows, count):
    """Equal blocks of rows, the last one shorter; as many of the `count` as have a row."""
    most = -(-rows // count)
    return [RowBlock(row, min(most, rows - row)) for row in range(0, rows, most)]


def _pooled(rows, indices, lengths):
    return torch.nn.functional.embedding_bag(indices, rows, lengths.cumsum(0) - lengths, mode="sum")


@given(st.integers(0, 50), st.integers(1, 300), st.integers(1, 9), st.sampled_from([0.0, 0.5, 1.0]))
def test_row_blocks_split_lookups_exactly_and_partial_sums_add_up(seed, batch_size, count, hot_first):
    whole = toy_tables(1, seed)[0]
    weights = torch.randn(whole.rows, 4, generator=_generator(seed), dtype=torch.float64)
    indices, lengths = draw_lookups(whole, batch_size, _generator(seed), hot_first)
    samples = torch.arange(batch_size)
    found, given_to, parts = [], torch.zeros_like(lengths), []
    for block in _blocks(whole.rows, count):
        its, its_lengths = in_block(indices, lengths, block)
        assert len(its_lengths) == batch_size
        assert its_lengths.sum() == len(its)
        assert len(its) == 0 or 0 <= its.min() <= its.max() < block.rows
        given_to += its_lengths
        found += zip((its + block.row).tolist(), samples.repeat_interleave(its_lengths).tolist(), strict=True)
        parts.append(_pooled(weights[block.row : block.row_end], its, its_lengths))
    assert torch.equal(given_to, lengths)
    all_of_them = zip(indices.tolist(), samples.repeat_interleave(lengths).tolist(), strict=True)
    assert sorted(found) == sorted(all_of_them)
    assert torch.allclose(sum(parts), _pooled(weights, indices, lengths))


def _check_other_rows_as_often(one, lookups, changed, plain):
    """Of what is drawn in another order: so many lookups of the table, of other rows as often."""
    (ordered, lengths), (others, _) = changed, plain
    assert lengths.sum() == len(ordered) == len(others) == lookups
    assert 0 <= ordered.min() <= ordered.max() < one.rows
    assert seen_in(ordered) == seen_in(others)


@given(st.integers(0, 50), st.floats(0.01, 1))
def test_hot_first_moves_hot_rows_without_changing_how_often_rows_are_read(seed, hot_first):
    one = toy_tables(1, seed)[0]
    plain, first = (draw_lookups(one, 256, _generator(seed), *hot) for hot in ((), (hot_first,)))
    _check_other_rows_as_often(one, len(plain[0]), first, plain)


def test_hot_first_moves_hot_rows_to_the_front_ordered_by_lookups():
    one = table(rows=100_000, pooling_factor=1.0, reuse=zipf_reuse(100_000, 30_000, 1.1))
    indices, _ = draw_lookups(one, 30_000, _generator(1), hot_first=1.0)
    rows, counts = indices.unique(return_counts=True)
    hot = counts > 1
    assert torch.equal(rows[hot], torch.arange(int(hot.sum())))
    assert (counts[hot].diff() <= 0).all()
    assert rows[~hot].double().mean() > 40_000  # rows touched once are anywhere behind them
    half, counts = draw_lookups(one, 30_000, _generator(1), hot_first=0.5)[0].unique(return_counts=True)
    early = int((half[counts > 1] < hot.sum() // 2).sum())
    assert 0.4 < early / int(hot.sum()) < 0.6


def test_first_row_block_has_most_lookups_if_hot_rows_come_first():
    one = table(rows=8000, pooling_factor=1.0, reuse=zipf_reuse(8000, 4096, 1.1))
    first = ComputeSample((one,), 4096, Form.ROW_WISE, (RowBlock(0, 1000),), hot_first=1.0)
    anywhere = replace(first, hot_first=0.0)
    (hot, _), *_ = draw_batch(first, _generator(0))
    (mixed, _), *_ = draw_batch(anywhere, _generator(0))
    assert len(hot) > 0.6 * 4096 > 2 * len(mixed)


def test_seen_in_counts_lookups_and_computes_their_histogram():
    seen = seen_in(torch.tensor([5, 7, 5, 5, 1, 7]))
    assert seen.count == 6
    assert seen.reuse[:4] == pytest.approx((1 / 3, 1 / 3, 1 / 3, 0))
    assert seen_in(torch.tensor([], dtype=torch.int64)).count == 0
    assert sum(seen_in(torch.tensor([], dtype=torch.int64)).reuse) == 1


@given(
    shares=st.lists(st.floats(0, 1), min_size=1, max_size=9).filter(lambda shares: sum(shares) > 0.01),
    rows=st.integers(1, 5000),
    seed=st.integers(0, 99),
)
def test_drawn_lookups_with_any_row_lookups_keep_how_often_rows_are_read(shares, rows, seed):
    one = table(rows=rows, pooling_factor=1.0, reuse=zipf_reuse(rows, 512, 1.0))
    known = replace(one, row_lookups=tuple(np.array(shares) / sum(shares)))
    plain, spread = (draw_lookups(its, 512, _generator(seed)) for its in (one, known))
    _check_other_rows_as_often(one, 512, spread, plain)


def test_drawn_lookups_match_the_row_lookups_of_the_table():
    shares = (0.6, 0.1, 0.3, 0.0)
    one = table(rows=40_000, pooling_factor=1.0, reuse=zipf_reuse(40_000, 30_000, 0.8), row_lookups=shares)
    indices, _ = draw_lookups(one, 30_000, _generator(0))
    found = torch.bincount(indices // 10_000, minlength=4) / 30_000
    assert found.numpy() == pytest.approx(shares, abs=0.02)


def test_row_block_with_few_rows_gets_more_than_an_even_share_of_lookups():
    shares = (0.9, *(0.1 / 63,) * 63)
    one = table(rows=1024, pooling_factor=1.0, reuse=zipf_reuse(1024, 4096, 1.1), row_lookups=shares)
    indices, _ = draw_lookups(one, 4096, _generator(0))
    assert 0.3 < (indices < 16).sum() / 4096 <= 0.9  # evenly spread, it would have a 64th


# What tables in host memory are timed with: other lookups every time, of rows that stay popular.


def _popular(rows=20_000, pooling=8.0, exponent=1.05):
    return table("t", rows, 8, pooling, reuse=zipf_reuse(rows, 1000 * pooling, exponent))


TWO = (_popular(), replace(_popular(500, 3.0), name="other", features=2))


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.05])
def test_drawn_batches_look_up_the_number_of_rows_in_the_histogram(exponent):
    one = _popular(exponent=exponent)
    popular, generator = PopularRows.of(one, 1000, CPU), _generator()
    drawn = [popular.draw(generator) for _ in range(4)]
    for rows in drawn:
        assert len(rows) == 8000
        assert 0 <= rows.min() <= rows.max() < 20_000
        assert len(rows.unique()) == pytest.approx(8000 / (np.array(one.reuse) @ MEAN_COUNTS), rel=0.12)
    assert not torch.equal(drawn[0], drawn[1])


def test_popular_rows_are_the_same_in_every_drawn_batch():
    popular, generator = PopularRows.of(_popular(), 1000, CPU), _generator()
    first, second = (torch.bincount(popular.draw(generator), minlength=20_000) for _ in range(2))
    hottest = popular.hottest(0.002)
    assert len(hottest) == len(hottest.unique()) == 40
    of_first, of_second = (float(counts[hottest].sum() / 8000) for counts in (first, second))
    assert of_first == pytest.approx(of_second, abs=0.03)
    assert of_first > 0.3
    assert first[hottest[-5:]].sum() > 3 * first[hottest[:5]].sum()  # the hottest last


@pytest.mark.parametrize("rows", [1, 2, 7, 1000, 4096])
def test_popular_rows_cover_all_rows_if_all_are_popular(rows):
    popular = PopularRows.of(_popular(rows), 1000, CPU)
    assert popular.hottest(1.0).sort().values.tolist() == list(range(rows))


def test_lru_cache_misses_the_expected_share_of_drawn_lookups():
    """After batches as many as it takes to forget how it was filled."""
    one, share = _popular(), 0.2
    popular, generator = PopularRows.of(one, 1000, CPU), _generator()
    room = int(share * one.rows)
    last, missed = np.full(one.rows, -np.inf), []
    last[popular.hottest(share).numpy()] = np.arange(room) - room
    for batch in range(40):
        rows = popular.draw(generator).numpy()
        oldest = np.partition(last, -room)[-room]
        missed.append((last[np.unique(rows)] < oldest).sum())
        last[rows] = batch * len(rows) + np.arange(len(rows))
    told = np.array([float(one.rows)]), np.array([8000.0]), np.array([one.reuse]), np.array([share])
    assert np.mean(missed[20:]) == pytest.approx(cache_misses(*told)[0], rel=0.12)
    assert np.mean(missed[:5]) == pytest.approx(np.mean(missed[20:]), rel=0.5)  # filled, it isn't far from that


class _Calls:
    """A kernel that keeps what it is called with."""

    def __init__(self):
        self.trained, self.filled = [], []

    def train(self, inputs):
        self.trained.append(inputs)

    def look_up(self, indices, offsets):
        self.filled.append((indices, offsets))


def _prepared(sample):
    calls = _Calls()
    return calls, host_run(calls.train, calls.look_up, sample, CPU, np.random.default_rng(0))


def test_each_kernel_run_draws_new_lookups():
    calls, prepared = _prepared(ComputeSample(TWO, 1000, tier_assignment=TierAssignment(Tier.UVM)))
    for _ in range(3):
        prepared.next_run()()
    assert not calls.filled
    first, second, _ = calls.trained
    assert first.indices.shape == second.indices.shape == (11_000,)
    assert not torch.equal(first.indices, second.indices)
    for inputs in calls.trained:
        assert inputs.offsets.shape == (3 * 1000 + 1,)
        assert inputs.offsets[-1] == 11_000
        assert inputs.indices[8000:].max() < 500
        assert inputs.gradient.shape == (1000, 8 + 2 * 8)


def test_preparing_a_cached_sample_fills_the_cache_first():
    calls, _ = _prepared(ComputeSample(TWO, 1000, tier_assignment=TierAssignment(Tier.UVM_CACHING, 0.8)))
    assert len(calls.filled) == 2  # 16,000 rows, at most as many at once as a batch looks up
    seen = [[], []]
    for indices, offsets in calls.filled:
        assert offsets.shape == (3 + 1,)
        assert offsets[2] == offsets[3] == len(indices)
        seen[0] += indices[: offsets[1]].tolist()
        seen[1] += indices[offsets[1] :].tolist()
    assert [(len(rows), len(set(rows))) for rows in seen] == [(16_000, 16_000), (400, 400)]


def test_drawn_lookups_run_in_fbgemm_kernels():
    """Filled and trained by FBGEMM's operator on the CPU, where it has no cache, pooled or not."""
    for one in (_popular(300), replace(_popular(300), pooled=False)):
        for home in (TierAssignment(Tier.UVM_CACHING, 0.5), TierAssignment(Tier.UVM)):
            sample = ComputeSample((one, replace(one, name="other")), 64, tier_assignment=home)
            plain = replace(sample, tier_assignment=TierAssignment())
            operator = build_operator(plain, EmbeddingSettings(), CPU, make_arenas(), np.random.default_rng(0))
            before = operator.split_embedding_weights()[0].clone()

            def train(inputs, operator=operator):
                operator(inputs.indices, inputs.offsets).backward(inputs.gradient)

            host_run(train, operator, sample, CPU, np.random.default_rng(0)).next_run()()
            assert not torch.equal(before, operator.split_embedding_weights()[0])


def test_row_blocks_get_their_share_of_the_lookups():
    one = _popular()
    sample = ComputeSample(
        (one,), 1000, Form.ROW_WISE, (RowBlock(5000, 10_000),), tier_assignment=TierAssignment(Tier.UVM_CACHING, 0.3)
    )
    calls, prepared = _prepared(sample)
    prepared.next_run()()
    (inputs,) = calls.trained
    assert 0 <= inputs.indices.min() <= inputs.indices.max() < 10_000
    assert 1000 < len(inputs.indices) < 7000
    filled = torch.cat([indices for indices, _ in calls.filled])
    assert 0 <= filled.min() <= filled.max() < 10_000
    assert len(filled) == pytest.approx(3000, rel=0.1)
    assert prepared.seen[0].count == pytest.approx(len(inputs.indices), rel=0.1)


def test_cached_sample_of_small_tables_draws_lookups():
    calls, prepared = _prepared(
        ComputeSample(toy_tables(4), 32, tier_assignment=TierAssignment(Tier.UVM_CACHING, 0.01))
    )
    prepared.next_run()()
    assert len(calls.trained[0].offsets) == 4 * 32 + 1
