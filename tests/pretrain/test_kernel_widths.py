"""The savings of calls without wide tables, fitted to calls with known costs."""

import numpy as np
import pytest
import torch

from neuroshard.cost.loads import LoadSets
from neuroshard.measure.store.samples import ComputeSample
from neuroshard.models.compute_models import AdditiveCompute, ByWidestCompute
from neuroshard.models.features import FeatureSet
from neuroshard.models.stored import Normaliser
from neuroshard.stages.pretrain.examples import ComputeTable
from neuroshard.stages.pretrain.fit_additive import Additive, AdditiveNetwork
from neuroshard.stages.pretrain.measurements import SplitMeasurements
from neuroshard.stages.pretrain.training import TrainingSettings
from neuroshard.testing import toy_tables
from tests.kit.made_up import BRIEF, measured
from tests.kit.messages import refused
from tests.kit.random_models import random_by_widest

TRAINING = TrainingSettings(epochs=60, batch_size=16, learning_rate=1e-2, loss="absolute_relative", patience=60)
NARROW, SAVED = 32, 0.4
TABLES = toy_tables(60)
FEW_NARROW = [table for table in TABLES if table.dim <= NARROW]


def _cost_ms(tables):
    """Return costs in proportion to lookups, reduced if no table is wide."""
    beside_a_wide_one = 0.1 * len(tables) + sum(1e-4 * t.pooling_factor * 256 * t.dim for t in tables)
    return beside_a_wide_one * (1 - SAVED * (max(t.dim for t in tables) <= NARROW))


def _calls(count, seed):
    """Draw samples; every other sample has only narrow tables."""
    rng = np.random.default_rng(seed)
    pools = FEW_NARROW, TABLES
    drawn = [pools[i % 2] for i in range(count)]
    return [tuple(pool[j] for j in rng.permutation(len(pool))[: rng.integers(1, 6)]) for pool in drawn]


def _split(calls):
    made = [measured(ComputeSample(its, 256), i, _cost_ms(its)) for i, its in enumerate(calls)]
    return SplitMeasurements(made[30:], made[:30], [], made)


def _fitted(kernel_widths=(), start=None, training=TRAINING):
    fitter = Additive((16,), training, corrections=2, kernel_widths=kernel_widths)
    return fitter.fit(_split(_calls(330, 0)), start, 0, lambda _epoch, _loss: None)


def _error(model):
    calls = _calls(100, 1)
    return np.abs(model.predict(LoadSets.of(calls, 256)) / [_cost_ms(its) for its in calls] - 1).mean()


@pytest.mark.slow
def test_fit_learns_the_savings_of_narrow_calls_from_their_widths():
    told, untold = _fitted((NARROW,)), _fitted()
    assert _error(told) < 0.3 * _error(untold)
    assert told.saved[0] == pytest.approx(SAVED, abs=0.1)


@pytest.mark.parametrize("kernel_widths", [(), (8, NARROW)])
def test_additive_networks_and_exported_models_predict_equally(kernel_widths):
    """Tables of exactly a kernel width count as narrow; the exported model predicts like the network."""
    torch.manual_seed(0)
    calls, features = [*_calls(40, 2), *([table] for table in TABLES)], FeatureSet("physical_reuse")
    assert {4, 8, 16, NARROW, 64} == {max(table.dim for table in its) for its in calls}
    table = ComputeTable.of(_split(calls).everything, features)
    normaliser = Normaliser.fitted(table.features)
    inputs = table.examples(normaliser, 2.0).inputs(torch.arange(len(calls)))
    network = AdditiveNetwork(features, normaliser, (16,), 4, kernel_widths)
    with torch.no_grad():
        network.saved.copy_(torch.linspace(-0.5, 0.5, len(kernel_widths)))
        network.weight.mul_(20)
        network.offset.fill_(10)
    exported = network.model(features, normaliser, 2.0)
    again = AdditiveNetwork(features, normaliser, (16,), 4, kernel_widths)
    again.load(exported)
    assert type(exported) is (ByWidestCompute if kernel_widths else AdditiveCompute)
    for one in (network, again):
        cost_ms = 2.0 * one(*inputs).detach().numpy()[:, 0]
        assert np.allclose(cost_ms, exported.predict(LoadSets.of(calls, 256)), rtol=1e-4)


def test_fitting_further_keeps_the_kernel_widths_of_the_initial_model():
    """The fitter's own widths are ignored; fitting begins with the savings of the initial model."""
    start = random_by_widest().members[0]
    still = TrainingSettings(epochs=1, learning_rate=1e-12)
    fitted = _fitted((8,), start, still)
    assert fitted.kernel_widths == start.kernel_widths
    assert np.allclose(fitted.saved, start.saved, rtol=1e-4)
    moved = _fitted((), start, BRIEF)
    assert moved.kernel_widths == start.kernel_widths
    assert not np.allclose(moved.saved, start.saved, rtol=1e-4)


@pytest.mark.parametrize(
    ("settings", "code", "names"),
    [
        ({"kernel_widths": (64, 32)}, "kernel-widths-invalid", ["kernel_widths=[64, 32]"]),
        ({"kernel_widths": (32, 32)}, "kernel-widths-invalid", ["kernel_widths=[32, 32]"]),
        ({"kernel_widths": (30,)}, "value-outside-limits", ["kernel_widths[0]", 30, 4]),
        ({"kernel_widths": (0, 32)}, "value-outside-limits", ["kernel_widths[0]", 0, 4]),
        ({"kernel_widths": (32,), "features": "paper"}, "kernel-widths-invalid", ["features=paper", "log_dim"]),
    ],
)
def test_additive_model_refuses_invalid_kernel_widths(settings, code, names):
    with refused(code, names=names):
        Additive(**settings)
