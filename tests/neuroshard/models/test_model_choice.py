"""The model settings: allowed values, plan files, printed text, and defaults."""

import json
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest

from neuroshard import CostModels, Plan, Simulator
from neuroshard.models import Card, save_bundle
from neuroshard.stages.search.evaluate.kernel_measurer import KernelMeasurer
from neuroshard.stages.search.evaluate.mirrored_measurer import MirroredMeasurer
from neuroshard.stages.search.evaluate.step_measurer import StepMeasurer
from neuroshard.stages.search.evaluate.verification import Verify
from neuroshard.stages.search.methods.heuristics import Greedy
from neuroshard.stages.search.runs.evaluate import Evaluate
from neuroshard.stages.search.runs.explain import Explain
from neuroshard.stages.search.runs.search import Search
from neuroshard.testing import toy_task
from neuroshard.words.model_choice import ModelChoice, ModelSettings
from tests.kit.devices.made_up import MadeUpHardware
from tests.kit.messages import refused
from tests.kit.plans import whole
from tests.kit.random_models import random_form_models

TASK = toy_task(4, num_devices=2)
FULL = ModelChoice("roofline:h200", "torchrec", 8.0, "fp16/bf16", "adam")
STEPS = {"framework": "torchrec"}


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        (("h100", "torchrec"), ["'h100'", "framework=torchrec"]),
        (("h100", "torchrec", "dense8ms"), ["'h100'", "framework=torchrec, dense_ms=8"]),
        (("cpu", "fp16/bf16", "torchrec"), ["'cpu'", "exchange_dtype=fp16/bf16, framework=torchrec"]),
        (("roofline:h100", "adam", "dense2.5ms"), ["'roofline:h100'", "optimizer=adam, dense_ms=2.5"]),
        (("models/mine", "rowwise_adagrad"), ["'models/mine'", "optimizer=rowwise_adagrad"]),
    ],
)
def test_model_name_with_settings_after_a_plus_is_refused_with_those_settings(words, settings):
    with refused("model-name-with-settings", names=["+".join(words)]) as raised:
        CostModels.load("+".join(words))
    assert [one for one in settings if one not in raised.value.message.remedy] == []


@pytest.mark.parametrize("name", ["+".join(words) for words in (("a", "torchrec"), "ab", ("c", "fp16/d"))])
def test_loading_a_bundle_from_a_directory_with_a_plus_keeps_the_path(tmp_path, name):
    save_bundle(tmp_path / name, random_form_models(), Card())
    assert CostModels.load(tmp_path / name).choice == ModelChoice(str(tmp_path / name))


def test_model_name_with_an_unknown_word_after_a_plus_is_an_unknown_name():
    with refused("unknown-name", names=["'cpu+moon'", "roofline:h100"]):
        CostModels.load("cpu+moon")


@pytest.mark.parametrize("choice", [FULL, ModelChoice("cpu"), replace(FULL, dense_ms=None, exchange_dtype="fp8")])
def test_plan_file_stores_model_settings_and_loads_the_same_models(tmp_path, choice):
    plan = whole(TASK)
    predicted = Simulator(CostModels.of(choice)).predicted(plan)
    predicted.save(tmp_path / "plan.json")
    held = json.loads((tmp_path / "plan.json").read_text())["prediction"]["models"]
    assert held == {name: value for name, value in asdict(choice).items() if value is not None}
    loaded = Plan.load(tmp_path / "plan.json").prediction
    again = Simulator(CostModels.of(loaded.models)).cost(TASK, plan)
    assert again.total_ms == loaded.cost_ms


def test_model_choice_is_shown_as_the_name_followed_by_its_settings():
    assert str(ModelChoice("h100", framework="torchrec", dense_ms=8)) == "h100, framework=torchrec, dense_ms=8"
    assert str(FULL) == "roofline:h200, framework=torchrec, dense_ms=8, exchange_dtype=fp16/bf16, optimizer=adam"
    assert str(ModelChoice("cpu", framework="none", exchange_dtype="fp32")) == "cpu"


@pytest.mark.parametrize(
    ("given", "held"),
    [
        ({"framework": "none"}, {}),
        ({"exchange_dtype": "fp32/fp32"}, {}),
        ({"exchange_dtype": "fp16/fp16"}, {"exchange_dtype": "fp16"}),
        ({"exchange_dtype": "fp32/fp16"}, {"exchange_dtype": "fp32/fp16"}),
    ],
)
def test_equivalent_model_choices_are_stored_equally(given, held):
    models = CostModels.load("cpu", **given)
    assert Simulator(models).predicted(whole(TASK)).prediction.models == ModelChoice("cpu", **held)


