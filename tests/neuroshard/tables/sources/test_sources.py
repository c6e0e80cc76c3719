import gzip
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import neuroshard as ns
from neuroshard.plumbing.errors import UserError
from neuroshard.records import DataDirectory, Manifest
from neuroshard.tables.reuse import MEAN_COUNTS
from neuroshard.tables.sources.dlrm import dlrm
from neuroshard.tables.sources.dlrm_like import dlrm_like
from tests.kit.messages import refused
from tests.kit.plans import read_back

SUFFIXES = ["csv", "parquet", "json"]
HEADER = "name,rows,dim,pooling_factor"
REUSE = ",".join(f"reuse_{i}" for i in range(17))
ROWS = [
    {"name": "a", "rows": 100, "dim": 16, "pooling_factor": 2.5},
    {"name": "b", "rows": 7, "dim": 4, "pooling_factor": 1},
]


def _own(tmp_path, text, suffix="csv"):
    path = tmp_path / f"tables.{suffix}"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return ns.load_tables(str(path), batch_size=64)


def _written(path, rows):
    """A file of tables, in the format that its name says."""
    frame = pd.DataFrame(rows)
    match path.suffix:
        case ".csv":
            frame.to_csv(path, index=False)
        case ".parquet":
            frame.to_parquet(path)
        case ".json":
            path.write_text(json.dumps(rows))
    return str(path)


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


