from collections import Counter

import numpy as np
import pytest

from neuroshard.plumbing.timing import TimingProtocol, repeatability, typical_ms
from tests.kit.messages import refused


def test_every_sample_is_warmed_up_then_visited_in_every_round():
    protocol = TimingProtocol(warmup=2, rounds=5, repeats_per_round=3)
    visits = protocol.visits(4, np.random.default_rng(0))
    warm, timed = visits[:8], visits[8:]
    assert Counter(v.index for v in warm if not v.timed) == dict.fromkeys(range(4), 2)
    assert all(v.timed for v in timed)
    for round_ in range(5):
        assert Counter(v.index for v in timed[12 * round_ : 12 * (round_ + 1)]) == dict.fromkeys(range(4), 3)
    assert len(timed) == 4 * 15


def test_timing_protocol_visits_samples_in_a_new_order_each_round():
    visits = TimingProtocol(warmup=0, rounds=6, repeats_per_round=1).visits(8, np.random.default_rng(0))
    orders = {tuple(v.index for v in visits[8 * i : 8 * (i + 1)]) for i in range(6)}
    assert len(orders) == 6


def test_typical_time_ignores_a_disturbed_half():
    times = np.array([10.0, 10.2, 9.8, 10.0, 90.0, 30.0, 500.0, 77.0])
    assert typical_ms(times) == pytest.approx(10.0)
    assert typical_ms(np.stack([times, 2 * times], axis=1)) == pytest.approx([10.0, 20.0])
    assert typical_ms(np.array([3.0])) == 3.0


def test_repeatability_is_relative_and_symmetric():
    assert repeatability(np.array([10.0]), np.array([12.0])) == pytest.approx([2 / 11])
    assert repeatability(np.array([12.0]), np.array([10.0])) == pytest.approx([2 / 11])


@pytest.mark.parametrize("settings", [{"rounds": 0}, {"live": 0}, {"warmup": -1}, {"flush_bytes": -1}])
def test_timing_protocol_refuses_values_outside_limits(settings):
    ((name, value),) = settings.items()
    with refused("value-outside-limits", names=[name, value]):
        TimingProtocol(**settings)
