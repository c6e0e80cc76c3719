"""Margins, ranges and names of a model are dropped if another model replaces it."""

from dataclasses import replace

import numpy as np
import pytest

from neuroshard import CostModels, Simulator
from neuroshard.cost.cost import BACKWARD, COMPUTE, FORWARD, INPUT
from neuroshard.models import Card, load_bundle, save_bundle
from neuroshard.models.trust import EXCHANGES, Margin
from neuroshard.testing import LinearComm, LinearCompute, toy_task
from neuroshard.torchrec.input_digests import digests
from neuroshard.words.model_choice import ModelChoice
from tests.kit.plans import whole
from tests.kit.random_models import random_regression

CPU = CostModels.load("cpu")
OWN = {
    COMPUTE: LinearCompute(), FORWARD: LinearComm(4, 0.1), BACKWARD: LinearComm(4, 0.2), INPUT: LinearComm(4, 0.3),
}  # fmt: skip
MARGIN = Margin(0.5, 2.0)


def _replaced_by_hand(name):
    return replace(CPU, **{name: OWN[name]})


def _replaced_by_name(name):
    return getattr(CPU, f"with_{name}")(OWN[name])


@pytest.mark.parametrize("replaced", [_replaced_by_hand, _replaced_by_name])
@pytest.mark.parametrize("name", OWN)
def test_replacing_a_model_drops_its_margins_ranges_and_name_and_keeps_the_others(name, replaced):
    models = replaced(name)
    assert getattr(models, name) is OWN[name]
    assert (models.name, models.digest) == (None, None)
    assert {part: models.margins.of(part) for part in OWN} == {
        part: None if part == name else CPU.margins.of(part) for part in OWN
    }
    known = {*CPU.margins.others, *CPU.ranges.others}
    of_model = {part for part in known if part.partition(".")[0] == name}
    assert {part for part, margin in models.margins.others.items() if margin is not None} == (
        CPU.margins.others.keys() - of_model
    )
    of_both = {EXCHANGES} if name in (FORWARD, BACKWARD) else set()
    assert models.ranges.others.keys() == CPU.ranges.others.keys() - of_model - of_both
    assert (models.ranges.rows is None) == (name == COMPUTE)
    assert (models.ranges.devices is None) == (name in (FORWARD, BACKWARD))
    assert models.hardware == CPU.hardware  # of the models that are left


@pytest.mark.parametrize("name", [COMPUTE, FORWARD, BACKWARD])
def test_cost_of_a_replaced_model_without_margins_has_no_margin_and_a_warning(name):
    plan = whole(toy_task(6))
    of_cpu, own, given = (
        Simulator(models)
        for models in (CPU, _replaced_by_hand(name), getattr(CPU, f"with_{name}")(OWN[name], margins=MARGIN))
    )
    assert of_cpu.predicted(plan).prediction.margin_ms > 0
    assert own.predicted(plan).prediction.margin_ms is None
    of_part = next(part for part in given.cost(plan.task, plan).parts if part.name == name)
    assert np.allclose(of_part.margin, of_part.ms)  # twice a half of the ms
    for simulator, warned in ((of_cpu, False), (own, True), (given, False)):
        lacking = [one for one in simulator.warnings(plan) if one.code == "costs-lack-margin"]
        assert [name in one.what for one in lacking] == [True] * warned


def test_replacing_a_model_with_given_margins_ranges_and_choice_keeps_them():
    margins, ranges = replace(CPU.margins, compute=MARGIN), replace(CPU.ranges, devices=None)
    models = replace(CPU, compute=OWN[COMPUTE], margins=margins, ranges=ranges, choice=ModelChoice("mine"))
    assert (models.margins, models.ranges, models.name, models.digest) == (margins, ranges, "mine", None)


def test_hardware_is_kept_until_every_measured_model_is_replaced():
    models = CPU.with_forward(OWN[FORWARD]).with_backward(OWN[BACKWARD])
    assert (models.hardware, models.versions) == (CPU.hardware, CPU.versions)
    models = models.in_torchrec().with_compute(OWN[COMPUTE])
    assert (models.hardware, models.versions, models.margins) == (None, {}, None)


@pytest.mark.parametrize("settings", [{"framework": "torchrec"}, {"exchange_dtype": "fp16"}])
def test_wrapped_models_keep_margins_ranges_and_provenance(settings):
    models = CostModels.load("cpu", **settings)
    assert models.compute is not CPU.compute or models.forward is not CPU.forward
    assert (models.margins, models.ranges, models.hardware) == (CPU.margins, CPU.ranges, CPU.hardware)
    assert (models.choice, models.digest) == (ModelChoice("cpu", **settings), CPU.digest)


def test_saved_bundle_keeps_unknown_margins_unknown(tmp_path):
    models = CPU.with_compute(random_regression())
    save_bundle(tmp_path, models, Card())
    loaded, _ = load_bundle(tmp_path)
    assert (loaded.margins, loaded.ranges) == (models.margins, models.ranges)
    assert loaded.margins.compute is None


def test_digests_of_models_differ_if_one_model_is_replaced():
    """Digests of inputs use name and digest of the models if they have them, else the models themselves."""
    own, again = CPU.with_compute(OWN[COMPUTE]), replace(CPU, compute=OWN[COMPUTE])
    assert digests({"models": own}) == digests({"models": again})
    assert digests({"models": own}) != digests({"models": CPU.with_compute(LinearCompute(1.0))})