@pytest.mark.parametrize(
    ("num_tables", "batch_size", "lookups", "unique_rows", "off"),
    [
        (856, 65_536, 887_017_990, 128_435_723, (1.00, 0.97)),  # 2021, which it is fitted to
        (788, 131_072, 1_405_163_864, 110_259_238, (1.16, 1.40)),  # 2022, which it is not
    ],
)
def test_dlrm_like_is_as_far_from_both_public_data_sets_as_is_said(num_tables, batch_size, lookups, unique_rows, off):
    tables = dlrm_like(num_tables, batch_size)
    each = np.array([table.pooling_factor * batch_size for table in tables])
    unique = each / (np.array([table.reuse for table in tables]) @ MEAN_COUNTS)
    assert (each.sum() / lookups, unique.sum() / unique_rows) == pytest.approx(off, abs=0.01)


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
    with refused("dlrm-file-missing"):
        dlrm(str(tmp_path / "missing.pt"))
    whole = data_set.read_bytes()
    data_set.write_bytes(whole[: len(whole) // 2])
    with refused("dlrm-file-unreadable"):
        dlrm(str(data_set))
    packed = tmp_path / "cut.pt.gz"
    packed.write_bytes(gzip.compress(whole)[:100])
    with refused("dlrm-file-gzip-damaged"):
        dlrm(str(packed))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_own_tables_are_read(tmp_path, suffix):
    tables = ns.load_tables(_written(tmp_path / f"tables.{suffix}", ROWS), batch_size=512)
    assert [(t.name, t.rows, t.dim, t.pooling_factor) for t in tables] == [("a", 100, 16, 2.5), ("b", 7, 4, 1.0)]
    assert sum(tables[0].reuse) == pytest.approx(1)


def test_traces_say_where_lookups_are():
    """In five rows and two blocks, row 2 begins in the first."""
    given = ([0, 1, 2, 4], [0, 4])
    assert ns.table_from_trace("t", *given, rows=5, dim=8).row_lookups == ()
    assert ns.table_from_trace("t", *given, rows=5, dim=8, row_blocks=2).row_lookups == (0.75, 0.25)
    assert ns.table_from_trace("t", *given, rows=5, dim=8, row_blocks=100).row_lookups == (0.25, 0.25, 0.25, 0, 0.25)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("field", "given", "in_csv", "read"),
    [
        ("features", (3, 1), ("3", "1.0"), [3, 1]),
        ("pooled", (False, True), (False, True), [False, True]),
        ("row_lookups", ([0.5, 0.25, 0.25], None), ("0.5 .25 2.5e-1", ""), [(0.5, 0.25, 0.25), ()]),
    ],
)
def test_own_files_may_say_more_of_some_tables(tmp_path, suffix, field, given, in_csv, read):
    cells = in_csv if suffix == "csv" else given
    rows = [row | {field: its} for row, its in zip(ROWS, cells, strict=True)]
    tables = ns.load_tables(_written(tmp_path / f"tables.{suffix}", rows))
    assert [getattr(table, field) for table in tables] == read


def test_own_histograms_are_kept(tmp_path):
    reuse = {f"reuse_{i}": float(i == 4) for i in range(17)}
    path = _written(tmp_path / "tables.csv", [ROWS[0] | reuse])
    assert ns.load_tables(path)[0].reuse == tuple(float(i == 4) for i in range(17))


def test_tables_from_a_trace():
    table = ns.table_from_trace("t", np.array([1, 1, 2]), np.array([0, 2, 3]), rows=5, dim=8)
    assert (table.pooling_factor, table.reuse[:2]) == (1.5, (0.5, 0.5))


def test_names_are_text_as_written(tmp_path):
    names = ["007", "7", "NA", "nan", "null", "True", "1e5", " x ", "=1+1", "a,b", 'say "b"', "${oc.env:HOME}"]
    lines = [HEADER, *('"' + name.replace('"', '""') + '",10,4,1' for name in names)]
    assert [table.name for table in _own(tmp_path, "\n".join(lines))] == names


def test_numbers_may_be_written_as_spreadsheets_do(tmp_path):
    (table,) = _own(tmp_path, "\ufeff" + HEADER + "\r\na, 1e6,4.0,.5\r\n\r\n")
    assert (table.rows, table.dim, table.pooling_factor) == (10**6, 4, 0.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{HEADER}\na,3,4,1,9\n", "line 2 has 5 cells, the header 4"),
        (f"{HEADER}\na,3,4,1\nb,3,4\n", "line 3 has 3 cells, the header 4"),
        (f"{HEADER},rows\na,3,4,1,5\n", "line 1: two columns are named 'rows'"),
        (f"{HEADER}\na,3,4,1\na,3,4,1\n", "tables.csv: two tables are named 'a'"),
        (
            f"{HEADER},bytes_per_elment\na,3,4,1,2\n",
            "unknown column 'bytes_per_elment'; did you mean 'bytes_per_element'",
        ),
        (f",{HEADER}\nx,a,3,4,1\n", "unknown column ''"),
        ("name;rows;dim;pooling_factor\na;3;4;1\n", "line 1: cells are separated by ';', and must be by commas"),
        ("name\trows\tdim\na\t3\t4\n", "line 1: cells are separated by '.t', and must be by commas"),
        ("names,ROWS,dims,colour\na,3,4,1\n", "unknown column 'names'; did you mean 'name'"),
        ("colour,rows,dim\n3,3,4\n", "valid: name, rows, dim, pooling_factor, bytes_per_element"),
        ("name,rows,num_embeddings,dim\na,3,3,4\n", "line 1: columns 'rows' and 'num_embeddings' both say 'rows'"),
        (f"{HEADER},dtype,bytes_per_element\na,3,4,1,fp16,2\n", "both dtype and bytes_per_element"),
        (f"{HEADER},dtype\na,3,4,1,int8\n", "line 2: dtype='int8' must be fp32 or fp16"),
        (f"{HEADER}\na,3,10,1\n", "line 2: dim=10 must be a multiple of 4; pad it to 12, or .* tables.pad_dims=true"),
        (f"{HEADER}\na,True,4,1\n", "line 2: rows='True' must be a whole number"),
        (f"{HEADER}\n,3,4,1\n", "line 2: name='' must be text of a length of at least 1"),
        (f"{HEADER}\na,,4,1\n", "line 2: rows='' must be"),
        (f"{HEADER}\na,NA,4,1\n", "line 2: rows='NA' must be"),
        (f"{HEADER}\na,3,4,nan\n", "line 2: pooling_factor='nan' must be"),
        (f"{HEADER}\na,3,4,1e308\n", "line 2: pooling_factor=1e"),
        (f"{HEADER}\na,3,4,1e999\n", "line 2: pooling_factor=inf"),
        (f"{HEADER}\na,{2**70},4,1\n", "line 2: rows=1180591620717411303424 must be a whole number of at most"),
        (f"{HEADER}\na,1_000,4,1\n", "line 2: rows='1_000' must be"),
        (f"{HEADER}\na,\u0663,4,1\n", "line 2: rows=.* must be"),
        (f'{HEADER}\n"a"b,3,4,1\n', "line 2: "),
        (f'{HEADER}\n"a,3,4,1\n', "line 2: unexpected end of data"),
        (f"{HEADER},bytes_per_element\na,3,4,1,\n", "line 2: bytes_per_element='' must be"),
        (f"{HEADER},reuse_batch_size\na,3,4,1,64\n", "reuse_batch_size without the histogram"),
        (f"{HEADER},row_lookups\na,9,4,1,0.5 0.1\n", "row_lookups sum to 0.6, not to 1"),
        (f"{HEADER},row_lookups\na,9,4,1,0.5 x\n", r"row_lookups\[1\]='x' must be a number"),
        (f"{HEADER},row_lookups\na,9,4,1,2 -1\n", r"row_lookups\[0\]=2 must be"),
        (f"{HEADER},row_lookups\na,9,4,1,1 {'0 ' * 1024}\n", "of a length of at most 1024"),
        (f"{HEADER},pooled\na,9,4,1,maybe\n", "pooled='maybe' must be true or false"),
        (f"{HEADER},features\na,9,4,1,0\n", "features=0 must be a whole number of at least 1"),
        ("name,rows,dim\na,1,4\n", "pooling_factor"),
        (f"{HEADER}\n", "no table"),
        (f"{HEADER}\na,-3,4,1\n", "rows=-3"),
        (f"{HEADER}\na,3,4,x\n", "pooling_factor='x'"),
        (f"{HEADER}\na,3.5,4,1\n", "rows=3.5"),
        (f"{HEADER},reuse_0\na,3,4,1,1\n", "give all or none"),
        (f"{HEADER},{REUSE}\na,3,4,1,0.5{',0' * 16}\n", "sums to 0.5"),
        (f"{HEADER}\na,0,4,1\n", "rows=0"),
        ("", "can't be read"),
        (HEADER.encode("utf-16"), "not UTF-8"),
        (f"{HEADER}\né,3,4,1\n".encode("latin-1"), "not UTF-8"),
    ],
)
def test_what_a_csv_file_leaves_open_is_refused_with_its_line(tmp_path, text, message):
    with pytest.raises(UserError, match=message) as caught:
        _own(tmp_path, text)
    assert str(tmp_path / "tables.csv") in str(caught.value)


