import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from neuroshard import Tier, TierAssignment
from neuroshard.measure.store import DataDirectory, Manifest
from neuroshard.measure.store._parquet_schema import LOCAL_CODEC, read_tables, tables_rows
from neuroshard.measure.store.noise import fastest
from neuroshard.measure.store.samples import (
    BlockLookups,
    CommSample,
    ComputeSample,
    LocalSample,
    Measurement,
    Repeats,
    RowBlock,
)
from neuroshard.tables.statistics.measured import write_tables
from neuroshard.testing import ONCE, toy_tables, toy_task
from neuroshard.words.collective import Collective, Precision
from neuroshard.words.fingerprint import Fingerprint
from neuroshard.words.form import Form
from tests.kit.messages import refused
from tests.kit.plans import DATA_PARALLEL, laid_out

BLOCKS = (RowBlock(0, 2), RowBlock(1, 1))
SEEN = (BlockLookups(17, (0.25, 0.75, *(0.0,) * 15)), BlockLookups(0, ONCE))
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
        Measurement(ComputeSample((first, second), 256, Form.ROW_WISE, BLOCKS, 0.25, SEEN), 2, "valid", 5, repeats),
        Measurement(ComputeSample((first, second), 256, Form.ROW_WISE, BLOCKS), 3, "valid", 5, None, "too much"),
        Measurement(ComputeSample((first,), 64, Form.DATA_PARALLEL), 4, "train", 5, repeats),
        Measurement(ComputeSample((first, replace(second, features=7)), 64), 5, "train", 5, repeats),
        Measurement(ComputeSample((replace(first, pooled=False, features=2),), 64), 6, "train", 5, repeats),
        Measurement(
            ComputeSample((first, second), 64, tier_assignment=TierAssignment(Tier.UVM_CACHING, 0.05)),
            7,
            "train",
            5,
            repeats,
        ),
        Measurement(ComputeSample((first,), 64, tier_assignment=TierAssignment(Tier.UVM)), 8, "train", 5, repeats),
    ]


def test_local_measurements_without_a_precision_column_are_in_fp32():
    table = LOCAL_CODEC.table(_local()).drop_columns("precision")
    assert {m.sample.precision for m in LOCAL_CODEC.measurements(table)} == {Precision.FP32}


def _comm():
    repeats = Repeats(np.arange(12.0).reshape(3, 2, 2), np.array([1.0, 2.0, 3.0]))
    samples = [
        CommSample.of_columns((16, 4), (0.0, 2.5), 256),
        CommSample((1 << 40, 1 << 40), (0.0, 2.5), 256, Collective.ALL_REDUCE),
        CommSample((512, 8), (0.0, 2.5), 256, Collective.HOST_REDUCE_SCATTER, 1),
    ]
    return [Measurement(sample, 7 + i, "valid", 5, repeats) for i, sample in enumerate(samples)]


def _local():
    task = toy_task(3, num_devices=2)
    plan = laid_out(task, 1, [0, 1], DATA_PARALLEL)
    repeats = Repeats(np.arange(16.0).reshape(2, 8), np.array([1.0, 2.0]))
    return [
        Measurement(LocalSample(plan, 1), 3, "test", 5, repeats),
        Measurement(LocalSample(plan, 0), 4, "train", 5, None, "RuntimeError: too much", second_pass=True),
        Measurement(LocalSample(plan, 0, Precision.BF16), 5, "train", 5, repeats),
        Measurement(LocalSample(plan, 1), 6, "train", 5, Repeats(np.arange(18.0).reshape(2, 9), repeats.at_s)),
    ]


def _same(left, right):
    for name in ("sample", "sample_id", "split", "seed", "error", "second_pass"):
        assert getattr(left, name) == getattr(right, name)
    assert (left.repeats is None) == (right.repeats is None)
    if left.repeats is not None:
        assert (left.repeats.times_ms == right.repeats.times_ms).all()
        assert left.repeats.times_ms.shape == right.repeats.times_ms.shape
        assert (left.repeats.at_s == right.repeats.at_s).all()


@pytest.mark.parametrize(("kind", "measurements"), [("compute", _compute()), ("comm", _comm()), ("local", _local())])
def test_stored_measurements_are_read_back_unchanged(directory, kind, measurements):
    parts = getattr(directory, kind)()
    parts.write(0, measurements)
    for saved, loaded in zip(measurements, fastest(parts.each()), strict=True):
        _same(saved, loaded)


