import gzip
import json

import numpy as np
import pandas as pd
import pytest
import torch

import neuroshard as ns
from neuroshard.errors import UserError
from neuroshard.tables.dlrm import dlrm
from neuroshard.tables.dlrm_like import dlrm_like


def test_criteo_has_the_published_tables():
    tables = ns.load_tables("criteo")
    assert len(tables) == 26
    assert sum(table.rows for table in tables) == 204_184_588
    assert tables[20].pooling_factor == 100
    assert {table.dim for table in tables} == {128}


def test_dlrm_like_matches_the_published_statistics():
    tables = dlrm_like()
    pooling = np.array([table.pooling_factor for table in tables])
    assert pooling.sum() * 65536 == pytest.approx(887_017_990, rel=0.02)
    assert pooling.max() <= 208
    rows = np.array([table.rows for table in tables])
    assert 0.05 < np.corrcoef(np.log(rows), np.log(pooling))[0, 1] < 0.25


def test_dlrm_like_depends_on_its_seed_alone():
    assert dlrm_like(20, seed=1) == dlrm_like(20, seed=1)
    assert {t.rows for t in dlrm_like(20, seed=1)} == {t.rows for t in dlrm_like(20, seed=2)}  # the same strata
    assert dlrm_like(20, seed=1)[0] != dlrm_like(20, seed=2)[0]


@pytest.fixture
def data_set(tmp_path):
    """A small file in the public data set's format: 3 tables, batch of 4; the second is never looked up."""
    lengths = torch.tensor([[2, 0, 1, 3], [0, 0, 0, 0], [1, 1, 1, 1]])
    indices = torch.tensor([5, 5, 7, 0, 5, 9, 2, 2, 3, 2])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.flatten().cumsum(0)])
    path = tmp_path / "set.pt"
    torch.save((indices, offsets, lengths), path)
    return path


@pytest.mark.parametrize("packed", [False, True])
def test_the_public_data_set_is_read(data_set, packed):
    if packed:
        plain, data_set = data_set, data_set.with_suffix(".pt.gz")
        data_set.write_bytes(gzip.compress(plain.read_bytes()))
    first, second = dlrm(str(data_set), dim=8)
    assert (first.name, first.rows, first.dim, first.pooling_factor) == ("dlrm_0", 10, 8, 1.5)
    assert first.reuse[:3] == (0.75, 0, 0.25)  # rows 7, 0, 9 once, row 5 three times
    assert (second.name, second.rows) == ("dlrm_2", 4)
    assert second.reuse[:3] == (0.5, 0, 0.5)


def test_wrong_or_truncated_data_sets_are_refused(data_set, tmp_path):
    with pytest.raises(UserError, match="no DLRM data set"):
        dlrm(str(tmp_path / "missing.pt"))
    whole = data_set.read_bytes()
    data_set.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="not a saved"):
        dlrm(str(data_set))
    packed = tmp_path / "cut.pt.gz"
    packed.write_bytes(gzip.compress(whole)[:100])
    with pytest.raises(UserError, match="gzip"):
        dlrm(str(packed))
    torch.save((torch.arange(3), torch.arange(3), torch.zeros(2, 2)), data_set)
    with pytest.raises(UserError, match="offsets"):
        dlrm(str(data_set))


ROWS = [
    {"name": "a", "rows": 100, "dim": 16, "pooling_factor": 2.5},
    {"name": "b", "rows": 7, "dim": 4, "pooling_factor": 1},
]


@pytest.mark.parametrize("suffix", ["csv", "parquet", "json"])
def test_own_tables_are_read(tmp_path, suffix):
    path = tmp_path / f"tables.{suffix}"
    frame = pd.DataFrame(ROWS)
    {
        "csv": lambda: frame.to_csv(path, index=False),
        "parquet": lambda: frame.to_parquet(path),
        "json": lambda: path.write_text(json.dumps(ROWS)),
    }[suffix]()
    tables = ns.load_tables(str(path), batch_size=512)
    assert [(t.name, t.rows, t.dim, t.pooling_factor) for t in tables] == [("a", 100, 16, 2.5), ("b", 7, 4, 1.0)]
    assert sum(tables[0].reuse) == pytest.approx(1)


def test_own_histograms_are_kept(tmp_path):
    reuse = {f"reuse_{i}": float(i == 4) for i in range(17)}
    path = tmp_path / "tables.csv"
    pd.DataFrame([ROWS[0] | reuse]).to_csv(path, index=False)
    assert ns.load_tables(str(path))[0].reuse == tuple(float(i == 4) for i in range(17))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,rows,dim\na,1,4\n", "pooling_factor"),
        ("name,rows,dim,pooling_factor\n", "no table"),
        ("name,rows,dim,pooling_factor\na,-3,4,1\n", "rows=-3"),
        ("name,rows,dim,pooling_factor\na,3,6,1\n", "dim=6"),
        ("name,rows,dim,pooling_factor\na,3,4,x\n", "pooling_factor='x'"),
        ("name,rows,dim,pooling_factor\na,3.5,4,1\n", "rows=3.5"),
        ("name,rows,dim,pooling_factor\na,3,4,1\na,3,4,1\n", "'a'"),
        ("name,rows,dim,pooling_factor,reuse_0\na,3,4,1,1\n", "give all or none"),
        ("", "can't be read"),
    ],
)
def test_bad_files_are_refused(tmp_path, text, message):
    path = tmp_path / "tables.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        ns.load_tables(str(path))
    assert "\n" not in str(caught.value)


def test_unknown_sources_and_settings_name_the_nearest():
    with pytest.raises(UserError, match="criteo"):
        ns.load_tables("critoe")
    with pytest.raises(UserError, match="zipf_exponent"):
        ns.load_tables("criteo", zipf_exponnet=1.0)


def test_tables_from_a_trace():
    table = ns.table_from_trace("t", np.array([1, 1, 2]), np.array([0, 2, 3]), rows=5, dim=8)
    assert (table.pooling_factor, table.reuse[:2]) == (1.5, (0.5, 0.5))
    with pytest.raises(UserError, match=r"0\.\.1"):
        ns.table_from_trace("t", np.array([1, 1, 2]), np.array([0, 2, 3]), rows=2, dim=8)
    with pytest.raises(UserError, match="offsets"):
        ns.table_from_trace("t", np.array([1, 1, 2]), np.array([0, 2]), rows=5, dim=8)
