"""The slowness of a machine in each spell, from samples that were measured in two spells."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuroshard.measure.store.samples import ComputeSample, Measurement, Repeats
from neuroshard.measure.store.speed import Pair, slowness_of
from neuroshard.testing import toy_task


def _slowness(speeds, noise=0.0, pairs=5, seed=0, more=()):
    """Return the estimated slowness of spells; each spell but the first measures samples of earlier spells again."""
    rng = np.random.default_rng(seed)
    found = []
    for later, speed in enumerate(speeds):
        for i in range(pairs if later else 0):
            earlier = i % later
            first, again = np.array([speeds[earlier], speed]) * 2.0 * np.exp(rng.normal(0, noise, 2))
            found.append(Pair(earlier, later, float(first), float(again)))
    return slowness_of(len(speeds), [*found, *more])


@given(st.lists(st.floats(0.8, 1.25), min_size=2, max_size=8))
def test_speeds_of_reference_samples_are_recovered(speeds):
    ratios = np.log(_slowness(speeds, pairs=20) / np.array(speeds))
    assert np.ptp(ratios) <= 0.1 * np.ptp(np.log(speeds)) + 1e-6  # a little nearer to each other than they are


def test_slowness_ignores_one_outlying_measurement():
    speeds, wild = [1.0, 1.1, 0.9], Pair(0, 2, 2.0, 40.0)
    assert _slowness(speeds, pairs=8, more=[wild]) == pytest.approx(_slowness(speeds, pairs=8), rel=0.05)


def test_slowness_without_shared_measurements_is_one():
    alone = Pair(0, 0, 1.0, 2.0)
    assert slowness_of(0, []).tolist() == []
    assert slowness_of(2, [alone]).tolist() == [1.0, 1.0]


def test_slowness_changes_less_with_few_pairs_than_with_many():
    one, many = (_slowness([1.0, 1.2], pairs=pairs) for pairs in (1, 20))
    assert 1.0 < one[1] / one[0] < many[1] / many[0] <= 1.2 + 1e-9


def test_slowness_averages_out_the_noise_of_pairs():
    speeds = [1.0, 1.1, 0.9, 1.05, 0.95]
    off = [np.log(_slowness(speeds, noise=0.04, pairs=8, seed=seed) / np.array(speeds)) for seed in range(20)]
    assert np.std(off) < 0.04 / 2
    assert np.abs(np.mean(off, axis=0)).max() < 0.02


def test_level_divides_times_by_slowness_and_keeps_all_else():
    task = toy_task()
    sample = ComputeSample(task.tables[:2], 256)
    measured = [
        Measurement(sample, i, "train", 0, Repeats(np.full(3, 2.0 * times), np.arange(3.0)))
        for i, times in enumerate([0.8, 1.25])
    ]
    failed = Measurement(sample, 2, "train", 0, None, "too much")
    *found, last = (
        replace(m, slowness=its).level for m, its in zip([*measured, failed], [0.8, 1.25, 1.1], strict=True)
    )
    assert last == failed
    for m, before in zip(found, measured, strict=True):
        assert m.repeats.times_ms == pytest.approx(np.full(3, 2.0))
        assert m.repeats.at_s is before.repeats.at_s
        assert (m.sample_id, m.sample, m.split) == (before.sample_id, before.sample, before.split)
