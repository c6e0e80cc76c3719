import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from neuroshard.models.simulator import Simulator
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.testing import linear_models, toy_task

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import choices


@dataclass(frozen=True)
class _Said:
    """The predicted values of a plan that the rules use."""

    total_ms: float
    expected_ms: float
    outside_training_range: float
    margin: float = 0.0
    margin_ms: float = 0.0
    compute: FloatArray = field(default_factory=lambda: np.zeros(1))
    parts: tuple[()] = ()

    @property
    def likely_ms(self):
        return self.expected_ms


@pytest.mark.slow
def test_choices_benchmark_judges_the_plan_of_each_searcher_and_repeats_its_results():
    """Models are fitted to measurements of a made-up device, whose true costs are known."""
    setting = choices.Setting("cpu", num_devices=2, samples=60, epochs=2)
    first, again = (choices._judged(setting, 2) for _ in range(2))
    assert len(first) == 2
    for one, same in zip(first, again, strict=True):
        assert len(one.costs) == len(one.true_ms) == len(choices._SEARCHERS)
        assert [cost.total_ms for cost in one.costs] == [cost.total_ms for cost in same.costs]
        assert one.true_ms == same.true_ms


def test_gains_are_grouped_by_predicted_gain(monkeypatch):
    said = [(10.0, 12.0, 1.0), (9.94, 11.7, 1.0), (9.2, 11.4, 1.0), (9.91, 12.0, 1.0), (10.0, 12.0, 1.0)]
    plans = choices.AvailablePlans(
        toy_task(2), Simulator(linear_models()), [_Said(*numbers) for numbers in said], [4.0, 3.9, 3.6, 4.1, 4.0]
    )
    monkeypatch.setattr(choices, "_on_all", lambda small: (plans,))
    rows = choices.gains_by_size(Path(), small=True).frame
    assert rows["gain predicted"].tolist() == ["0.5% to 1.0%", "more than 5.0%"]
    assert rows["plans"].tolist() == ["2", "1"]
    assert [text.split(" ")[0] for text in rows["true"]] == ["0.00%", "10.00%"]
    assert rows["expected"].tolist() == ["1.25%", "5.00%"]


def test_each_choice_rule_picks_its_plan_from_predicted_and_expected_costs():
    said = [(10.0, 12.0, 1.0), (9.0, 11.7, 1.0), (11.0, 11.0, 1.0), (9.5, 11.2, 1.1), (9.6, 11.5, 1.0)]
    costs = [_Said(*numbers) for numbers in said]
    plans = choices.AvailablePlans(toy_task(2), Simulator(linear_models()), costs, [3.0, 4.0, 5.0, 6.0, 2.0])
    assert [rule(plans) for rule in choices.RULES.values()] == [0, 1, 2, 3, 4, 4]
