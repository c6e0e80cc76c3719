import numpy as np
import pytest

from neuroshard.errors import UserError
from neuroshard.loads import LoadSets
from neuroshard.models import CostModels
from neuroshard.models.roofline import RooflineComm, RooflineCompute
from neuroshard.registry import choices
from neuroshard.tables import Table
from neuroshard.testing import PhysicalCommConformance, PhysicalComputeConformance
from neuroshard.traffic import Traffic

ONCE = (1.0, *(0.0,) * 16)


class TestRooflineCompute(PhysicalComputeConformance):
    def make(self):
        return RooflineCompute(1000.0, 0.02)


class TestRooflineComm(PhysicalCommConformance):
    def make(self):
        return RooflineComm(100.0, 10.0, 8, 0.01)


def test_bytes_over_bandwidth_by_hand():
    table = Table("t", 10**6, 32, 2.0, ONCE)
    lookups, row = 2000, 128
    moved = lookups * (16 + 2 * row) + 2 * lookups * row + 1000 * row
    (cost,) = RooflineCompute(1.0, 0.5).predict(LoadSets.of([[table]], 1000))
    assert cost == pytest.approx(0.5 + moved / 1e6)


def test_the_network_is_used_beyond_one_host():
    comm = RooflineComm(100.0, 10.0, 2, 0.0)
    dims = np.full((1, 4), 100.0)
    assert comm.predict(Traffic.of_columns(dims, 400), np.zeros((1, 4)))[0, 0] == pytest.approx(
        2 * 100 * 100 * 4 / 10e6
    )
    assert comm.predict(Traffic.of_columns(dims[:, :2], 400), np.zeros((1, 2)))[0, 0] == pytest.approx(
        100 * 200 * 4 / 100e6
    )


@pytest.mark.parametrize("name", choices("roofline"))
def test_every_datasheet_loads_for_any_number_of_devices(name):
    models = CostModels.load(f"roofline:{name}")
    assert models.num_devices is None
    assert models.batch_size is None


def test_unknown_datasheets_name_the_nearest():
    with pytest.raises(UserError, match="did you mean 'h100'"):
        CostModels.load("roofline:h10")