@pytest.mark.parametrize("suffix", ["parquet", "json"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 7}, "name=7 must be text"),
        ({"name": ""}, "name='' must be text"),
        ({"name": None}, "name=None must be text"),
        ({"rows": True}, "rows=True must be a whole number"),
        ({"rows": "5"}, "rows='5' must be a whole number"),
        ({"rows": 1e30}, "rows=1000000000000000019884624838656 must be a whole number of at most 1099511627776"),
        ({"pooling_factor": 1e-30}, "lookups in a batch are too few to estimate .*; give a larger pooling factor"),
        ({"rows": None}, "rows=None must be a whole number"),
        ({"pooling_factor": 1e308}, "pooling_factor=1e"),
        ({"bytes_per_elment": 2}, "unknown column 'bytes_per_elment'; did you mean 'bytes_per_element'"),
        ({"reuse": [1.0]}, "reuse=.* must be a list of a length of at least 17"),
        ({"reuse": [True] * 17}, r"reuse\[0\]=True must be a number"),
        ({f"reuse_{i}": 2.0 for i in range(17)}, "reuse_0=2.0 must be a number from 0 to 1"),
    ],
)
def test_wrong_cells_are_named_in_every_file_format(tmp_path, suffix, change, message):
    path = _written(tmp_path / f"tables.{suffix}", [ROWS[0] | change])
    with pytest.raises(UserError, match=message):
        ns.load_tables(path)


def test_json_may_be_a_list_or_columns(tmp_path):
    expected = _own(tmp_path, json.dumps(ROWS), "json")
    columns = {name: [row[name] for row in ROWS] for name in ROWS[0]}
    assert _own(tmp_path, json.dumps(columns), "json") == expected
    labelled = pd.DataFrame(ROWS).to_json()  # {"name": {"0": "a", ...}, ...}
    assert _own(tmp_path, labelled, "json") == expected
    for content, message in (
        ({"name": ["a"], "rows": [1, 2], "dim": [4], "pooling_factor": [1]}, "don't have the same rows"),
        ({"name": {"0": "a"}, "rows": {"1": 1}}, "don't have the same rows"),
        ({"name": "a"}, "not a list of cells"),
        ([ROWS[0], 5], "table 2: 5 must be named fields"),
        (5, "must hold a list of tables"),
    ):
        with pytest.raises(UserError, match=message):
            _own(tmp_path, json.dumps(content), "json")


