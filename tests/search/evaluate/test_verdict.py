"""Verdicts on measured candidate plans: only differences beyond chance change the plan."""

import re

import numpy as np
import pytest
from scipy import stats

from neuroshard.models.trust import LEVEL
from neuroshard.stages.search.evaluate.verdict import Verdict

NAN = float("nan")


def _measured(true_ms, passes, noise, rng):
    """Draw measured ms (K, P); each pass is slower or faster as a whole, in addition to noise."""
    speed = np.exp(0.1 * rng.standard_normal(passes))
    return np.array(true_ms)[:, None] * speed * np.exp(noise * rng.standard_normal((len(true_ms), passes)))


def _verdicts(true_ms, trials=600, passes=5, noise=0.03):
    rng = np.random.default_rng(0)
    return [Verdict.of(_measured(true_ms, passes, noise, rng)) for _ in range(trials)]


def test_verdict_on_equal_plans_rarely_leaves_the_predicted_best():
    taken = [verdict.taken for verdict in _verdicts([10.0] * 8)]
    share = np.mean(np.array(taken) != 0)
    assert 0 < share < (1 - LEVEL) / 2 + 3 * np.sqrt(0.05 * 0.95 / len(taken))


def test_verdict_errors_cover_the_true_gains_of_all_plans_at_once():
    true_ms = np.array([10.0, 9.9, 9.8, 10.3, 9.7])
    held = [
        (np.abs(verdict.below - (1 - true_ms / true_ms[0])) <= verdict.error).all() for verdict in _verdicts(true_ms)
    ]
    assert LEVEL - 3 * np.sqrt(0.09 / len(held)) < np.mean(held) < 0.97


def test_verdict_takes_the_plan_with_a_true_gain():
    verdicts = _verdicts([10.0, 10.0, 9.0, 10.5])
    assert np.mean([verdict.taken == 2 for verdict in verdicts]) > 0.95
    assert not any(verdict.taken == 3 for verdict in verdicts)


def test_verdict_on_two_plans_equals_a_paired_t_test():
    costs = _measured([10.0, 9.9], 6, 0.02, np.random.default_rng(1))
    verdict, (low, high) = Verdict.of(costs), stats.ttest_rel(*np.log(costs)).confidence_interval(LEVEL)
    assert verdict.error == pytest.approx((high - low) / 2)
    assert verdict.below[1] == pytest.approx(1 - np.exp(-(low + high) / 2))


def test_verdict_ignores_a_slow_pass():
    costs = _measured([10.0, 9.0, 11.0], 4, 0.02, np.random.default_rng(2))
    slower = costs * np.array([1.0, 3.0, 1.0, 1.0])
    one, other = Verdict.of(costs), Verdict.of(slower)
    assert other.below == pytest.approx(one.below)
    assert other.error == pytest.approx(one.error)
    assert one.taken == other.taken == 1


def test_plans_without_measurements_are_left_out_of_verdicts():
    costs = np.array([[10.0, 10.1, 9.9], [5.0, NAN, 5.0], [9.0, 9.1, 8.9]])
    verdict = Verdict.of(costs)
    assert verdict.taken == 2
    assert verdict.measured_ms.tolist()[::2] == pytest.approx([10.0, 9.0])
    assert np.isnan([verdict.measured_ms[1], verdict.below[1]]).all()
    first = Verdict.of(costs[[1, 0, 2]])
    assert (first.taken, _numbers(first)) == (2, ["9.00"])
    none = Verdict.of(np.full((3, 2), NAN))
    assert (none.taken, _numbers(none)) == (0, [])


def _numbers(verdict):
    return re.findall(r"[\d.]*\d%?", str(verdict))


@pytest.mark.parametrize(
    ("costs", "taken", "numbers"),
    [
        ([[50.0, 51.0], [45.0, 46.0]], 1, ["45.50", "9.9%", "error"]),
        ([[50.0, 50.0], [51.0, 51.0]], 0, ["50.00", "1"]),
        ([[50.0, 52.0], [51.0, 50.0], [53.0, 52.0]], 0, ["51.00", "2", "1.0%", "error"]),
        ([[50.0, 51.0]], 0, ["50.50"]),
    ],
)
def test_verdict_is_printed_as_one_line_with_cost_plans_gain_and_error(costs, taken, numbers):
    """The line has the measured cost, the number of other plans, the gain and the error of the gain."""
    verdict = Verdict.of(np.array(costs))
    error = f"{verdict.error:.1%}"
    assert verdict.taken == taken
    assert _numbers(verdict) == [error if number == "error" else number for number in numbers]
    assert "\n" not in str(verdict)
