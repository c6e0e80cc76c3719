"""Collect runs with processes on several hosts."""

from dataclasses import replace

import pytest

from neuroshard.measure.store import DataDirectory
from neuroshard.measure.store.noise import fastest
from neuroshard.stages.augment.collect import Collect
from neuroshard.stages.augment.comm import CommAugmentation
from neuroshard.stages.augment.compute import ComputeAugmentation
from neuroshard.testing import toy_tables
from neuroshard.words.collective import BETWEEN_HOSTS, Collective, name_of
from tests.kit.measuring import CPU
from tests.kit.processes import as_if_under_torchrun

pytestmark = pytest.mark.xdist_group("measures")
DEVICES, ON_HOST, SAMPLES = 4, 2, 24


def _collect(rank, out):
    """Collect exchanges of every collective; every rank runs the same command, as under torchrun."""
    comm = CommAugmentation(
        num_devices=(DEVICES,),
        min_tables=1,
        max_tables=4,
        max_dim=8,
        max_start_ms=1.0,
        collectives=tuple(map(name_of, Collective)),
        max_gradient_bytes=1 << 16,
    )
    hardware = replace(CPU, device=replace(CPU.device, pin=False))  # there may be fewer cores than processes
    run = Collect(toy_tables(12), hardware, ComputeAugmentation(max_tables=4), comm, (64,), str(out))
    run = replace(run, num_compute_samples=0, num_comm_samples=SAMPLES, num_second_pass=0, max_noise=None)
    summary = run.run()
    assert (summary is None) == (rank > 0)


def test_every_collective_is_measured_between_hosts_of_torchrun(tmp_path):
    as_if_under_torchrun(DEVICES, _collect, tmp_path / "data", local_world_size=ON_HOST)
    measured = fastest(DataDirectory(tmp_path / "data").comm().each())
    assert len(measured) == SAMPLES
    assert {m.error for m in measured} == {None}
    assert {m.sample.collective for m in measured} == set(Collective) > set(BETWEEN_HOSTS)
    assert {(m.sample.num_devices, m.sample.devices_per_host) for m in measured} == {(DEVICES, ON_HOST)}
    assert {m.repeats.times_ms.shape for m in measured} == {(2, 2, DEVICES)}  # repeats, directions, devices
    assert all((m.repeats.times_ms > 0).all() for m in measured)
