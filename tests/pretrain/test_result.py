"""Errors of predictions: metrics, and when one model counts as worse than another on the same samples."""

from pathlib import Path

import numpy as np
import pytest

from neuroshard.models.bundle import Accuracy, ModelTest
from neuroshard.stages.pretrain.result import Predicted, PretrainResult, accuracy_of
from tests.kit.commands import shown


def _predicted(errors, devices=1):
    """Make predictions with these relative errors of samples, each on `devices` devices."""
    off, one = np.repeat(errors, devices), np.ones(len(errors) * devices)
    return Predicted(1 + off, 0 * one, one, 0 * one, np.full(len(errors), devices))


def test_relative_error_is_the_mean_over_devices():
    errors, one = np.array([0.1, 0.2, 0.3, 0.4]), np.ones(4)
    predicted = Predicted(1 + errors, 0 * one, one, 0 * one, np.array([1, 3]))
    assert predicted.relative_error() == pytest.approx(0.25)
    assert predicted._by_sample == pytest.approx([0.1, 0.3])


@pytest.mark.parametrize(
    ("before", "after", "worse"),
    [
        ([0.10, 0.11, 0.09, 0.10, 0.12], [0.20, 0.22, 0.18, 0.21, 0.20], True),
        ([0.12, 0.51, 0.11, 0.40, 0.16], [0.46, 0.72, 0.17, 0.43, 0.06], False),  # two of five say otherwise
        ([0.10, 0.11, 0.09, 0.10, 0.12], [0.109, 0.119, 0.099, 0.109, 0.129], False),  # by less than a tenth
        ([0.20, 0.22, 0.18, 0.21, 0.20], [0.10, 0.11, 0.09, 0.10, 0.12], False),
        ([0.10], [0.90], False),
    ],
)
def test_is_beaten_by_compares_the_errors_of_most_samples(before, after, worse):
    assert _predicted(after).is_beaten_by(_predicted(before)) is worse


def test_is_beaten_by_counts_devices_of_an_exchange_as_one_sample():
    before, after = [0.12, 0.51, 0.11, 0.40, 0.16], [0.26, 0.52, 0.17, 0.43, 0.18]
    assert not _predicted(after, 8).is_beaten_by(_predicted(before, 8))
    rng = np.random.default_rng(0)
    many = rng.uniform(0.1, 0.5, 40)
    assert _predicted(many + rng.uniform(0, 0.2, 40)).is_beaten_by(_predicted(many))


def test_metrics_match_values_computed_by_hand():
    metrics = accuracy_of(np.array([1.0, 2.0, 5.0]), np.array([2.0, 4.0, 4.0]))
    assert metrics.mse == pytest.approx((1 + 4 + 1) / 3)
    assert metrics.mape == pytest.approx((0.5 + 0.5 + 0.25) / 3)
    assert metrics.decile_mape == pytest.approx((0.5, 0.5, 0.25))
    assert 0 < metrics.kendall_tau < 1


def _model_test(mape, noise=0.1):
    return ModelTest(Accuracy(30, 1.0, mape, 0.9, (mape,) * 10), noise, noise, noise, 0.9)


@pytest.mark.parametrize(
    ("tests", "before", "fit", "figures"),
    [
        ({"compute": _model_test(0.1)}, {}, True, []),
        ({"compute": _model_test(0.1, noise=0.476)}, {}, False, ["compute", "48%", "30%"]),
        ({"compute": _model_test(0.1), "forward": _model_test(0.4)}, {}, False, ["forward", "40.0%"]),
        ({"forward": _model_test(0.163)}, {"forward": 0.132}, False, ["forward", "16.3%", "13.2%"]),
        ({"forward": _model_test(0.135)}, {"forward": 0.132}, True, []),  # about as good
        (
            {"compute": _model_test(0.1), "forward": _model_test(0.163)},
            {"compute": 0.25, "forward": 0.132},
            True,
            ["forward", "16.3%", "13.2%"],
        ),
    ],
)
def test_pretrain_result_ends_with_fitness_for_use(tests, before, fit, figures):
    result = PretrainResult(Path("models"), tests, before)
    assert result.verdict.fit is fit
    assert all(one in result.verdict.reason for one in figures)
    assert fit or result.verdict.advice
    assert shown(result).rstrip().splitlines()[-1] == str(result.verdict)
