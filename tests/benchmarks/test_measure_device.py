"""The script that checks a device and times published calls, on this one."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from neuroshard.hardware.device import make_device
from neuroshard.hardware.specs import DeviceSpec
from neuroshard.hardware.workers import forked_warm
from neuroshard.models.published_points import kernel_points
from neuroshard.words.placement import Tier
from tests.kit.processes import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
CHECKED = [
    f"{call}, {optimizer}, {bits} bits"
    for call in ("columns", "sequence_columns", "copies")
    for optimizer in ("sgd", "rowwise_adagrad")
    for bits in (32, 16)
]


def _script():
    spec = importlib.util.spec_from_file_location("measure_device", ROOT / "benchmarks" / "measure_device.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def _measure(out):
    _script().main([str(out), "--hardware=cpu"])


def _rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.xdist_group("measures")
def test_a_dry_run(tmp_path):
    process = forked_warm().Process(target=_measure, args=(tmp_path / "out",))  # it pins itself to a core
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert list(summary["errors_beside_plain_torch"]) == CHECKED
    assert summary["copy_gb_per_s"] > 0
    rows, points = _rows(tmp_path / "out" / "points.jsonl"), _script().points()
    assert [row["dim"] for row in rows] == [point.dim for point in points]
    assert not any("error" in row for row in rows)


def test_kernels_that_train_otherwise_are_wrong():
    script = _script()
    device = make_device(DeviceSpec("cpu"))
    assert all(isinstance(error, float) for error in script._checked(device).values())
    script.LEARNING_RATE *= 1.5
    assert all(str(error).startswith("wrong by") for error in script._checked(device).values())


def test_a_call_that_fails_leaves_its_error_and_the_others_are_timed(tmp_path):
    script, path = _script(), tmp_path / "points.jsonl"
    small = script.Point(2, 1_000, 64, 32, 10)
    all_points = [replace(small, dim=6), replace(small, batch_size=8), small]
    script.time_points(all_points, make_device(DeviceSpec("cpu")), path, 1)
    failed, other, published = _rows(path)
    assert "UserError" in failed["error"]
    assert "forward" not in failed
    assert "ratio" not in other["forward"]
    assert published["unique"] <= 2 * 32 * 10
    forward, ways = published["forward"], ("flushed_ms", "warm_ms", "host_ms", "wall_ms")
    assert all(0 < low <= median <= high for low, median, high in map(forward.get, ways))
    assert forward["published_ms"] == 0.022
    assert published["backward"]["sheet"] == "b200"
    assert "ratio" not in published["both"]


def test_all_published_calls_in_device_memory_are_timed():
    points, phases = _script().points(), ("forward", "backward", "both")
    found = {known for point in points for phase in phases if (known := point.published(phase))}
    assert found == {known for known in kernel_points() if known.home.tier is Tier.DEVICE}


def test_rows_follow_zipfs_law():
    script, generator = _script(), torch.Generator().manual_seed(0)
    point = script.Point(2, 1_000, 8, 5_000, 2, zipf=1.05)
    drawn = script.draw(point, generator)
    assert drawn.shape == (2, 10_000)
    counts = torch.bincount(drawn[0], minlength=1_000).sort(descending=True).values
    chance = torch.arange(1, 1_001).double() ** -1.05
    expected = chance / chance.sum() * 10_000
    assert counts[:5].tolist() == pytest.approx(expected[:5].tolist(), rel=0.1)
    even = script.draw(replace(point, zipf=0.0), generator)
    assert torch.bincount(even[0], minlength=1_000).max() < 40
