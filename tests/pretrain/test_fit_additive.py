"""Models of the default kind stay monotone and extrapolate sensibly, also if fitted to wrong measurements."""

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from neuroshard.cost.loads import LoadSets
from neuroshard.measure.store.samples import BACKWARD, FORWARD, CommSample, ComputeSample
from neuroshard.plumbing.schema import SEEDS
from neuroshard.stages.pretrain.fit_additive import Additive, Ensemble, Regression
from neuroshard.stages.pretrain.fit_set_comm import SetCommunication
from neuroshard.stages.pretrain.measurements import SplitMeasurements
from neuroshard.stages.pretrain.training import TrainingSettings
from neuroshard.testing import PhysicalCommConformance, PhysicalComputeConformance, toy_tables
from tests.kit.made_up import measured

TRAINING = TrainingSettings(epochs=20, batch_size=32, learning_rate=1e-2, loss="absolute_relative")


def _split(samples, times):
    made = [measured(*one, repeats=2) for one in zip(samples, range(len(samples)), times, strict=True)]
    return SplitMeasurements(made[20:], made[:20], made[:20], made)


def _breaking_physics():
    """Measurements that break physics: cost falls with every table, row, lookup and column."""
    samples = [ComputeSample(toy_tables(1 + i % 6, i), 64 << i % 4) for i in range(200)]
    times = np.array([1 / (sum(t.size_bytes * t.pooling_factor for t in s.tables) * s.batch_size) for s in samples])
    return _split(samples, 1 + times / times.max())


@cache
def _compute():
    return Ensemble(Additive((16,), TRAINING, corrections=4), 2).fit(_breaking_physics(), None, 0, _silent)


@cache
def _regression():
    """Fit a regression to measurements that break physics."""
    return Regression().fit(_breaking_physics(), None, 0, _silent)


@cache
def _comm(direction):
    """Measurements that break physics: exchanges take longer without waits, and shorter with more bytes."""
    rng = np.random.default_rng(0)
    samples, times = [], []
    for _ in range(200):
        dims, starts = rng.integers(1, 300, size=3) * 4, rng.uniform(0, 5, size=3)
        wait = starts.max() - starts
        samples.append(CommSample.of_columns(tuple(dims.tolist()), tuple(starts.tolist()), 256))
        transfer = 2000 / dims + (wait == 0) + wait
        times.append(np.stack([wait + transfer, transfer]))
    return SetCommunication((16,), TRAINING, 4).fit(_split(samples, times), direction, None, 0, _silent)


def _silent(_epoch, _loss):
    pass


def test_additive_model_extrapolates_to_twenty_times_the_lookups():
    """The cost of all samples is a sum of moved bytes, so the model can predict a table with 20 times the lookups."""

    def cost_ms(tables, batch_size):
        return 0.1 + sum(1e-6 * t.pooling_factor * t.features * batch_size * t.dim for t in tables)

    samples = [ComputeSample(toy_tables(1 + i % 4, i), 64 << i % 3) for i in range(200)]
    split = _split(samples, [cost_ms(s.tables, s.batch_size) for s in samples])
    model = Additive((16,), TRAINING, corrections=2).fit(split, None, 0, _silent)
    hottest = max((t for s in samples for t in s.tables), key=lambda t: t.pooling_factor)
    hot = replace(hottest, pooling_factor=20 * hottest.pooling_factor)
    assert model.predict(LoadSets.of([[hot]], 256))[0] == pytest.approx(cost_ms([hot], 256), rel=0.25)


class TestFittedCompute(PhysicalComputeConformance):
    make = staticmethod(_compute)


class TestFittedRegression(PhysicalComputeConformance):
    make = staticmethod(_regression)


class TestFittedForward(PhysicalCommConformance):
    make = partial(_comm, FORWARD)


class TestFittedBackward(PhysicalCommConformance):
    make = partial(_comm, BACKWARD)


def test_ensemble_accepts_the_largest_seed():
    fitted = Ensemble(Additive((4,), replace(TRAINING, epochs=1)), 2).fit(_breaking_physics(), None, SEEDS - 1, _silent)
    assert len(fitted.members) == 2
