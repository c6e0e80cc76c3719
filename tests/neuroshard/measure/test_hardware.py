"""Small measurements of real kernels and real gloo processes."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist

from neuroshard.measure import DeviceSpec, EmbeddingSettings, Hardware
from neuroshard.measure._exchange_bench import Clock, ExchangeBench
from neuroshard.measure.device import make_device
from neuroshard.measure.steps.step_samples import StepProtocol
from neuroshard.measure.store.samples import CommSample, ComputeSample, RowBlock
from neuroshard.plumbing.timing import TimingProtocol, typical_ms
from neuroshard.testing import toy_tables
from neuroshard.words.form import Form
from neuroshard.words.topology import Topology
from tests.kit.messages import refused
from tests.kit.processes import PATIENCE_S

pytestmark = pytest.mark.xdist_group("measures")
TIMING = TimingProtocol(warmup=1, rounds=3, repeats_per_round=2, live=8, flush_bytes=1 << 20)
CPU = Hardware(DeviceSpec("cpu"), EmbeddingSettings(), TIMING, TIMING, timeout_s=PATIENCE_S)


@pytest.mark.parametrize("timing", ["compute_timing", "comm_timing"])
def test_flush_bytes_above_the_memory_of_this_machine_are_refused_before_any_process_starts(timing):
    CPU.check()
    names = [f"hardware.{timing}.flush_bytes", 10**18]
    with refused("hardware-flush-bytes-too-large", names=names):
        replace(CPU, **{timing: replace(TIMING, flush_bytes=10**18)}).check()


def test_compute_meter_measures_small_and_large_samples():
    tables = toy_tables(6)
    samples = [ComputeSample(tables[:1], 64), ComputeSample(tables, 2048)]
    with CPU.compute_meter(print) as meter:
        small, large = meter.measure(samples, [1, 2])
    assert small.error is None
    assert small.repeats.times_ms.shape == (6,)
    assert (np.diff(np.sort(small.repeats.at_s)) >= 0).all()
    assert typical_ms(large.repeats.times_ms) > typical_ms(small.repeats.times_ms) > 0
    assert large.busy_s >= large.repeats.times_ms.sum() / 1e3


def test_row_wise_and_data_parallel_tables_are_measured(capfd):
    tables = toy_tables(3)
    blocks = tuple(RowBlock(table.rows // 2, table.rows - table.rows // 2) for table in tables)
    rows = ComputeSample(tables, 256, Form.ROW_WISE, blocks, 0.5)
    with CPU.compute_meter(print) as meter:
        block, again, copies = meter.measure([rows, rows, ComputeSample(tables, 64, Form.DATA_PARALLEL)], [1, 1, 2])
    assert (block.error, copies.error) == (None, None)
    assert block.repeats.times_ms.shape == copies.repeats.times_ms.shape == (6,)
    for seen, table in zip(block.seen, tables, strict=True):
        assert 0 < seen.count < round(256 * table.pooling_factor)
    assert block.seen == again.seen
    assert copies.seen == ()
    assert "Warning" not in capfd.readouterr().err


def test_sample_without_room_fails_and_others_are_measured():
    table = toy_tables(1)[0]
    huge = type(table)("huge", 1 << 38, 4, 1.0, table.reuse)
    with CPU.compute_meter(print) as meter:
        first, second = meter.measure([ComputeSample((huge,), 64), ComputeSample((table,), 64)], [1, 2])
    assert first.error.startswith("MemoryError: ")
    assert second.error is None


def test_comm_meter_measures_delays_between_processes():
    samples = [
        CommSample.of_columns((64, 64, 0), (0.0, 0.0, 0.0), 96),
        CommSample.of_columns((8, 128, 16), (0.0, 600.0, 200.0), 96),
    ]
    with CPU.comm_meter(3, print) as meter:
        even, delayed = meter.measure(samples, [0, 1])
    assert even.repeats.times_ms.shape == (6, 2, 3)
    forward, backward = typical_ms(delayed.repeats.times_ms)
    # The others wait for device 1; a busy machine blurs by how much, not in which order.
    assert forward[0] - 100 > forward[2] > forward[1] + 100
    assert forward[0] - 100 > backward.max()  # nobody waits


class _Virtual:
    """An exchange on a clock of its own: forward takes 7 ms, backward 3."""

    def __init__(self):
        self.now_s = 50.0
        self.clock = Clock(lambda: self.now_s, self._pass)
        self.began = []

    def _pass(self, seconds):
        self.now_s += seconds

    def _communicate(self, seconds):
        self.began.append(self.now_s)
        self._pass(seconds)

    def forward(self):
        self._communicate(0.007)

    def backward(self):
        self._communicate(0.003)


def test_exchange_time_is_counted_from_the_start_of_the_exchange(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    device = make_device(DeviceSpec("cpu"))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        virtual = _Virtual()
        timed = ExchangeBench(device, TIMING, PATIENCE_S, virtual.clock).run(virtual, 20.0)
    finally:
        dist.destroy_process_group()
    assert timed.times_ms == pytest.approx([7.0, 3.0])
    assert timed.busy_s == pytest.approx(0.030)
    forward, backward = virtual.began
    assert 0.020 < forward - 50.0 < backward - 50.0


def test_measuring_on_cuda_without_cuda_is_refused_in_one_line():
    hardware = Hardware(DeviceSpec("cuda"), EmbeddingSettings(), TIMING, TIMING)
    with hardware.compute_meter(print) as meter, refused("hardware-no-gpu", names=["hardware=cuda", "hardware=cpu"]):
        meter.measure([ComputeSample(toy_tables(1), 64)], [0])


def test_hosts_follow_the_environment_of_torchrun(monkeypatch):
    assert CPU.devices_per_host(8) is None
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.delenv("TORCHREC_RESOLVED_POD_SIZE", raising=False)
    assert [CPU.devices_per_host(count) for count in (4, 8)] == [None, 4]
    monkeypatch.setenv("TORCHREC_RESOLVED_POD_SIZE", "2")
    assert [CPU.devices_per_host(count) for count in (4, 8, 16)] == [None, None, 8]
    CPU.check_hosts(Topology(16, 1 << 30, devices_per_host=4, devices_per_domain=8))
    names = ["4 of its 16 devices", "8 devices", "topology.devices_per_host"]
    with refused("hardware-hosts-differ", names=names):
        CPU.check_hosts(Topology(16, 1 << 30, devices_per_host=4))
    monkeypatch.setenv("TORCHREC_RESOLVED_POD_SIZE", "two")
    with refused("pod-size-not-number", names=["TORCHREC_RESOLVED_POD_SIZE", "'two'"]):
        CPU.devices_per_host(8)


def test_step_meter_takes_hosts_in_a_domain_of_fast_links_for_one_host(monkeypatch):
    given = []
    monkeypatch.setattr(Hardware, "_group_meter", lambda its, *values: given.append(values[2]))
    for domain in (None, 4):
        CPU.step_meter(Topology(8, 1 << 30, devices_per_host=2, devices_per_domain=domain), StepProtocol(), print)
    assert given == [2, 4]


@pytest.mark.slow
def test_exchanges_under_torchrun_wait_until_rank_0_begins(tmp_path):
    """The others wait until rank 0 begins, longer than they would wait for each other."""
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, time\n"
        "from dataclasses import replace\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from test_hardware import CPU, CommSample\n"
        "from neuroshard.measure.hardware import is_follower\n"
        "hardware = replace(CPU, timeout_s=5.0)\n"
        "if is_follower():\n"
        "    hardware.follow()\n"
        "else:\n"
        "    time.sleep(7)\n"
        "    with hardware.comm_meter(2, print) as meter:\n"
        "        (outcome,) = meter.measure([CommSample.of_columns((8, 16), (0.0, 5.0), 64)], [0])\n"
        "    print('shape', outcome.repeats.times_ms.shape)\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", program]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.pathsep.join(sys.path)}
    here = Path(__file__).parent
    done = subprocess.run(
        [*command, here], capture_output=True, text=True, env=environment, timeout=PATIENCE_S, check=False
    )
    assert "shape (6, 2, 2)" in done.stdout, done.stderr
