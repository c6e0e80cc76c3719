"""The machine's speed in each round, from samples that two rounds measured."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuroshard.records.samples import ComputeSample, Measurement, Repeats
from neuroshard.refine.rounds import Again, Foreseen, Round
from neuroshard.refine.speed import at_typical_speed, slowness
from neuroshard.testing import toy_task


def _rounds(speeds, noise=0.0, pairs=5, seed=0):
    """Rounds of 20 samples, each but the first with second measurements of samples of the ones before."""
    rng = np.random.default_rng(seed)
    rounds = []
    for number, speed in enumerate(speeds):
        samples = tuple(Foreseen("compute", 20 * number + i, "random", 1.0, 2.0 * speed) for i in range(20))
        again = []
        for i in range(pairs if number else 0):
            before = i % number
            first, second = np.array([speeds[before], speed]) * 2.0 * np.exp(rng.normal(0, noise, 2))
            again.append(Again("compute", 20 * before + number, before, float(first), float(second)))
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


def test_few_noisy_pairs_change_less_than_many():
    one, many = (slowness(_rounds([1.0, 1.2], pairs=pairs), "compute") for pairs in (1, 20))
    assert 1.0 < one[1] / one[0] < many[1] / many[0] <= 1.2 + 1e-9


def test_what_is_trained_on_is_as_at_one_speed_and_the_rest_as_measured():
    rounds = _rounds([0.9, 1.1], pairs=20)
    task = toy_task()
    measured = [
        Measurement(
            ComputeSample(task.tables[:2], 256), one.sample_id, "valid" if one.sample_id % 5 == 4 else "train", 0,
            Repeats(np.full(3, one.measured_ms), np.zeros(3)),
        )
        for its in rounds
        for one in its.samples
    ]  # fmt: skip
    found = at_typical_speed(measured, rounds, "compute")
    trained = np.array([m.repeats.times_ms for m in found if m.split == "train"])
    assert np.ptp(np.log(trained)) < 0.1 * np.log(1.1 / 0.9)
    assert [m for m in found if m.split == "valid"] == [m for m in measured if m.split == "valid"]
    assert [m.sample_id for m in found] == [m.sample_id for m in measured]
