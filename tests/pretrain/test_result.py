"""Errors of models before and after they were fitted: when they grew, and when few samples merely say so."""

import numpy as np
import pytest

from neuroshard.stages.pretrain.result import grew, mape_of


def test_the_mean_error_counts_every_device_alike():
    assert mape_of([np.array([0.1]), np.array([0.2, 0.3, 0.4])]) == pytest.approx(0.25)


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
def test_errors_grew_if_most_samples_say_so(before, after, worse):
    assert grew([np.array([one]) for one in before], [np.array([one]) for one in after]) is worse


def test_devices_of_an_exchange_are_no_further_evidence():
    before, after = [0.12, 0.51, 0.11, 0.40, 0.16], [0.26, 0.52, 0.17, 0.43, 0.18]
    assert not grew([np.full(8, one) for one in before], [np.full(8, one) for one in after])
    rng = np.random.default_rng(0)
    many = rng.uniform(0.1, 0.5, 40)
    assert grew([np.array([one]) for one in many], [np.array([one]) for one in many + rng.uniform(0, 0.2, 40)])
