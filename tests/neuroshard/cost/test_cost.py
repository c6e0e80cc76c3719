"""What is expected of a plan whose devices' predictions err."""

import numpy as np
import pytest

from tests.kit.costs import cost_of


def _cost(compute, margin=0.0, backward=0.0):
    compute = np.array(compute, dtype=np.float64)
    none = np.zeros_like(compute)
    ready = compute + backward
    return cost_of(compute, ready.max() - ready, none + backward, none + margin)


def test_without_errors_the_predicted_cost_is_expected():
    assert _cost([3.0, 2.0, 1.0]).expected_ms == pytest.approx(3.0, rel=1e-6)
    assert _cost([3.0]).expected_ms == pytest.approx(3.0, rel=1e-6)


def test_nothing_is_expected_where_nothing_is_known_of_errors():
    ones = np.ones(2)
    assert np.isnan(cost_of(ones, ones, ones).expected_ms)


@pytest.mark.parametrize("compute", [[10.0] * 8, [10.0, 9.5, 9.0, 6.0], [10.0, 0.0], [5.0]])
def test_the_expected_cost_is_the_mean_over_errors_of_each_device(compute):
    cost, errors = _cost(compute, 1.645), np.random.default_rng(0).normal(size=(200_000, len(compute)))
    slowest = (np.array(compute) * (1 + 1 / max(compute) * errors)).max(axis=1)
    assert cost.expected_ms == pytest.approx(slowest.mean(), rel=2e-3)


def test_more_devices_that_are_as_slow_make_it_dearer():
    few, many, uneven = (_cost(some, 1.0).expected_ms for some in ([10.0] * 2, [10.0] * 16, [10.0] + [5.0] * 15))
    assert 10.3 < few < many
    assert uneven < few


def test_an_empty_plan_costs_nothing():
    assert _cost([0.0, 0.0]).expected_ms == 0
