"""The machine's speed in each round, from samples that two rounds measured."""

from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuroshard.records.samples import ComputeSample, Measurement, Repeats
from neuroshard.stages.pretrain.refine.rounds import Again, Foreseen, Round, slowness
from neuroshard.testing import toy_task


def _rounds(speeds, noise=0.0, pairs=5, seed=0):
    """Rounds of 20 samples, each but the first with second measurements of what the ones before took."""
    rng = np.random.default_rng(seed)
    rounds, number_of = [], count()
    for number, speed in enumerate(speeds):
        samples = tuple(Foreseen("compute", 20 * number + i, "random", 1.0, 2.0 * speed) for i in range(20))
        again = []
        for i in range(pairs if number else 0):
            before = i % number
            first, second = np.array([speeds[before], speed]) * 2.0 * np.exp(rng.normal(0, noise, 2))
            again.append(Again("compute", next(number_of), before, float(first), float(second)))
        rounds.append(Round(number, 25, samples, tuple(again)))
    return rounds


@given(st.lists(st.floats(0.8, 1.25), min_size=2, max_size=8))
def test_speeds_are_found(speeds):
    rounds = _rounds(speeds, pairs=20)
    found = slowness(rounds, "compute")
    ratios = np.log(found / np.array(speeds))
    assert np.ptp(ratios) <= 0.1 * np.ptp(np.log(speeds)) + 1e-6  # a little nearer to each other than they are


def test_one_wild_measurement_is_not_a_speed():
    rounds = _rounds([1.0, 1.1, 0.9], pairs=8)
    wild = Again("compute", 999, 0, 2.0, 40.0)
    with_it = [*rounds[:2], Round(2, 25, rounds[2].samples, (*rounds[2].again, wild))]
    assert slowness(with_it, "compute") == pytest.approx(slowness(rounds, "compute"), rel=0.05)


def test_nothing_shared_says_nothing():
    alone = Round(0, 3, (), (Again("compute", 0, 0, 1.0, 2.0),))
    failed = Round(1, 3, (), (Again("compute", 1, 0, 1.0, None), Again("exchange", 1, 0, 1.0, 3.0)))
    assert slowness([], "compute").tolist() == []
    assert slowness([alone, failed], "compute").tolist() == [1.0, 1.0]


def test_few_pairs_change_less_than_many():
    one, many = (slowness(_rounds([1.0, 1.2], pairs=pairs), "compute") for pairs in (1, 20))
    assert 1.0 < one[1] / one[0] < many[1] / many[0] <= 1.2 + 1e-9


def test_noise_of_the_pairs_is_averaged_out():
    speeds = np.array([1.0, 1.1, 0.9, 1.05, 0.95])
    off = [
        np.log(slowness(_rounds(speeds.tolist(), noise=0.04, pairs=8, seed=seed), "compute") / speeds)
        for seed in range(20)
    ]
    assert np.std(off) < 0.04 / 2
    assert np.abs(np.mean(off, axis=0)).max() < 0.02


def test_measurements_are_brought_to_one_speed():
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
