"""Bundles that are well-formed but wrong: they are refused in one line, or their costs are finite and not negative.

NEUROSHARD_FUZZ=10000 pytest tests/neuroshard/models/test_bundle_values.py tries 10,000 instead of a few.
"""

import hashlib
import json
import os
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

TRIES = int(os.environ.get("NEUROSHARD_FUZZ", "50"))
NUMBERS = (0, -1, 1, -1e-30, 1e-30, 1e30, -1e30, 1e300, 5e-324, 3.4e38, 0.5, 2, 1 << 31, 1 << 62, 1 << 70)
OTHERS = (None, True, False, "", "x", "1", "nan", [], [1], {}, {"a": 1}, [[]], "paper", "log", "set", "sorted")
EXTREMES = (0.0, -0.0, np.nan, np.inf, -np.inf, 1e38, -1e38, 1e-38, 1e308, -1.0, 1.0, 1e6, -1e6)
TYPES = (np.float16, np.float32, np.float64, np.int32, np.int64, np.uint8, np.bool_)


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
    content = (bundles / form / "bundle.json").read_text()
    weights = next((bundles / form).glob("weights-*")).read_bytes()
    plans = _plans()
    refused = loaded = 0
    for seed in range(TRIES):
        rng = np.random.default_rng(seed)
        tree, tensors = json.loads(content), safetensors.numpy.load(weights)
        for _ in range(int(rng.integers(1, 3))):
            if rng.random() < 0.5:
                _change_value(tree, rng)
            else:
                _change_tensor(tensors, rng)
        _write(bundles / "changed", tree, tensors)
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
    tree = json.loads((bundles / form / "bundle.json").read_text())
    tensors = safetensors.numpy.load(next((bundles / form).glob("weights-*")).read_bytes())
    _write(bundles / "changed", tree, tensors | {"compute.more": np.zeros(3, np.float32)})
    with pytest.raises(UserError, match="tensor 'more' belongs to nothing"):
        CostModels.load(bundles / "changed")


def test_a_member_that_is_left_out_is_missed(bundles):
    tree = json.loads((bundles / "newer" / "bundle.json").read_text())
    tensors = safetensors.numpy.load(next((bundles / "newer").glob("weights-*")).read_bytes())
    tree["models"]["compute"]["settings"]["members"].pop()
    _write(bundles / "changed", tree, tensors)
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


def _write(path, tree, tensors):
    for file in path.iterdir():
        file.unlink()
    stored = safetensors.numpy.save(tensors)
    digest = hashlib.sha256(stored).hexdigest()
    (path / f"weights-{digest}.safetensors").write_bytes(stored)
    if isinstance(tree.get("weights"), str):
        tree["weights"] = digest
    (path / "bundle.json").write_text(json.dumps(tree))


def _change_value(tree, rng):
    """One value of a JSON tree, a plain one as a rule."""
    places = list(_places(tree))
    plain = [(holder, key) for holder, key in places if not isinstance(holder[key], (dict, list))]
    chosen = plain if rng.random() < 0.8 else places
    holder, key = chosen[int(rng.integers(len(chosen)))]
    value, way = holder[key], int(rng.integers(4))
    if way == 0 and isinstance(value, float):
        holder[key] = value * float(rng.choice([-1, 0, 1e-6, 0.5, 3, 1e6]))
    elif way <= 2:
        holder[key] = NUMBERS[int(rng.integers(len(NUMBERS)))]
    else:
        holder[key] = OTHERS[int(rng.integers(len(OTHERS)))]


def _places(tree):
    stack = [tree]
    while stack:
        node = stack.pop()
        keys = list(node) if isinstance(node, dict) else list(range(len(node))) if isinstance(node, list) else []
        for key in keys:
            yield node, key
            stack.append(node[key])


def _change_tensor(tensors, rng):
    """One tensor: some of its values, its type, its shape; or it goes, or another takes its place."""
    name = sorted(tensors)[int(rng.integers(len(tensors)))]
    tensor, way = tensors[name], int(rng.integers(8))
    if way <= 2:
        changed = tensor.copy()
        if changed.size and changed.dtype.kind == "f":
            with np.errstate(all="ignore"):
                extreme = np.array(EXTREMES[int(rng.integers(len(EXTREMES)))]).astype(changed.dtype)
                changed.flat[rng.integers(changed.size, size=int(rng.integers(1, 4)))] = extreme
        tensors[name] = changed
    elif way == 3:
        with np.errstate(all="ignore"):
            factor = float(rng.choice([-1, 0, 1e-3, 3, 1e3, 1e10, 1e25]))
            tensors[name] = (tensor.astype(np.float64) * factor).astype(tensor.dtype)
    elif way == 4:
        with np.errstate(all="ignore"):
            tensors[name] = tensor.astype(TYPES[int(rng.integers(len(TYPES)))])
    elif way == 5:
        tensors[name] = (tensor[None], tensor[:-1], tensor[:0], tensor.sum(), np.concatenate([tensor, tensor]),
                         np.ascontiguousarray(tensor.T), tensor.reshape(-1))[int(rng.integers(7))]  # fmt: skip
        tensors[name] = np.array(tensors[name])
    elif way == 6:
        del tensors[name]
    else:
        tensors[name] = tensors[sorted(tensors)[int(rng.integers(len(tensors)))]]
