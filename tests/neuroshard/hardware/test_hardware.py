"""Real kernels and real gloo processes, in small."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from neuroshard.errors import UserError
from neuroshard.hardware import DeviceSpec, EmbeddingSettings, Hardware
from neuroshard.samples import CommSample, ComputeSample
from neuroshard.testing import toy_tables
from neuroshard.timing import TimingProtocol, typical_ms

TIMING = TimingProtocol(warmup=1, rounds=3, repeats_per_round=2, live=8, flush_bytes=1 << 20)
CPU = Hardware(DeviceSpec("cpu"), EmbeddingSettings(), TIMING, TIMING, timeout_s=60)


def test_compute_samples_are_measured():
    tables = toy_tables(6)
    samples = [ComputeSample(tables[:1], 64), ComputeSample(tables, 2048)]
    with CPU.compute_meter(print) as meter:
        small, large = meter.measure(samples, [1, 2])
    assert small.error is None
    assert small.repeats.times_ms.shape == (6,)
    assert (np.diff(np.sort(small.repeats.at_s)) >= 0).all()
    assert typical_ms(large.repeats.times_ms) > typical_ms(small.repeats.times_ms) > 0
    assert large.busy_s >= large.repeats.times_ms.sum() / 1e3


def test_a_sample_without_room_fails_alone():
    table = toy_tables(1)[0]
    huge = type(table)("huge", 1 << 38, 4, 1.0, table.reuse)
    with CPU.compute_meter(print) as meter:
        first, second = meter.measure([ComputeSample((huge,), 64), ComputeSample((table,), 64)], [1, 2])
    assert "out of memory" in first.error
    assert second.error is None


def test_exchanges_between_processes_are_measured():
    samples = [CommSample((64, 64, 0), (0.0, 0.0, 0.0), 96), CommSample((8, 128, 16), (0.0, 60.0, 20.0), 96)]
    with CPU.comm_meter(3, print) as meter:
        even, delayed = meter.measure(samples, [0, 1])
    assert even.repeats.times_ms.shape == (6, 2, 3)
    forward, backward = typical_ms(delayed.repeats.times_ms)
    assert forward[0] >= 59  # device 0 waits for device 1
    assert forward[1] < 40
    assert 39 <= forward[2] < forward[0]
    assert backward.max() < 40  # nobody waits


def test_no_cuda_is_one_clear_line():
    hardware = Hardware(DeviceSpec("cuda"), EmbeddingSettings(), TIMING, TIMING)
    with hardware.compute_meter(print) as meter, pytest.raises(UserError, match="finds no CUDA device"):
        meter.measure([ComputeSample(toy_tables(1), 64)], [0])


def test_exchanges_under_torchrun(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from test_hardware import CPU, CommSample\n"
        "from neuroshard.hardware.hardware import is_follower\n"
        "from neuroshard.hardware.torchrun import follow\n"
        "if is_follower():\n"
        "    follow(CPU)\n"
        "else:\n"
        "    with CPU.comm_meter(2, print) as meter:\n"
        "        (outcome,) = meter.measure([CommSample((8, 16), (0.0, 5.0), 64)], [0])\n"
        "    print('shape', outcome.repeats.times_ms.shape)\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", program]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    here = Path(__file__).parent
    done = subprocess.run([*command, here], capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert "shape (6, 2, 2)" in done.stdout, done.stderr
