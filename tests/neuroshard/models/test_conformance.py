import numpy as np
import pytest

from neuroshard.cost.loads import LoadSets
from neuroshard.cost.traffic import Traffic
from neuroshard.models import CostModels, FreeComm
from neuroshard.models.precision import Narrowed
from neuroshard.testing import (
    CommModelConformance,
    ComputeModelConformance,
    LinearComm,
    LinearCompute,
    OpaqueCompute,
    PhysicalCommConformance,
    PhysicalComputeConformance,
    SumModelConformance,
    random_ensemble,
    random_models,
    random_regression,
    random_set_comm,
    toy_tables,
)


class TestNeuralCompute(SumModelConformance):
    def make(self):
        return random_models().compute


class TestLinearCompute(SumModelConformance):
    def make(self):
        return LinearCompute()


class TestOpaqueCompute(ComputeModelConformance):
    def make(self):
        return OpaqueCompute()


class TestNeuralComm(CommModelConformance):
    def make(self):
        return random_models().forward


class TestLinearComm(PhysicalCommConformance):
    def make(self):
        return LinearComm(4)


class TestAdditiveCompute(PhysicalComputeConformance):
    def make(self):
        return random_ensemble().members[0]


class TestRegressionCompute(PhysicalComputeConformance):
    def make(self):
        return random_regression()


class TestComputeEnsemble(PhysicalComputeConformance):
    def make(self):
        return random_ensemble()


class TestSetComm(PhysicalCommConformance):
    def make(self):
        return random_set_comm()


def test_an_ensemble_is_the_mean_of_its_members_and_knows_their_spread():
    ensemble, sets = random_ensemble(), [toy_tables(n, seed=n) for n in range(1, 5)]
    costs = np.array([member.predict(LoadSets.of(sets, 64)) for member in ensemble.members])
    assert np.allclose(ensemble.predict(LoadSets.of(sets, 64)), costs.mean(axis=0), rtol=1e-4)
    assert np.allclose(ensemble.spread_ms(LoadSets.of(sets, 64)), costs.std(axis=0))
    assert (ensemble.spread_ms(LoadSets.of(sets, 64)) > 0).all()


@pytest.mark.parametrize("devices", [1, 2, 5, 128])
def test_a_set_model_serves_any_number_of_devices_and_batch_size(devices):
    rng = np.random.default_rng(0)
    dims, starts = rng.integers(0, 99, size=(6, devices)) * 4.0, rng.uniform(0, 9, size=(6, devices))
    small, large = (random_set_comm().predict(Traffic.of_columns(dims, batch), starts) for batch in (256, 4096))
    assert small.shape == (6, devices)
    assert (small >= starts.max(axis=1, keepdims=True) - starts).all()
    assert (small != large).any() == (devices > 1)


@pytest.mark.parametrize("devices", [2, 3, 8])
@pytest.mark.parametrize("name", ["forward", "backward"])
def test_the_installed_models_keep_time_for_any_number_of_devices(name, devices):
    """Whoever starts later makes nobody end sooner; whoever sends more, neither."""
    rng, model = np.random.default_rng(devices), getattr(CostModels.load("cpu"), name)
    dims, starts = rng.integers(0, 400, size=(200, devices)) * 4.0, rng.uniform(0, 5, size=(200, devices))
    end = model.predict(Traffic.of_columns(dims, 1024), starts) + starts
    one = np.eye(devices)[rng.integers(devices, size=200)]
    later = starts + one * rng.uniform(0, 2, size=(200, 1))
    assert (model.predict(Traffic.of_columns(dims, 1024), later) + later >= end * (1 - 1e-6)).all()
    assert (model.predict(Traffic.of_columns(dims + 64 * one, 1024), starts) + starts >= end * (1 - 1e-6)).all()


class TestFreeComm(PhysicalCommConformance):
    def make(self):
        return FreeComm()


class TestNarrowed(PhysicalCommConformance):
    def make(self):
        return Narrowed(random_set_comm(), 0.5)


class TestInstalledCompute(PhysicalComputeConformance):
    def make(self):
        return CostModels.load("cpu").compute


class TestInstalledForward(PhysicalCommConformance):
    def make(self):
        return CostModels.load("cpu").forward


class TestInstalledBackward(PhysicalCommConformance):
    def make(self):
        return CostModels.load("cpu").backward