def test_an_index_that_pandas_wrote_is_no_column(tmp_path):
    frame = pd.DataFrame(ROWS, index=[5, 7])
    frame.to_parquet(tmp_path / "tables.parquet")
    assert len(ns.load_tables(str(tmp_path / "tables.parquet"))) == len(ROWS)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_columns_may_be_called_as_other_systems_call_them(tmp_path, suffix):
    frame = pd.DataFrame(ROWS).rename(
        columns={"name": "Table Name", "rows": "num_embeddings", "dim": "embedding_dim", "pooling_factor": " Pooling"}
    )
    frame["dtype"] = ["torch.float16", "FP32"]
    path = tmp_path / f"tables.{suffix}"
    {
        "csv": lambda: frame.to_csv(path),  # with pandas' index
        "parquet": lambda: frame.reset_index().to_parquet(path),
        "json": lambda: path.write_text(frame.to_json(orient="records")),
    }[suffix]()
    tables = ns.load_tables(str(path), batch_size=512)
    assert [(t.name, t.rows, t.dim, t.pooling_factor, t.bytes_per_element) for t in tables] == [
        ("a", 100, 16, 2.5, 2), ("b", 7, 4, 1.0, 4),
    ]  # fmt: skip


def test_an_index_that_was_written_twice_and_empty_columns_are_left_out(tmp_path):
    plain = _own(tmp_path, f"{HEADER}\na,3,4,1\nb,3,4,1\n")
    assert _own(tmp_path, f"Unnamed: 0,{HEADER},\n0,a,3,4,1,\n1,b,3,4,1,\n") == plain


def test_wrong_tables_are_told_together(tmp_path):
    lines = [HEADER, "a,3,10,1", "b,3,4,1", "c,0,4,1", *(f"d{i},3,4,x" for i in range(9))]
    with pytest.raises(UserError) as caught:
        _own(tmp_path, "\n".join(lines))
    said = str(caught.value)
    assert said.startswith(f"{tmp_path / 'tables.csv'}: 11 tables can't be read: line 2: dim=10 must be")
    assert "; line 4: rows=0 must be" in said
    assert said.endswith("; and 6 more")
    assert said.count("line ") == 5


def test_dims_are_padded_where_that_is_asked_for(tmp_path):
    text = f"{HEADER}\na,3,10,1\nb,3,12,1\nc,3,1,1\n"
    with refused("tables-file-several-errors"):
        _own(tmp_path, text)
    padded = ns.load_tables(str(tmp_path / "tables.csv"), pad_dims=True)
    assert [table.dim for table in padded] == [12, 12, 4]
    assert [table.unpadded_dim for table in padded] == [10, None, 1]
    task = ns.Task(padded, ns.Topology(2, 1 << 20), 65536)
    (line,) = task.warnings
    assert "2 tables padded (a 10 -> 12, c 1 -> 4)" in line
    assert replace(task, tables=padded[1:2]).warnings == ()
    assert read_back(task).warnings == (line,)
    plain = ns.Task(tuple(replace(table, unpadded_dim=None) for table in padded), task.topology, 65536)
    assert plain == task
    assert "unpadded_dim" not in str(plain.to_json())


@pytest.mark.parametrize("model", ["cpu", "roofline:h100"])
def test_tables_that_nobody_looks_up_take_room_and_hardly_time(tmp_path, model):
    reuse = {f"reuse_{i}": 0.0 for i in range(17)}
    path = _written(tmp_path / "tables.csv", [ROWS[0] | reuse | {"pooling_factor": 0}])
    (unused,) = ns.load_tables(path, batch_size=64)
    assert unused.pooling_factor == 1 / 64
    (used,) = _own(tmp_path, f"{HEADER}\nb,7,4,1\n")
    sim = ns.Simulator(ns.CostModels.load(model))
    both, alone = (ns.Task(tables, ns.Topology(2, "1GiB"), 64) for tables in ((used, unused), (used,)))
    costs = [sim.cost(task, ns.search(task, sim, searcher="size_greedy")).total_ms for task in (both, alone)]
    assert 0 < costs[1] <= costs[0] < 10 * costs[1]


