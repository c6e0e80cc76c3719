"""Well-formed bundles with wrong values are refused in one line, or their costs are finite and not negative.

NEUROSHARD_FUZZ=10000 pytest tests/neuroshard/models/test_bundle_values.py tries 10,000 instead of a few.
"""

import json
import os
from dataclasses import replace

import numpy as np
import pytest

from neuroshard import CostModels, Simulator, UserError
from neuroshard.models import Card, save_bundle
from neuroshard.testing import random_models, toy_task
from tests.kit.bundles import newer_models, write_parts
from tests.kit.plans import whole
from tests.kit.random_models import random_regression
from tests.kit.wrong_values import change_for

H100 = CostModels.load("roofline:h100")
TRIES = int(os.environ.get("NEUROSHARD_FUZZ", "50"))


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """A bundle of every kind, and a place for changed ones."""
    root, newer = tmp_path_factory.mktemp("bundles"), newer_models()
    save_bundle(root / "newer", newer, Card())
    exchanges = {name: getattr(H100, name) for name in ("forward", "backward", "input")}
    save_bundle(root / "datasheet", replace(newer, compute=random_regression(), **exchanges), Card())
    save_bundle(root / "paper", random_models(), Card())
    save_bundle(root / "linear", replace(newer, compute=random_regression()), Card())
    (root / "changed").mkdir()
    return root


@pytest.mark.parametrize("form", ["newer", "paper", "linear", "datasheet"])
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_bundle_with_wrong_values_is_refused_or_predicts_harmlessly(bundles, form):
    given = (bundles / form / "bundle.json").read_bytes(), next((bundles / form).glob("weights-*")).read_bytes()
    plans = whole(toy_task(3), 0), whole(toy_task(12))
    refused = loaded = 0
    for seed in range(TRIES):
        rng, contents = np.random.default_rng(seed), list(given)
        for _ in range(int(rng.integers(1, 3))):
            which = int(rng.integers(2))
            contents[which] = change_for(contents[which])(contents[which], rng)
        write_parts(bundles / "changed", json.loads(contents[0]), contents[1])
        try:
            models = CostModels.load(bundles / "changed")
        except UserError:
            refused += 1
            continue
        loaded += 1
        for plan in plans:
            _check_harmless(models, plan, seed)
    assert refused > TRIES // 4
    assert loaded > TRIES // 20


def _check_harmless(models, plan, seed):
    try:
        cost = Simulator(models).cost(plan.task, plan)
    except UserError:  # of another number of devices, or batch size
        return
    for part in (cost.compute, cost.forward, cost.backward, cost.device_ms):
        assert np.isfinite(part).all(), seed
        assert (part >= 0).all(), seed
    assert cost.margin is None or (np.isfinite(cost.margin).all() and (cost.margin >= 0).all()), seed
