"""What plans cost: as predicted, and by which models; as expected where predictions err; in parts that make a step."""

from dataclasses import asdict, dataclass, replace

import numpy as np
import pytest

import neuroshard as ns
from neuroshard import Plan, Prediction
from neuroshard.cost.cost import Part, Step, When
from neuroshard.models import Card, save_bundle
from neuroshard.models.interface import PartModel
from neuroshard.models.trust import Margin, Margins, hardware_warning
from neuroshard.testing import linear_models, toy_task
from neuroshard.words.fingerprint import Fingerprint, fingerprint
from neuroshard.words.model_choice import ModelChoice
from tests.kit.costs import cost_of
from tests.kit.messages import check, refused
from tests.kit.plans import whole

CPU = ModelChoice("cpu")


def _plan(prediction=None):
    return replace(whole(toy_task(3)), prediction=prediction)


@pytest.mark.parametrize(
    "known",
    [
        None,
        Prediction(ModelChoice("roofline:h100"), 6.72, 0.5),
        Prediction(CPU, 7.1, 0.2),
        Prediction(CPU, 7.1, 0.2, 7.3),
        Prediction(ModelChoice("roofline:h100", "torchrec", 8.5, "fp16/bf16", "adam"), 7.1),
    ],
)
def test_saved_plan_is_loaded_with_its_prediction(tmp_path, known):
    _plan(known).save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded.prediction == known
    assert loaded == _plan()  # what was predicted doesn't make another plan of it
    # Nothing is in the file that versions before didn't write.
    assert known is None or ("expected_ms" in _plan(known).to_json()["prediction"]) == (known.expected_ms is not None)


@pytest.mark.parametrize(
    ("wrong", "code", "names"),
    [
        ({"models": {"name": "cpu"}, "cost_ms": -1.0}, "value-outside-limits", ["prediction.cost_ms", -1.0]),
        ({"models": 3, "cost_ms": 1.0}, "value-outside-limits", ["prediction.models", 3]),
        ({"models": {"name": "cpu", "framework": "tensorflow"}, "cost_ms": 1.0}, "unknown-name", ["'tensorflow'"]),
        ({"models": {"name": "cpu"}}, "field-missing", ["prediction", "'cost_ms'"]),
        ([1], "value-outside-limits", ["prediction", "[1]"]),
        (
            _plan(Prediction(CPU, 7.1, 0.2)).to_json()["prediction"] | {"expected_ms": -1.0},
            "value-outside-limits",
            ["prediction.expected_ms", -1.0],
        ),
    ],
)
def test_plan_from_json_with_wrong_prediction_is_refused(wrong, code, names):
    with refused(code, names=names):
        Plan.from_json(_plan().to_json() | {"prediction": wrong})


def test_search_from_python_stores_the_model_choice_cost_and_scope_as_prediction():
    task = toy_task(4)
    simulator = ns.Simulator(replace(linear_models(), choice=ModelChoice("mine")))
    plan = ns.search(task, simulator, searcher="dim_greedy")
    assert plan.prediction == Prediction(
        ModelChoice("mine"), simulator.cost(task, plan).total_ms, scope="kernels and exchanges"
    )


@pytest.mark.parametrize("name", ["cpu", "roofline:h200"])
def test_loaded_models_have_the_name_that_was_asked_for(name):
    assert ns.CostModels.load(name).name == name


def test_printed_plan_shows_predicted_cost_and_margin():
    text = str(_plan(Prediction(CPU, 7.1, 0.2)))
    first, *devices = text.splitlines()
    assert "7.10 ± 0.20 ms" in first
    assert first.endswith(" cpu")
    assert devices[0].startswith("fullest device: ")
    assert devices[4].startswith("device 3: 0 ")
    assert len(str(_plan()).splitlines()) == 2 + 4
    first, *_ = str(_plan(Prediction(CPU, 7.1, 0.2, 7.3))).splitlines()
    assert "7.30 ms" in first
    assert str(_plan(Prediction(CPU, 7.1, 0.2, 7.1001))) == text  # as good as the same


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
def test_hardware_warning_is_given_only_if_models_were_measured_on_other_hardware(monkeypatch, measured, warned):
    none = Fingerprint("cuda", "none", 0, 1)
    monkeypatch.setattr("neuroshard.models.trust.fingerprint", lambda kind: HERE if kind == "cpu" else none)
    warning = hardware_warning("cpu", measured)
    assert (warning is not None) == warned
    if warning is not None:
        check(warning, "models-of-other-hardware", names=["'cpu'", measured.device, HERE.device])
        assert "neuroshard pretrain experiment=pretrain_adapt" in warning.remedy


