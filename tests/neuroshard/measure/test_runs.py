"""Recorded times of batches of samples do not depend on the wall clock."""

import re
import time
from pathlib import Path

import numpy as np
import pytest

import neuroshard
from neuroshard.measure._workers.runs import Timed, run_batch
from neuroshard.plumbing.timing import TimingProtocol

PROTOCOL = TimingProtocol(warmup=1, rounds=3, repeats_per_round=2, live=4, flush_bytes=0)


def _measured():
    builds = [lambda ms=ms: lambda: Timed(np.array(ms), ms / 1e3) for ms in (1.0, 2.0, 3.0)]
    return run_batch(builds, PROTOCOL, np.random.default_rng(0), lambda index: None)


@pytest.mark.parametrize("leap_s", [-3600.0, 1e9])
def test_leaps_of_the_wall_clock_change_only_time_stamps_of_measurements(monkeypatch, leap_s):
    before, now = _measured(), iter(np.arange(100) * leap_s + 1.7e9)
    monkeypatch.setattr(time, "time", lambda: float(next(now)))
    after = _measured()
    for one, other in zip(before, after, strict=True):
        assert one.repeats.times_ms.tolist() == other.repeats.times_ms.tolist()
        assert (one.error, one.busy_s) == (other.error, other.busy_s)
    assert (np.diff(after[0].repeats.at_s) * leap_s > 0).all()


def test_the_wall_clock_is_read_for_time_stamps_only():
    root = Path(neuroshard.__file__).parent
    reading = re.compile(r"\btime\.time\(|\bdatetime\.(now|today|utcnow)|\bst_[mac]time")
    found = {str(path.relative_to(root)) for path in root.rglob("*.py") if reading.search(path.read_text())}
    assert found == {"measure/_workers/runs.py"}
