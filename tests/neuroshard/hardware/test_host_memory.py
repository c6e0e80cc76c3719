"""What tables in host memory are timed with: other lookups every time, of rows that stay popular."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from neuroshard.hardware.compute_bench import Arenas, build_operator
from neuroshard.hardware.drawn_lookups import PopularRows
from neuroshard.hardware.host_memory import host_run
from neuroshard.hardware.specs import EmbeddingSettings
from neuroshard.records.samples import ComputeSample, RowBlock
from neuroshard.tables import Table
from neuroshard.tables.misses import cache_misses
from neuroshard.tables.reuse import MEAN_COUNTS, zipf_reuse
from neuroshard.testing import toy_tables
from neuroshard.words.form import Form
from neuroshard.words.placement import Home, Tier

CPU = torch.device("cpu")


def _table(rows=20_000, pooling=8.0, exponent=1.05):
    return Table("t", rows, 8, pooling, zipf_reuse(rows, 1000 * pooling, exponent))


TWO = (_table(), replace(_table(500, 3.0), name="other", features=2))


def _generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.05])
def test_batches_look_up_as_many_different_rows_as_the_histogram_says(exponent):
    table = _table(exponent=exponent)
    popular, generator = PopularRows.of(table, 1000, CPU), _generator()
    drawn = [popular.draw(generator) for _ in range(4)]
    for rows in drawn:
        assert len(rows) == 8000
        assert 0 <= rows.min() <= rows.max() < 20_000
        assert len(rows.unique()) == pytest.approx(8000 / (np.array(table.reuse) @ MEAN_COUNTS), rel=0.12)
    assert not torch.equal(drawn[0], drawn[1])


def test_the_same_rows_stay_popular():
    popular, generator = PopularRows.of(_table(), 1000, CPU), _generator()
    first, second = (torch.bincount(popular.draw(generator), minlength=20_000) for _ in range(2))
    hottest = popular.hottest(0.002)
    assert len(hottest) == len(hottest.unique()) == 40
    of_first, of_second = (float(counts[hottest].sum() / 8000) for counts in (first, second))
    assert of_first == pytest.approx(of_second, abs=0.03)
    assert of_first > 0.3
    assert first[hottest[-5:]].sum() > 3 * first[hottest[:5]].sum()  # the hottest last


@pytest.mark.parametrize("rows", [1, 2, 7, 1000, 4096])
def test_all_rows_are_those_of_the_table(rows):
    popular = PopularRows.of(_table(rows), 1000, CPU)
    assert popular.hottest(1.0).sort().values.tolist() == list(range(rows))


def test_a_cache_misses_of_them_what_is_expected():
    """After batches as many as it takes to forget how it was filled."""
    table, share = _table(), 0.2
    popular, generator = PopularRows.of(table, 1000, CPU), _generator()
    room = int(share * table.rows)
    last, missed = np.full(table.rows, -np.inf), []
    last[popular.hottest(share).numpy()] = np.arange(room) - room
    for batch in range(40):
        rows = popular.draw(generator).numpy()
        oldest = np.partition(last, -room)[-room]
        missed.append((last[np.unique(rows)] < oldest).sum())
        last[rows] = batch * len(rows) + np.arange(len(rows))
    told = np.array([float(table.rows)]), np.array([8000.0]), np.array([table.reuse]), np.array([share])
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


def test_every_run_has_lookups_of_its_own():
    calls, prepared = _prepared(ComputeSample(TWO, 1000, home=Home(Tier.HOST)))
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


def test_a_cache_is_filled_before():
    calls, _ = _prepared(ComputeSample(TWO, 1000, home=Home(Tier.CACHED, 0.8)))
    assert len(calls.filled) == 2  # 16,000 rows, at most as many at once as a batch looks up
    seen = [[], []]
    for indices, offsets in calls.filled:
        assert offsets.shape == (3 + 1,)
        assert offsets[2] == offsets[3] == len(indices)
        seen[0] += indices[: offsets[1]].tolist()
        seen[1] += indices[offsets[1] :].tolist()
    assert [(len(rows), len(set(rows))) for rows in seen] == [(16_000, 16_000), (400, 400)]


def test_what_is_drawn_fits_the_kernel():
    """Filled and trained by FBGEMM's operator on the CPU, where it has no cache, pooled or not."""
    for table in (_table(300), replace(_table(300), pooled=False)):
        for home in (Home(Tier.CACHED, 0.5), Home(Tier.HOST)):
            sample = ComputeSample((table, replace(table, name="other")), 64, home=home)
            plain = replace(sample, home=Home())
            operator = build_operator(plain, EmbeddingSettings(), CPU, Arenas(), np.random.default_rng(0))
            before = operator.split_embedding_weights()[0].clone()

            def train(inputs, operator=operator):
                operator(inputs.indices, inputs.offsets).backward(inputs.gradient)

            host_run(train, operator, sample, CPU, np.random.default_rng(0)).next_run()()
            assert not torch.equal(before, operator.split_embedding_weights()[0])


def test_blocks_of_rows_get_their_part():
    table = _table()
    sample = ComputeSample((table,), 1000, Form.ROWS, (RowBlock(5000, 10_000),), home=Home(Tier.CACHED, 0.3))
    calls, prepared = _prepared(sample)
    prepared.next_run()()
    (inputs,) = calls.trained
    assert 0 <= inputs.indices.min() <= inputs.indices.max() < 10_000
    assert 1000 < len(inputs.indices) < 7000
    filled = torch.cat([indices for indices, _ in calls.filled])
    assert 0 <= filled.min() <= filled.max() < 10_000
    assert len(filled) == pytest.approx(3000, rel=0.1)
    assert prepared.seen[0].count == pytest.approx(len(inputs.indices), rel=0.1)


def test_small_tables_are_drawn_too():
    calls, prepared = _prepared(ComputeSample(toy_tables(4), 32, home=Home(Tier.CACHED, 0.01)))
    prepared.next_run()()
    assert len(calls.trained[0].offsets) == 4 * 32 + 1