def test_fingerprint_of_this_machine_matches_itself():
    assert fingerprint("cpu").same_hardware(asdict(fingerprint("cpu")))


def test_prediction_has_the_expected_cost_only_if_models_have_margins():
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


@pytest.mark.parametrize("compute", [[3.0, 2.0, 1.0], [3.0], [0.0, 0.0]])
def test_expected_cost_equals_the_predicted_cost_without_errors(compute):
    assert _cost(compute).expected_ms == pytest.approx(max(compute), rel=1e-6, abs=0)


def test_expected_cost_is_nan_without_margins():
    ones = np.ones(2)
    assert np.isnan(cost_of(ones, ones, ones).expected_ms)


@pytest.mark.parametrize("compute", [[10.0] * 8, [10.0, 9.5, 9.0, 6.0], [10.0, 0.0], [5.0]])
def test_the_expected_cost_is_the_mean_over_errors_of_each_device(compute):
    cost, errors = _cost(compute, 1.645), np.random.default_rng(0).normal(size=(200_000, len(compute)))
    slowest = (np.array(compute) * (1 + 1 / max(compute) * errors)).max(axis=1)
    assert cost.expected_ms == pytest.approx(slowest.mean(), rel=2e-3)


def test_expected_cost_rises_with_the_number_of_equally_slow_devices():
    few, many, uneven = (_cost(some, 1.0).expected_ms for some in ([10.0] * 2, [10.0] * 16, [10.0] + [5.0] * 15))
    assert 10.3 < few < many
    assert uneven < few


def _waits(ready):
    return Part("forward", When.FORWARD, ready.max(axis=-1, keepdims=True) - ready + 2.0, np.ones_like(ready))


def _took(name, *ms, counts=True):
    part = Part(name, When[name.upper()], np.array(ms), np.arange(1.0, len(ms) + 1), counts)
    return part.when, lambda _: part


def test_step_parts_run_in_order_of_their_place_and_are_listed_in_the_given_order():
    shown = _took("input", 9.0, 9.0, counts=False)
    works = [_took("compute", 1.0, 4.0), (When.FORWARD, _waits), _took("backward", 3.0, 1.0), shown]
    step = Step.of(works, (2,))
    assert [part.name for part in step.parts] == ["compute", "forward", "backward", "input"]
    assert step.ready_ms.tolist() == [4.0, 5.0]
    assert step.forward.tolist() == [3.0, 2.0]
    assert step.device_ms.tolist() == [7.0, 7.0]
    np.testing.assert_allclose(step.margin, np.sqrt([2**2 + 2**2 + 1] * 2))  # those of the last to come, and forward


@dataclass(frozen=True)
class _Launch(PartModel):
    name, when = "launch", When.INPUT
    launch_ms: tuple[float, ...]

    def ms(self, times, traffic, ready_ms):
        return np.broadcast_to(np.array(self.launch_ms), ready_ms.shape)


def test_users_own_step_part_adds_to_the_cost_and_delays_exchanges(tmp_path):
    models, task = ns.CostModels.load("roofline:h100"), toy_task(4)
    plan = whole(task)
    own = replace(models, more=(_Launch((0.5, 0.0, 0.0, 0.0)),))
    before, after = (ns.Simulator(its).cost(task, plan) for its in (models, own))
    assert after.ms("launch").tolist() == [0.5, 0.0, 0.0, 0.0]
    np.testing.assert_allclose(after.ready_ms, before.ready_ms + after.ms("launch"))
    assert after.total_ms >= before.total_ms
    assert "launch 0.500 = " in str(after)
    simulator = ns.Simulator(own)
    again = simulator.step(simulator.kernel_times(plan.device_loads, 4), plan.traffic, after.compute[None])
    assert (again.device_ms[0] == after.device_ms).all()
    with refused("bundle-models-have-more", names=["launch"]):
        save_bundle(tmp_path, own, Card())


def test_long_wait_for_hosts_hides_errors_of_slow_devices_in_the_expected_cost():
    alone = _cost([10.0] * 8, 1.0)
    expected = [alone.expected_ms, alone.total_ms + 5.0]  # of 10 ms, and more than 0.3 above it
    for waited_ms, expected_ms in zip((0.3, 5.0), expected, strict=True):
        wait = Part("framework.host", When.HOST, np.full(8, waited_ms), np.zeros(8))
        waiting = replace(alone, parts=(*alone.parts, wait))
        assert waiting.total_ms == pytest.approx(alone.total_ms + waited_ms)
        assert waiting.expected_ms == pytest.approx(expected_ms, rel=1e-3)