CONTRADICTORY = [
    ("compute", 7, {"tier": "attic"}, "unknown-name", " 7", ["'attic'"]),
    ("compute", 7, {"cache_load_factor": None}, "tier-cache-load-factor", " 7",
     ["'uvm_caching'", "cache_load_factor=None"]),
    ("compute", 7, {"cache_load_factor": 1.5}, "value-outside-limits", " 7", ["cache_load_factor", 1.5]),
    ("compute", 7, {"tier": None}, "tier-cache-load-factor", " 7", ["'device'", "cache_load_factor=0.05"]),
    ("compute", 7, {"tier": "uvm"}, "tier-cache-load-factor", " 7", ["'uvm'", "cache_load_factor=0.05"]),
    ("compute", 7, {"sharding_type": "data_parallel"}, "kernel-missing", " 7", ["data_parallel", "uvm_caching"]),
    ("compute", 0, {"features": [3]}, "sample-field-count", " 0", ["2 tables", "1 features"]),
    ("compute", 2, {"sharding_type": "diagonals"}, "unknown-name", " 2", ["'diagonals'"]),
    ("compute", 2, {"sharding_type": "data_parallel"}, "sample-block-count", " 2",
     ["2 row blocks", "2 data_parallel tables"]),
    ("compute", 2, {"first_rows": [0]}, "sample-block-fields", " 2", ["1 first_rows", "2 rows"]),
    ("compute", 2, {"rows": [2, 1 << 30]}, "sample-rows-outside", " 2", ["'toy1'", f"rows 1 to {1 << 30}"]),
    ("compute", 2, {"first_rows": [-1, 0]}, "value-outside-limits", " 2", ["first_rows[0]", -1]),
    ("compute", 2, {"hot_first": 1.5}, "value-outside-limits", " 2", ["hot_first", 1.5]),
    ("compute", 2, {"reuse": [[1.0]] * 2}, "value-outside-limits", " 2", ["reuse[0]", 17]),
    ("compute", 2, {"lookups": [-1, 0]}, "value-outside-limits", " 2", ["lookups[0]", -1]),
    ("local", 3, {"rank": 2}, "sample-rank-outside", " 3", [2, "2 devices"]),
    ("local", 3, {"precision": "fp17"}, "unknown-name", " 3", ["'fp17'"]),
    ("local", 3, {"plan": "{}"}, "file-format-other", " 3: plan", ["'format'"]),
    ("local", 3, {"plan": "no JSON"}, "json-unreadable", " 3: plan", []),
    ("comm", 7, {"collective": "gossip"}, "unknown-name", " 7", ["'gossip'"]),
    ("comm", 7, {"collective": "all_reduce", "size_bytes": [8, 16]}, "exchange-sizes-unequal", " 7: exchange",
     ["all_reduce", (8, 16)]),
    ("comm", 7, {"collective": "host_all_to_all"}, "exchange-hosts-missing", " 7: exchange",
     ["host_all_to_all", "devices_per_host"]),
    ("comm", 7, {"collective": "input", "devices_per_host": 3}, "exchange-hosts-uneven", " 7: exchange",
     ["devices_per_host", 3, "2 devices"]),
    ("comm", 7, {"collective": "input", "size_bytes": [8, -8]}, "value-outside-limits", " 7", ["size_bytes[1]", -8]),
    ("comm", 7, {"collective": "input", "size_bytes": [8]}, "exchange-start-count", " 7: exchange",
     ["1 size", "2 delays"]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "number", "change", "code", "place", "names"), CONTRADICTORY)
def test_reading_contradictory_records_is_refused(directory, kind, number, change, code, place, names):
    parts = getattr(directory, kind)()
    measurements = {"compute": _compute, "comm": _comm, "local": _local}[kind]()
    parts.write(0, [measurement for measurement in measurements if measurement.sample_id == number])
    table = pq.read_table(parts.path(0))
    (row,) = table.to_pylist()
    pq.write_table(pa.Table.from_pylist([row | change], schema=table.schema), parts.path(0))
    with refused(code, where=f"{parts.path(0)}: sample{place}", names=names):
        fastest(parts.each())


def test_reading_a_chunk_without_a_column_is_refused_with_advice_to_collect_again(directory):
    parts = directory.comm()
    parts.write(0, _comm()[:1])
    pq.write_table(pq.read_table(parts.path(0)).drop_columns(["collective"]), parts.path(0))
    with refused("field-missing", where=f"{parts.path(0)}: sample 7", names=["'collective'"]) as caught:
        fastest(parts.each())
    assert "neuroshard collect" in caught.value.message.remedy


