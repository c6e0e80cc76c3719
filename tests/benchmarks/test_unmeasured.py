import sys
from pathlib import Path

import numpy as np

from tests.kit.devices import MADE_UP

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import unmeasured


def test_true_costs_equal_predictions_on_the_device_of_the_models_and_differ_on_another():
    """The models predict the true costs of their own device; on another device the true costs differ."""
    device, other = MADE_UP["cpu"], unmeasured._another("cpu", 0)
    own, elsewhere = (unmeasured._judged(unmeasured.Case(device.truth, on), 0, 2) for on in (device, other))
    assert own.shape == elsewhere.shape == (2, 2, 2)  # tasks, searchers, predicted and true
    assert np.allclose(own[..., 0], own[..., 1])
    assert (own < 1 + 0.005).all()  # what fewer shards may cost
    assert np.allclose(own[..., 0], elsewhere[..., 0])
    assert not np.allclose(elsewhere[..., 0], elsewhere[..., 1])
