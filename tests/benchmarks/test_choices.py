import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import choices


def test_every_plan_at_hand_is_judged_and_the_same_again():
    """Models are fitted to what a made-up device "measures", whose true costs are known."""
    setting = choices.Setting("cpu", num_devices=2, samples=60, epochs=2)
    first, again = (choices._judged(setting, 2) for _ in range(2))
    assert len(first) == 2
    for (said, true), (said_again, true_again) in zip(first, again, strict=True):
        assert said.shape == (len(choices._AT_HAND), 3)
        assert true.shape == (len(choices._AT_HAND),)
        assert np.array_equal(said, said_again)
        assert np.array_equal(true, true_again)


def test_the_default_takes_the_least_expected_of_those_predicted_no_dearer_than_the_published_and_known():
    costs = np.array([[10.0, 12.0, 1.0], [9.0, 11.7, 1.0], [11.0, 11.0, 1.0], [9.5, 11.2, 1.1], [9.6, 11.5, 1.0]])
    taken = {name: rule(costs) for name, rule in choices.RULES.items()}
    assert list(taken.values()) == [0, 1, 2, 3, 4]