def test_stored_tables_and_manifest_are_read_back_unchanged(tmp_path):
    """A run that resumes compares the stored tables and manifest with its own."""
    plain, known, *others = toy_tables(4)
    shared = [replace(table, features=2 + i, pooled=i > 0) for i, table in enumerate(others)]
    tables, directory = (plain, replace(known, row_lookups=(0.75, 0.25)), *shared), DataDirectory(tmp_path)
    directory.begin(_manifest(), tables)
    assert tuple(directory.tables().values()) == tables
    assert directory.manifest() == _manifest()


def test_data_directory_continues_the_same_run_and_refuses_another(directory):
    directory.begin(_manifest(), toy_tables(4))
    with refused("out-begun-otherwise", names=[directory.path, "rounds=2", 3]):
        directory.begin(_manifest(rounds=3), toy_tables(4))
    with refused("out-begun-otherwise", names=[directory.path, "tables"]):
        directory.begin(_manifest(), toy_tables(4, seed=1))


def test_beginning_data_over_other_tables_is_refused_and_keeps_them(tmp_path):
    there = tmp_path / "tables.parquet"
    write_tables(there, toy_tables(3))
    before = there.read_bytes()
    with refused("out-file-differs", names=[there]):
        DataDirectory(tmp_path).begin(_manifest(), toy_tables(4))
    DataDirectory(tmp_path).begin(_manifest(), toy_tables(3))
    assert there.read_bytes() == before


def test_copies_of_chunk_files_are_not_read_as_chunks(directory):
    parts = directory.compute()
    parts.write(0, _compute())
    for name in ("part-copy.parquet", "part-00000 (1).parquet"):
        (parts.folder / name).write_bytes(parts.path(0).read_bytes())
    assert parts.end == 1
    assert len(parts.each()) == 1


def test_measuring_into_data_of_other_hardware_is_refused(directory):
    directory.manifest().check_hardware(Fingerprint("cpu", "x", 64, 5), directory.path)
    with refused("data-other-hardware", names=[directory.path, "cpu (x)", "cuda (y)"]):
        directory.manifest().check_hardware(Fingerprint("cuda", "y", 1, 5), directory.path)


def test_reading_a_damaged_part_names_the_file(directory):
    parts = directory.compute()
    parts.write(0, _compute())
    path = parts.path(0)
    path.write_bytes(path.read_bytes()[:-20])
    with refused("parquet-damaged", names=[path, "neuroshard collect"]):
        fastest(parts.each())
    pq.write_table(pq.read_table(directory.path / "tables.parquet"), path)
    with refused("unknown-name", where=f"{path}: sample without sample_id", names=["'name'"]):
        fastest(parts.each())


def test_interrupted_write_of_a_part_leaves_no_file(directory, monkeypatch):
    parts = directory.compute()
    monkeypatch.setattr(Path, "write_bytes", lambda path, content: path.write_text("half") and 1 / 0)
    with pytest.raises(ZeroDivisionError):
        parts.write(0, _compute())
    assert not parts.has(0)
    assert list(parts.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "code", "names"),
    [
        ("", "json-unreadable", []),
        ("{}", "file-format-other", ["'format'", "'neuroshard-data-2'"]),
        (json.dumps({"format": "neuroshard-data-2", "seed": 1}), "field-missing", ["'hardware'"]),
    ],
)
def test_reading_a_malformed_manifest_is_refused(directory, content, code, names):
    path = directory.path / "manifest.json"
    path.write_text(content)
    with refused(code, where=f"data manifest {path}", names=names):
        directory.manifest()


def test_reading_a_sample_measured_several_times_returns_the_fastest_measurement(directory):
    parts, (first, second, *_) = directory.compute(), toy_tables(4)

    def measured(table, ms):
        repeats = None if ms is None else Repeats(np.full(2, ms), np.zeros(2))
        return Measurement(ComputeSample((table,), 256), 0, "train", 5, repeats, None if repeats else "MemoryError")

    for number, ms in enumerate((3.0, 2.0, 4.0)):
        parts.write(number, [measured(first, ms)])
    parts.write(3, [measured(first, None), measured(second, 9.0), replace(measured(first, None), second_pass=True)])
    found = [(m.sample.tables[0], m.second_pass, m.error) for m in fastest(parts.each())]
    assert found == [(first, False, None), (second, False, None), (first, True, "MemoryError")]
    assert fastest(parts.each())[0].repeats.times_ms.tolist() == [2.0, 2.0]
    assert parts.end == 4


def test_tables_stored_without_row_lookups_are_read():
    rows = [{key: row[key] for key in row if key != "row_lookups"} for row in tables_rows(toy_tables(2)).to_pylist()]
    assert tuple(read_tables(rows).values()) == toy_tables(2)
