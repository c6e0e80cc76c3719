"""The script that measures a device, on this one."""

import json
import subprocess
import sys
from pathlib import Path

from neuroshard.records import DataDirectory

ROOT = Path(__file__).resolve().parents[2]


def test_a_few_seconds_on_the_cpu(tmp_path):
    command = [sys.executable, ROOT / "benchmarks" / "measure_device.py", tmp_path / "out", "--hardware=cpu"]
    limits = ["--seconds=8", "--batch-sizes=64", "--max-samples=64", "--swept-tables=2", "--large-combinations=2"]
    done = subprocess.run([*command, *limits], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["samples"] == 64
    assert summary["failed"] == 0
    assert summary["copy_gb_per_s"] > 0.1
    assert max(summary["errors_beside_plain_torch"].values()) < 2e-2
    assert 0 < summary["share_of_copy_bandwidth"]["median"] < 1
    directory = DataDirectory(tmp_path / "out" / "data")
    measured = directory.compute().read()
    assert sum(not m.second_pass for m in measured) == 64
    assert len(list((directory.path / "compute").glob("*.parquet"))) == 1
    assert summary["swept"] == 2 * 6
    assert set(summary["halving_costs"]) == {"128 to 64", "64 to 32", "32 to 16", "16 to 8", "8 to 4"}
