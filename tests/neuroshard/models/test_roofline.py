import numpy as np
import pytest

from neuroshard.cost.loads import LoadSets
from neuroshard.cost.traffic import Traffic
from neuroshard.layouts import placed_loads
from neuroshard.models import CostModels
from neuroshard.models.host_tiers import HostLink
from neuroshard.models.roofline import RooflineComm, RooflineCompute
from neuroshard.plumbing.configs import choices
from neuroshard.plumbing.errors import UserError
from neuroshard.tables import Table
from neuroshard.testing import PhysicalCommConformance, PhysicalComputeConformance
from neuroshard.words.collective import Collective
from neuroshard.words.shard import Placement, Shard

ONCE = (1.0, *(0.0,) * 16)


class TestRooflineCompute(PhysicalComputeConformance):
    def make(self):
        return RooflineCompute(1000.0, 0.02)


class TestRooflineWithHost(PhysicalComputeConformance):
    def make(self):
        return RooflineCompute(1000.0, 0.02, HostLink(20.0, 3.0, 0.1))


class TestRooflineComm(PhysicalCommConformance):
    def make(self):
        return RooflineComm(100.0, 10.0, 8, 0.01)


def test_bytes_over_bandwidth_by_hand():
    table = Table("t", 10**6, 32, 2.0, ONCE)
    lookups, row = 2000, 128
    moved = lookups * (16 + 2 * row) + 2 * lookups * row + 1000 * row
    (cost,) = RooflineCompute(1.0, 0.5).predict(LoadSets.of([[table]], 1000))
    assert cost == pytest.approx(0.5 + moved / 1e6)


def test_narrow_rows_are_moved_in_whole_sectors():
    """32 bytes: 4 columns cost what 8 do in fp32, and what 16 do where weights are fp16, but for their gradients."""
    tables = [Table("t", 10**6, dim, 2.0, ONCE) for dim in (4, 8, 12, 16)]
    four, eight, twelve, sixteen = RooflineCompute(1.0, 0.0).predict(LoadSets.of([[t] for t in tables], 1000))
    assert four == eight
    assert twelve == sixteen > eight


def _predicted(model, *placements, batch_size=1000, devices=4, tables):
    loads = placed_loads(tables, placements, batch_size, devices)
    return model.predict(LoadSets.alone(loads))


def test_bytes_of_a_copy_by_hand():
    """Its own samples' lookups, and an update that goes over the whole table."""
    table = Table("t", 5000, 32, 2.0, ONCE)
    copies = [Placement(Shard(0, 0, 32, 0, 5000), device) for device in range(4)]
    costs = _predicted(RooflineCompute(1.0, 0.5), *copies, tables=[table])
    lookups, row = 500, 128
    moved = lookups * (16 + 2 * row) + 250 * row + lookups * row + 4 * 5000 * row
    assert costs == pytest.approx([0.5 + moved / 1e6] * 4)


def test_bytes_of_a_block_of_rows_by_hand():
    """Its share of the lookups, and a part of every output."""
    table = Table("t", 4000, 32, 2.0, ONCE, row_lookups=(0.5, 0.25, 0.125, 0.125))
    blocks = [Placement(Shard(0, 0, 32, 1000 * device, 1000), device) for device in range(4)]
    costs = _predicted(RooflineCompute(1.0, 0.5), *blocks, tables=[table])
    lookups, row = 2000 * np.array(table.row_lookups), 128
    moved = lookups * (16 + 2 * row) + 1000 * row + 2 * np.minimum(lookups, 1000) * row
    assert costs == pytest.approx(0.5 + moved / 1e6)


def _exchange_ms(comm, collective, given, host_size=None):
    size_bytes = np.zeros((1, len(given), len(Collective)))
    size_bytes[0, :, collective] = given
    return comm.predict(Traffic(size_bytes, np.array([400]), host_size), np.zeros((1, len(given))))[0]


@pytest.mark.parametrize(
    ("collective", "on_links", "on_network"),
    [
        (Collective.REDUCE_SCATTER, 3 / 4, 1 / 4 * 1 / 2),
        (Collective.HOST_REDUCE_SCATTER, 3 / 4, 0),
        (Collective.HOST_ALL_TO_ALL, 0, 1 / 2),
        (Collective.ALL_REDUCE, 6 / 4, 1 / 4),
        (Collective.ALL_TO_ALL, 3 / 8, 4 / 8),
    ],
)
def test_collectives_by_hand(collective, on_links, on_network):
    """Two hosts of four devices: what a device sends inside its host and out of it, of 1e6 bytes that it puts in."""
    given = np.full(8, 1e6)
    slow_network = _exchange_ms(RooflineComm(1000.0, 1.0, 4, 0.25), collective, given, 4)
    slow_links = _exchange_ms(RooflineComm(1.0, 1000.0, 4, 0.25), collective, given, 4)
    assert slow_network == pytest.approx(0.25 + max(on_network, on_links / 1000))
    assert slow_links == pytest.approx(0.25 + max(on_links, on_network / 1000))


def test_the_busiest_device_holds_the_others_up_and_nothing_takes_no_time():
    comm = RooflineComm(1.0, 1.0, 8, 0.25)
    given = np.array([0.0, 4e6, 0.0, 0.0])
    assert _exchange_ms(comm, Collective.HOST_REDUCE_SCATTER, given, 2) == pytest.approx(0.25 + 2)
    assert (_exchange_ms(comm, Collective.REDUCE_SCATTER, 0 * given) == 0).all()


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
