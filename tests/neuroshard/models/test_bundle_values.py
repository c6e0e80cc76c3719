"""Bundles that are well-formed but wrong: they are refused in one line, or their costs are finite and not negative.

NEUROSHARD_FUZZ=10000 pytest tests/neuroshard/models/test_bundle_values.py tries 10,000 instead of a few.
"""

import hashlib
import json
import os
import re
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy

from neuroshard.models import Card, CostModels, save_bundle
from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import assemble
from neuroshard.plumbing.errors import UserError
from neuroshard.testing import random_models, random_regression, toy_task
from tests.kit.bundles import newer_models
from tests.kit.wrong_values import change_for

TRIES = int(os.environ.get("NEUROSHARD_FUZZ", "50"))


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """A bundle of every form, and a place for changed ones."""
    root, newer = tmp_path_factory.mktemp("bundles"), newer_models()
    save_bundle(root / "newer", newer, Card())
    save_bundle(root / "paper", random_models(), Card())
    save_bundle(root / "linear", replace(newer, compute=random_regression()), Card())
    (root / "changed").mkdir()
    return root


@pytest.mark.parametrize("form", ["newer", "paper", "linear"])
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_wrong_values_are_refused_or_harmless(bundles, form):
    good = _read(bundles / form)
    changes, plans = [change_for(file) for file in good], _plans()
    refused = loaded = 0
    for seed in range(TRIES):
        rng, files = np.random.default_rng(seed), list(good)
        for _ in range(int(rng.integers(1, 3))):
            which = int(rng.integers(2))
            files[which] = changes[which](files[which], rng)
        _write(bundles / "changed", *files)
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


@pytest.mark.parametrize("form", ["newer", "paper", "linear"])
def test_tensors_that_belong_to_nothing_are_refused(bundles, form):
    content, weights = _read(bundles / form)
    tensors = safetensors.numpy.load(weights) | {"compute.more": np.zeros(3, np.float32)}
    _write(bundles / "changed", content, safetensors.numpy.save(tensors))
    with pytest.raises(UserError, match="tensor 'more' belongs to nothing"):
        CostModels.load(bundles / "changed")


def test_a_member_that_is_left_out_is_missed(bundles):
    content, weights = _read(bundles / "newer")
    tree = json.loads(content)
    tree["models"]["compute"]["settings"]["members"].pop()
    _write(bundles / "changed", json.dumps(tree).encode(), weights)
    with pytest.raises(UserError, match="belongs to nothing"):
        CostModels.load(bundles / "changed")


def _check_harmless(models, plan, seed):
    try:
        cost = Simulator(models).cost(plan.task, plan)
    except UserError:  # of another number of devices, or batch size
        return
    for part in (cost.compute, cost.forward, cost.backward, cost.device_ms):
        assert np.isfinite(part).all(), seed
        assert (part >= 0).all(), seed
    assert cost.margin is None or (np.isfinite(cost.margin).all() and (cost.margin >= 0).all()), seed


def _plans():
    plans = []
    for count, lopsided in ((3, True), (12, False)):
        task = toy_task(count)
        plans.append(assemble(task, [(i, t.dim, 0 if lopsided else i % 4) for i, t in enumerate(task.tables)]))
    return plans


def _read(path):
    """The description of a bundle, and its weights."""
    return (path / "bundle.json").read_bytes(), next(path.glob("weights-*")).read_bytes()


def _write(path, content, weights):
    """By somebody who knows of the hash: where there is one, it becomes that of these weights."""
    for file in path.iterdir():
        file.unlink()
    digest = hashlib.sha256(weights).hexdigest()
    (path / f"weights-{digest}.safetensors").write_bytes(weights)
    (path / "bundle.json").write_bytes(re.sub(rb"\b[0-9a-f]{64}\b", digest.encode(), content))