def test_tables_know_the_batch_size_of_their_histogram(tmp_path):
    assert {table.reuse_batch_size for table in ns.load_tables("criteo", batch_size=512)} == {512}
    assert {table.reuse_batch_size for table in ns.load_tables("dlrm_like", num_tables=3)} == {65536}
    assert _own(tmp_path, f"{HEADER}\na,3,4,1\n")[0].reuse_batch_size == 64
    reuse = [0.5, 0.5] + [0.0] * 15
    assert _own(tmp_path, json.dumps([ROWS[0] | {"reuse": reuse}]), "json")[0].reuse_batch_size is None
    given = ROWS[0] | {"reuse": reuse, "reuse_batch_size": 4096}
    (table,) = _own(tmp_path, json.dumps([given]), "json")
    assert (table.reuse_batch_size, table.reuse) == (4096, tuple(reuse))
    assert ns.table_from_trace("t", [1, 1, 2], [0, 2, 3], rows=5, dim=8).reuse_batch_size == 2
    assert replace(table, reuse_batch_size=None) == table


def test_measured_tables_are_read_like_ones_own(tmp_path):
    tables = ns.load_tables("criteo", batch_size=512)
    DataDirectory(tmp_path).begin(Manifest({}, {}, {}, 0), tables)
    found = ns.load_tables(str(tmp_path / "tables.parquet"))
    assert found == tables
    assert {table.reuse_batch_size for table in found} == {512}


@pytest.mark.parametrize(
    ("indices", "offsets", "settings", "message"),
    [
        ([1.0, 2.0], [0, 2], {}, "indices must be one row of whole numbers, not float64"),
        ([[1], [2]], [0, 2], {}, r"not int64 of shape \(2, 1\)"),
        ([1, 2], [0.0, 2.0], {}, "offsets must be one row of whole numbers"),
        ([], [0, 0], {}, "indices"),
        ([1, 1, 2], [0, 2, 3], {"rows": 2}, r"0\.\.1"),
        ([1, 1, 2], [0, 2], {}, "offsets"),
        ([1, 1, 2], [0, 2, 3], {"row_blocks": 1025}, "row_blocks=1025"),
    ],
)
def test_impossible_traces_are_refused(indices, offsets, settings, message):
    with pytest.raises(UserError, match=message):
        ns.table_from_trace("t", indices, offsets, **{"rows": 5, "dim": 8} | settings)


_AROUND = torch.tensor([2**62, -(2**63), -(2**62)])  # each 2^62 more than the one before, in 64 bits


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i, o, n: (i.float(), o, n), "not whole numbers"),
        (lambda i, o, n: (torch.arange(3), torch.arange(3), torch.zeros(2, 2)), "offsets"),
        (lambda i, o, n: (i, o - 1, n), "offsets don't fit"),
        (lambda i, o, n: (i, torch.cat([o[:1], o[1:4] * 0 + _AROUND, o[4:]]), n), "offsets don't fit"),
        (lambda i, o, n: (i, o, n[0]), "tensors of 1, 1 and 2 dimensions"),
        (lambda i, o, n: (i, o), "tensors of 1, 1 and 2 dimensions"),
        (lambda i, o, n: (i, 3, n), "tensors of 1, 1 and 2 dimensions"),
        (lambda i, o, n: (i.to_sparse(), o, n), "tensors of 1, 1 and 2 dimensions"),
        (lambda i, o, n: (i + (1 << 50), o, n), "index outside"),
        (lambda i, o, n: (i, o * 0, n), "no lookups"),
        (lambda i, o, n: (i, o[:1], n[:, :0]), "offsets don't fit"),
    ],
)
def test_impossible_lookups_are_refused(tmp_path, change, message):
    path = tmp_path / "lookups.pt"
    torch.save(change(torch.tensor([0, 1, 1, 4]), torch.tensor([0, 1, 2, 3, 4]), torch.ones(2, 2)), path)
    with pytest.raises(UserError, match=message):
        dlrm(str(path))


@pytest.mark.parametrize(
    ("source", "settings", "message"),
    [
        ("critoe", {}, "criteo"),
        ("criteo", {"zipf_exponnet": 1.0}, "zipf_exponent"),
        ("criteo", {"dim": 6}, "dim=6 must be a multiple of 4"),
        ("criteo", {"batch_size": 10**30}, "batch_size=1000000000000000000000000000000 must be"),
        ("criteo", {"zipf_exponent": "x"}, "zipf_exponent='x' must be a number"),
        ("dlrm_like", {"num_tables": True}, "num_tables=True must be a whole number"),
        ("dlrm_like", {"num_tables": 0}, "num_tables=0 must be a whole number of at least 1"),
        ("dlrm_like", {"seed": -1}, "seed=-1"),
    ],
)
def test_sources_and_their_settings_have_names_and_ranges(source, settings, message):
    with pytest.raises(UserError, match=message):
        ns.load_tables(source, **settings)
