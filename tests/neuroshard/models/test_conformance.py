from dataclasses import replace

import numpy as np
import pytest

from neuroshard.cost.loads import LoadSets, Traffic
from neuroshard.models import CostModels, FreeComm
from neuroshard.models.host_tiers import HostLink
from neuroshard.models.kernels import KernelModels
from neuroshard.models.roofline import RooflineCompute
from neuroshard.testing import (
    CommModelConformance,
    ComputeModelConformance,
    LinearComm,
    LinearCompute,
    OpaqueCompute,
    PhysicalCommConformance,
    PhysicalComputeConformance,
    SumModelConformance,
    random_models,
    toy_tables,
)
from neuroshard.words.form import COLUMN_WISE_CALL
from tests.kit.devices import MadeUpCpu, MadeUpExchange, MadeUpGpu
from tests.kit.random_models import (
    random_by_collective,
    random_by_form,
    random_by_widest,
    random_ensemble,
    random_regression,
    random_set_comm,
)

INSTALLED = CostModels.load("cpu")


class _Made:
    """Makes what the test's parameter says."""

    @pytest.fixture(autouse=True)
    def _make(self, make):
        self.make = make


@pytest.mark.parametrize("make", [OpaqueCompute])
class TestCompute(_Made, ComputeModelConformance):
    pass


SUMS = {
    "linear": LinearCompute,
    "neural": lambda: random_models().compute,
    "one by one, of sums": lambda: KernelModels.one_by_one(random_models().compute),
    "one by one, of any sharding type": lambda: KernelModels.one_by_one(OpaqueCompute()),
}


@pytest.mark.parametrize("make", SUMS.values(), ids=SUMS)
class TestSums(_Made, SumModelConformance):
    pass


PHYSICAL_COMPUTE = {
    "additive": lambda: random_ensemble().members[0],
    "by widest": lambda: random_by_widest().members[0],
    "ensemble by widest": random_by_widest,
    "regression": random_regression,
    "ensemble": random_ensemble,
    "installed": lambda: INSTALLED.compute,
    "installed for GPUs": lambda: CostModels.load("h100").compute,
    "with parts": lambda: KernelModels(
        {COLUMN_WISE_CALL: random_ensemble()}, adds=(lambda loads: 1e-6 * loads.lookups,)
    ),
    "by sharding type": random_by_form,
    "roofline": lambda: RooflineCompute(1000.0),
    "roofline with host": lambda: RooflineCompute(1000.0, HostLink(20.0, 3.0, 0.1), "adam").of_calls,
    "datasheet": lambda: CostModels.load("roofline:h100").compute,
}


@pytest.mark.parametrize("make", PHYSICAL_COMPUTE.values(), ids=PHYSICAL_COMPUTE)
class TestPhysicalCompute(_Made, PhysicalComputeConformance):
    pass


@pytest.mark.parametrize("make", [MadeUpGpu, MadeUpCpu])
class TestPhysicalComputeOfNoSum(_Made, PhysicalComputeConformance):
    test_a_set_is_the_sum_of_its_vectors = None


@pytest.mark.parametrize("make", [lambda: random_models().forward], ids=["neural"])
class TestComm(_Made, CommModelConformance):
    pass


PHYSICAL_COMM = {
    "free": FreeComm,
    "linear": lambda: LinearComm(4),
    "set": random_set_comm,
    "installed forward": lambda: INSTALLED.forward,
    "installed backward": lambda: INSTALLED.backward,
    "by collective": random_by_collective,
    "datasheet's exchange": lambda: CostModels.load("roofline:l40s").backward,
    "made up": lambda: MadeUpExchange(0.1, 1e6, 2.0),
    "datasheet's network": lambda: replace(CostModels.load("roofline:h100").forward, devices_per_host=2),
}


@pytest.mark.parametrize("make", PHYSICAL_COMM.values(), ids=PHYSICAL_COMM)
class TestPhysicalComm(_Made, PhysicalCommConformance):
    pass


def test_ensemble_predicts_the_mean_and_the_spread_of_its_members():
    ensemble, sets = random_ensemble(), [toy_tables(n, seed=n) for n in range(1, 5)]
    costs = np.array([member.predict(LoadSets.of(sets, 64)) for member in ensemble.members])
    assert np.allclose(ensemble.predict(LoadSets.of(sets, 64)), costs.mean(axis=0), rtol=1e-4)
    assert np.allclose(ensemble.spread_ms(LoadSets.of(sets, 64)), costs.std(axis=0))
    assert (ensemble.spread_ms(LoadSets.of(sets, 64)) > 0).all()


@pytest.mark.parametrize("devices", [1, 2, 5, 128])
def test_set_exchange_model_predicts_for_any_number_of_devices_and_batch_size(devices):
    rng = np.random.default_rng(0)
    dims, starts = rng.integers(0, 99, size=(6, devices)) * 4.0, rng.uniform(0, 9, size=(6, devices))
    small, large = (random_set_comm().predict(Traffic.of_columns(dims, batch), starts) for batch in (256, 4096))
    assert small.shape == (6, devices)
    assert (small >= starts.max(axis=1, keepdims=True) - starts).all()
    assert (small != large).any() == (devices > 1)


@pytest.mark.parametrize("devices", [2, 3, 8])
@pytest.mark.parametrize("name", ["forward", "backward"])
def test_installed_exchange_models_never_end_earlier_with_later_starts_or_more_bytes(name, devices):
    """If a device starts later or sends more bytes, no device ends earlier."""
    rng, model = np.random.default_rng(devices), getattr(CostModels.load("cpu"), name)
    dims, starts = rng.integers(0, 400, size=(200, devices)) * 4.0, rng.uniform(0, 5, size=(200, devices))
    end = model.predict(Traffic.of_columns(dims, 1024), starts) + starts
    one = np.eye(devices)[rng.integers(devices, size=200)]
    later = starts + one * rng.uniform(0, 2, size=(200, 1))
    assert (model.predict(Traffic.of_columns(dims, 1024), later) + later >= end * (1 - 1e-6)).all()
    assert (model.predict(Traffic.of_columns(dims + 64 * one, 1024), starts) + starts >= end * (1 - 1e-6)).all()


class _Stateful(LinearCompute):
    """Predicts higher costs with every call."""

    calls = 0

    def predict(self, sets):
        type(self).calls += 1
        return super().predict(sets) * (1 + 1e-9 * self.calls)


def test_conformance_kit_finds_a_compute_model_that_does_not_repeat():
    class Kit(ComputeModelConformance):
        def make(self):
            return _Stateful()

    with pytest.raises(AssertionError):
        Kit().test_repeats_exactly()
