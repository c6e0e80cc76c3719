import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from neuroshard.errors import UserError
from neuroshard.hardware.fingerprint import Fingerprint
from neuroshard.records import DataDirectory, Manifest
from neuroshard.records.samples import CommSample, ComputeSample, Measurement, Repeats
from neuroshard.testing import toy_tables

HARDWARE = {"kind": "cpu", "device": "x", "count": 2, "memory_bytes": 1}


def _manifest(**config):
    return Manifest(HARDWARE, {"python": "3"}, {"rounds": 2} | config, seed=5)


@pytest.fixture
def directory(tmp_path):
    directory = DataDirectory(tmp_path / "data")
    directory.begin(_manifest(), toy_tables(4))
    return directory


def _compute():
    first, second, *_ = toy_tables(4)
    repeats = Repeats(np.array([1.0, 2.0, 1.5]), np.array([10.0, 11.0, 12.0]))
    return [
        Measurement(ComputeSample((first.with_dim(8), second), 256), 0, "train", 5, repeats),
        Measurement(ComputeSample((first,), 256), 1, "test", 5, None, "MemoryError: too much", second_pass=True),
    ]


def _comm():
    repeats = Repeats(np.arange(12.0).reshape(3, 2, 2), np.array([1.0, 2.0, 3.0]))
    return [Measurement(CommSample((16, 4), (0.0, 2.5), 256), 7, "valid", 5, repeats)]


def _same(left, right):
    assert (left.sample, left.sample_id, left.split, left.seed) == (
        right.sample,
        right.sample_id,
        right.split,
        right.seed,
    )
    assert (left.error, left.second_pass) == (right.error, right.second_pass)
    assert (left.repeats is None) == (right.repeats is None)
    if left.repeats is not None:
        assert (left.repeats.times_ms == right.repeats.times_ms).all()
        assert left.repeats.times_ms.shape == right.repeats.times_ms.shape
        assert (left.repeats.at_s == right.repeats.at_s).all()


@pytest.mark.parametrize(("kind", "measurements"), [("compute", _compute()), ("comm", _comm())])
def test_records_come_back_exactly(directory, kind, measurements):
    parts = getattr(directory, kind)()
    parts.write(0, measurements)
    for saved, loaded in zip(measurements, parts.read(), strict=True):
        _same(saved, loaded)


def test_tables_and_manifest_come_back_exactly(directory):
    assert tuple(directory.tables().values()) == toy_tables(4)
    assert directory.manifest() == _manifest()


def test_the_same_run_goes_on_another_does_not(directory):
    directory.begin(_manifest(), toy_tables(4))
    with pytest.raises(UserError, match="begun with rounds=2, not 3"):
        directory.begin(_manifest(rounds=3), toy_tables(4))
    with pytest.raises(UserError, match="other tables"):
        directory.begin(_manifest(), toy_tables(4, seed=1))


def test_data_of_another_hardware_is_refused(directory):
    directory.manifest().check_hardware(Fingerprint("cpu", "x", 64, 5), directory.path)
    with pytest.raises(UserError, match=r"measured on cpu \(x\), this is cuda \(y\)"):
        directory.manifest().check_hardware(Fingerprint("cuda", "y", 1, 5), directory.path)


def test_corrupt_parts_are_named(directory):
    parts = directory.compute()
    parts.write(0, _compute())
    path = parts.path(0)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"part-00000.parquet is corrupt.*; delete it") as caught:
        parts.read()
    assert "\n" not in str(caught.value)
    pq.write_table(pq.read_table(directory.path / "tables.parquet"), path)
    with pytest.raises(UserError, match="doesn't hold measurements"):
        parts.read()


def test_half_written_parts_are_not_there(directory, monkeypatch):
    parts = directory.compute()
    monkeypatch.setattr(Path, "write_bytes", lambda path, content: path.write_text("half") and 1 / 0)
    with pytest.raises(ZeroDivisionError):
        parts.write(0, _compute())
    assert not parts.has(0)
    assert list(parts.directory.iterdir()) == []


@pytest.mark.parametrize("content", ["", "{}", json.dumps({"format": "neuroshard-data-1", "seed": 1})])
def test_malformed_manifests_are_refused(directory, content):
    (directory.path / "manifest.json").write_text(content)
    with pytest.raises(UserError, match="manifest"):
        directory.manifest()