def test_search_evaluate_and_explain_have_every_model_setting():
    settings = [one.name for one in fields(ModelSettings)]
    assert settings == [one.name for one in fields(ModelChoice) if one.name != "name"]
    for command in (Search, Evaluate, Explain):
        assert {*settings} < {one.name for one in fields(command)}


def _verified(means):
    return Verify(MadeUpHardware(), candidate_plans=2, passes=2, measure=means)


@pytest.mark.parametrize(
    ("settings", "counts"),
    [
        ({}, False),
        (STEPS, True),
        ({"target": "torchrec"}, True),
        ({"target": "torchrec", "framework": "none"}, False),
        ({"target": "sok"}, False),
        ({"verify": _verified(KernelMeasurer())}, False),
        ({"verify": _verified(StepMeasurer())}, True),
        ({"verify": _verified(MirroredMeasurer())}, True),
        ({"verify": _verified(MirroredMeasurer()), "framework": "none"}, False),
        ({"verify": _verified(StepMeasurer()), "target": "sok"}, False),
    ],
)
def test_search_counts_framework_overhead_only_for_torchrec_or_steps(settings, counts):
    search = Search("cpu", (TASK,), Greedy("dim"), "dim", **settings)
    assert search.models.of_whole_steps is counts


@pytest.mark.parametrize("settings", [{"target": "torchrec"}, {"verify": _verified(StepMeasurer())}])
def test_models_without_overhead_are_an_error_only_if_overhead_is_requested(tmp_path, settings):
    save_bundle(tmp_path / "models", random_form_models(), Card())
    search = Search(str(tmp_path / "models"), (TASK,), Greedy("dim"), "dim", **settings)
    assert not search.models.of_whole_steps
    with refused("models-lack-framework", names=["framework=torchrec"]):
        assert replace(search, framework="torchrec").models


@pytest.mark.parametrize(("target", "warned"), [("torchrec", True), (None, False)])
def test_search_warns_if_models_do_not_know_the_framework_overhead(tmp_path, target, warned):
    save_bundle(tmp_path / "models", random_form_models(), Card())
    search = Search(str(tmp_path / "models"), (TASK,), Greedy("dim"), "dim", str(tmp_path / "run"), target=target)
    (record,) = search.run().saved.records
    assert ("TorchRec" in (record.warnings or "")) is warned


def test_search_run_stores_the_model_choice_with_its_settings(tmp_path):
    given = {"exchange_dtype": "fp16", "optimizer": "adam"}
    saved = (
        Search(
            "roofline:h100", (TASK,), Greedy("dim"), "dim", str(tmp_path / "run"), target="torchrec", **STEPS, **given
        )
        .run()
        .saved
    )
    assert saved.model == ModelChoice("roofline:h100", **STEPS, **given)
    assert json.loads((Path(saved.path) / "run.json").read_text())["model"] == saved.model.fields
    assert saved.plans()[0].prediction.models == saved.model


@pytest.mark.parametrize(
    ("measure", "counts"), [(KernelMeasurer(), False), (StepMeasurer(), True), (MirroredMeasurer(), True)]
)
def test_evaluate_predicts_with_framework_overhead_only_if_steps_are_measured(tmp_path, measure, counts):
    whole(TASK).save(tmp_path / "plan.json")
    evaluate = Evaluate(str(tmp_path / "plan.json"), "cpu", MadeUpHardware(), measure=measure)
    (entry,) = evaluate._entries()
    assert entry.prediction.models == (ModelChoice("cpu", **STEPS) if counts else ModelChoice("cpu"))
    (entry,) = replace(evaluate, framework="none")._entries()
    assert entry.prediction.models == ModelChoice("cpu")


@pytest.mark.parametrize("given", [STEPS, {"dense_ms": 8}, {"exchange_dtype": "fp16"}, {"optimizer": "adam"}])
def test_evaluate_refuses_model_settings_without_a_model(tmp_path, given):
    whole(TASK).save(tmp_path / "plan.json")
    with refused("model-settings-without-model", names=[f"{next(iter(given))}=", "model=cpu"]):
        Evaluate(str(tmp_path / "plan.json"), None, MadeUpHardware(), **given).run()


def test_explain_uses_the_models_of_the_plan_with_changed_settings(tmp_path):
    found_with = ModelChoice("h100", exchange_dtype="fp16", **STEPS)
    Simulator(CostModels.of(found_with)).predicted(whole(TASK)).save(tmp_path / "plan.json")
    assert Explain(str(tmp_path / "plan.json")).run().model == found_with
    changed = Explain(str(tmp_path / "plan.json"), dense_ms=4, exchange_dtype="bf16").run()
    assert changed.model == replace(found_with, dense_ms=4.0, exchange_dtype="bf16")
    other = Explain(str(tmp_path / "plan.json"), "roofline:h100", optimizer="adam").run()
    assert other.model == ModelChoice("roofline:h100", optimizer="adam")
