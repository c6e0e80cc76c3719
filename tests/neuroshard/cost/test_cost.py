"""Plans know what they were predicted to cost, and by which models; what is expected where predictions err."""

from dataclasses import replace

import numpy as np
import pytest

import neuroshard as ns
from neuroshard.cost.cost import Prediction
from neuroshard.models.trust import Margin, Margins, hardware_warning
from neuroshard.plans.plan import Plan, assemble
from neuroshard.plumbing.errors import UserError
from neuroshard.testing import linear_models, toy_task
from neuroshard.words.fingerprint import Fingerprint, fingerprint
from tests.kit.costs import cost_of


def _plan(prediction=None):
    task = toy_task(3)
    plan = assemble(task, [(i, table.dim, i) for i, table in enumerate(task.tables)])
    return replace(plan, prediction=prediction)


def test_the_prediction_is_saved_with_the_plan(tmp_path):
    known = Prediction("roofline:h100", 6.72, 0.5)
    _plan(known).save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded.prediction == known
    assert loaded == _plan()  # what was predicted doesn't make another plan of it
    _plan().save(tmp_path / "plain.json")
    assert Plan.load(tmp_path / "plain.json").prediction is None


def test_a_wrong_prediction_is_refused():
    content = _plan(Prediction("cpu", 1.0)).to_json()
    for wrong in ({"models": "cpu", "cost_ms": -1.0}, {"models": 3, "cost_ms": 1.0}, {"models": "cpu"}, [1]):
        with pytest.raises(UserError, match="prediction"):
            Plan.from_json(content | {"prediction": wrong})


def test_searches_from_python_know_their_models():
    task = toy_task(4)
    simulator = ns.Simulator(replace(linear_models(), name="mine"))
    plan = ns.search(task, simulator, searcher="dim_greedy")
    assert plan.prediction == Prediction("mine", simulator.cost(task, plan).total_ms)


def test_models_are_named_as_they_were_asked_for(tmp_path):
    assert ns.CostModels.load("cpu").name == "cpu"
    assert ns.CostModels.load("roofline:h200").name == "roofline:h200"


def test_plans_read_well():
    text = str(_plan(Prediction("cpu", 7.1, 0.2)))
    assert text.splitlines()[0].endswith("7.10 ± 0.20 ms predicted by cpu")
    assert "device 3: 0 shards, 0 columns, 0 bytes: nothing" in text
    assert len(str(_plan()).splitlines()) == 1 + 4


HERE = Fingerprint("cpu", "EPYC", 2, 1 << 30, "25/17/1")


@pytest.mark.parametrize(
    ("measured", "warned"),
    [
        (HERE, False),
        (replace(HERE, count=64, memory_bytes=1), False),
        (replace(HERE, device="Xeon"), True),
        (replace(HERE, revision="25/1/1"), True),
        (replace(HERE, revision=None), True),
        (Fingerprint("cuda", "H100", 8, 1), False),  # no GPU here: plans for it are made anywhere
        (None, False),
    ],
)
def test_models_of_other_hardware_are_noticed(monkeypatch, measured, warned):
    none = Fingerprint("cuda", "none", 0, 1)
    monkeypatch.setattr("neuroshard.models.trust.fingerprint", lambda kind: HERE if kind == "cpu" else none)
    warning = hardware_warning("cpu", measured)
    assert (warning is not None) == warned
    if warning is not None:
        assert "neuroshard pretrain experiment=pretrain_adapt" in warning


def test_this_machine_is_itself():
    assert fingerprint("cpu").same_hardware(fingerprint("cpu").to_json())


def test_what_is_expected_is_saved_where_it_is_known(tmp_path):
    known = Prediction("cpu", 7.1, 0.2, 7.3)
    _plan(known).save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").prediction == known
    assert "expected 7.30 ms, for a step waits for whichever device" in str(_plan(known)).splitlines()[0]
    assert "expected" not in str(_plan(Prediction("cpu", 7.1, 0.2, 7.1001)))  # as good as the same
    content = _plan(Prediction("cpu", 7.1, 0.2)).to_json()
    assert "expected_ms" not in content["prediction"]  # nothing is in the file that versions before didn't write
    assert Plan.from_json(content).prediction.expected_ms is None
    with pytest.raises(UserError, match="expected_ms=-1"):
        Plan.from_json(content | {"prediction": content["prediction"] | {"expected_ms": -1.0}})


def test_searches_predict_what_is_expected():
    task = toy_task(6)
    margins = Margins(Margin(0.1, 1.0), Margin(0.0, 0.0), Margin(0.0, 0.0))
    for models, known in ((linear_models(), False), (replace(linear_models(), margins=margins), True)):
        plan = ns.search(task, ns.Simulator(models), searcher="dim_greedy")
        cost = ns.Simulator(models).cost(task, plan)
        assert plan.prediction.expected_ms == (cost.expected_ms if known else None)
        assert ("expected_ms" in str(cost)) == known


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
