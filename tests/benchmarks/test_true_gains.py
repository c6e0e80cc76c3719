import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from true_gains import COLUMNS, Comparison, Costs, Setting, compared


def _costs(predicted, true):
    predicted = np.array(predicted)
    return Costs(predicted, predicted + 1, np.full(len(predicted), 2.0), np.array(true))


def test_rows_say_what_is_predicted_and_what_is_true():
    published, improved = _costs([10.0, 10.0], [10.0, 20.0]), _costs([9.0, 8.0], [9.5, 21.0])
    both = Comparison(published, improved, np.array([True, False]), np.array([8.0]))
    every, default = (row.split(" | ") for row in both.rows())
    assert every[:4] == ["every gain", "100%", "15.00%", "13.64%"]
    assert every[4:6] == ["0.00% ± 5.00%", "50%"]
    assert default[:3] == ["default", "50%", "5.00%"]
    assert default[4:6] == ["2.50% ± 2.50%", "0%"]
    assert default[-1] == "25.0% / 18.8% |"


def test_comparisons_are_joined():
    one = Comparison(_costs([1.0], [2.0]), _costs([0.5], [1.0]), np.array([True]), np.array([1.0]))
    both = one.joined(replace(one, knowing=np.empty(0)))
    assert len(both.published.true) == len(both.taken) == 2
    assert len(both.knowing) == 1


@pytest.mark.parametrize("form", ["default", "paper"])
def test_a_setting_is_measured_fitted_and_compared(form):
    found = compared(Setting("cpu", form, 0.05, samples=60, num_devices=2, epochs=2), tasks=2, known=0)
    assert len(found.taken) == 2
    assert all(len(row.split(" | ")) == len(COLUMNS) - 5 for row in found.rows())
    again = compared(Setting("cpu", form, 0.05, samples=60, num_devices=2, epochs=2), tasks=2, known=0)
    assert np.array_equal(found.improved.true, again.improved.true)
