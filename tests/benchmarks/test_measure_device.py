"""The script that measures a device, on this one."""

import importlib.util
import json
from argparse import Namespace
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from neuroshard.hardware import DeviceSpec, Hardware, Outcome
from neuroshard.hardware.workers import forked_warm
from neuroshard.plumbing.timing import TimingProtocol
from neuroshard.records import DataDirectory
from neuroshard.records.samples import Repeats
from neuroshard.testing import toy_tables
from tests.kit.processes import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]


def _script():
    spec = importlib.util.spec_from_file_location("measure_device", ROOT / "benchmarks" / "measure_device.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.dlrm_like = lambda batch_size, seed: toy_tables(70, seed)
    return script


def _measure(out):
    script = _script()
    script.COPY_BYTES = 1 << 26
    given = ["--hardware=cpu", "--seconds=inf", "--batch-sizes=64", "--max-samples=64", "--swept-tables=2"]
    script.main([str(out), *given, "--large-combinations=2"])


@pytest.mark.slow
@pytest.mark.xdist_group("measures")
def test_a_few_samples_on_the_cpu(tmp_path):
    process = forked_warm().Process(target=_measure, args=(tmp_path / "out",))  # it pins itself to a core
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["samples"] == 64
    assert summary["failed"] == 0
    assert summary["copy_gb_per_s"] > 0
    assert max(summary["errors_beside_plain_torch"].values()) < 2e-2
    assert summary["share_of_copy_bandwidth"]["median"] > 0
    directory = DataDirectory(tmp_path / "out" / "data")
    measured = directory.compute().read()
    assert sum(not m.second_pass for m in measured) == 64
    assert len(list((directory.path / "compute").glob("*.parquet"))) == 1
    assert summary["swept"] == 2 * 6
    assert summary["large_combinations"] == 2
    assert set(summary["halving_costs"]) == {"128 to 64", "64 to 32", "32 to 16", "16 to 8", "8 to 4"}


@dataclass(frozen=True)
class FakeHardware(Hardware):
    """Measures nothing; every batch takes 10 s of its clock, which stands still otherwise."""

    spent_s: list[float] = field(default_factory=list)

    def compute_meter(self, warn):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def measure(self, samples, seeds):
        self.spent_s.append(10.0)
        return [Outcome(Repeats(np.ones(2), np.zeros(2)), None, 0.0) for _ in samples]

    def clock(self):
        return sum(self.spent_s)


@pytest.mark.parametrize(
    ("seconds", "swept", "large", "samples"),
    [(0, 4, 4, 4), (200, 20, 12, 48), (float("inf"), 30, 40, 60)],
    ids=["no time", "200 s", "no limit"],
)
def test_time_and_counts_limit(tmp_path, seconds, swept, large, samples):
    hardware = FakeHardware(DeviceSpec("cpu"), compute_timing=TimingProtocol(live=4))
    campaign = _script().Campaign(hardware, tmp_path / "data", [64], hardware.clock)
    given = Namespace(max_samples=60, swept_tables=5, large_combinations=40)
    summary = campaign.run(seconds, given, 1.0)
    assert (summary["swept"], summary["large_combinations"], summary["samples"]) == (swept, large, samples)
    assert summary["second_pass"] == int(0.05 * samples)
