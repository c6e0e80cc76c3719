import numpy as np
import pytest

from neuroshard.models import FreeComm
from neuroshard.testing import (
    CommModelConformance,
    ComputeModelConformance,
    LinearComm,
    LinearCompute,
    OpaqueCompute,
    SumModelConformance,
    random_ensemble,
    random_models,
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


class TestLinearComm(CommModelConformance):
    def make(self):
        return LinearComm(4)


class TestAdditiveCompute(SumModelConformance):
    def make(self):
        return random_ensemble().members[0]


class TestComputeEnsemble(SumModelConformance):
    def make(self):
        return random_ensemble()


class TestSetComm(CommModelConformance):
    def make(self):
        return random_set_comm()


def test_an_ensemble_is_the_mean_of_its_members_and_knows_their_spread():
    ensemble, sets = random_ensemble(), [toy_tables(n, seed=n) for n in range(1, 5)]
    costs = np.array([member.predict(sets, 64) for member in ensemble.members])
    assert np.allclose(ensemble.predict(sets, 64), costs.mean(axis=0), rtol=1e-4)
    assert np.allclose(ensemble.spread_ms(sets, 64), costs.std(axis=0))
    assert (ensemble.spread_ms(sets, 64) > 0).all()


@pytest.mark.parametrize("devices", [1, 2, 5, 128])
def test_a_set_model_serves_any_number_of_devices_and_batch_size(devices):
    rng = np.random.default_rng(0)
    dims, starts = rng.integers(0, 99, size=(6, devices)) * 4.0, rng.uniform(0, 9, size=(6, devices))
    small, large = (random_set_comm().predict(dims, starts, batch) for batch in (256, 4096))
    assert small.shape == (6, devices)
    assert (small >= starts.max(axis=1, keepdims=True) - starts).all()
    assert (small != large).any() == (devices > 1)


class TestFreeComm(CommModelConformance):
    def make(self):
        return FreeComm()
