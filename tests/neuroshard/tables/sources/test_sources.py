import gzip
import json
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import neuroshard as ns
from neuroshard.measure.store import DataDirectory, Manifest
from neuroshard.tables.reuse import MEAN_COUNTS
from neuroshard.tables.sources.dlrm import dlrm
from neuroshard.tables.sources.dlrm_like import dlrm_like
from tests.kit.messages import check, refused
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
def test_dlrm_like_tables_have_the_documented_distance_from_public_data_sets(
    num_tables, batch_size, lookups, unique_rows, off
):
    tables = dlrm_like(num_tables, batch_size)
    each = np.array([table.pooling_factor * batch_size for table in tables])
    unique = each / (np.array([table.reuse for table in tables]) @ MEAN_COUNTS)
    assert (each.sum() / lookups, unique.sum() / unique_rows) == pytest.approx(off, abs=0.01)


def test_dlrm_like_tables_depend_only_on_their_seed():
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
def test_dlrm_source_reads_the_public_data_set(data_set, packed):
    if packed:
        plain, data_set = data_set, data_set.with_suffix(".pt.gz")
        data_set.write_bytes(gzip.compress(plain.read_bytes()))
    first, second = dlrm(str(data_set), dim=8)
    assert (first.name, first.rows, first.dim, first.pooling_factor) == ("dlrm_0", 10, 8, 1.5)
    assert first.reuse[:3] == (0.75, 0, 0.25)  # rows 7, 0, 9 once, row 5 three times
    assert (second.name, second.rows) == ("dlrm_2", 4)
    assert second.reuse[:3] == (0.5, 0, 0.5)


def test_loading_wrong_or_truncated_data_sets_is_refused(data_set, tmp_path):
    with refused("dlrm-file-missing", names=[tmp_path / "missing.pt", "tables.path"]):
        dlrm(str(tmp_path / "missing.pt"))
    whole = data_set.read_bytes()
    data_set.write_bytes(whole[: len(whole) // 2])
    with refused("dlrm-file-unreadable", where=str(data_set)):
        dlrm(str(data_set))
    packed = tmp_path / "cut.pt.gz"
    packed.write_bytes(gzip.compress(whole)[:100])
    with refused("dlrm-file-gzip-damaged", where=str(packed)):
        dlrm(str(packed))


@pytest.mark.parametrize("content", ["object", "checkpoint", "old format", "short", "empty", "text"])
@pytest.mark.parametrize("suffix", ["pt", "pt.gz"])
def test_refusal_of_other_torch_files_gives_no_advice_of_torch(tmp_path, content, suffix):
    """torch advises to set weights_only=False, which would run code from the file."""
    path, file = tmp_path / f"other.{suffix}", BytesIO()
    if content in ("object", "checkpoint", "old format"):
        stored = {"epoch": np.float64(1)} if content == "checkpoint" else Path("a")
        torch.save(stored, file, _use_new_zipfile_serialization=content != "old format")
    packed = file.getvalue() or {"short": b"abc", "empty": b"", "text": b"name,rows\n" * 100}[content]
    path.write_bytes(gzip.compress(packed) if suffix == "pt.gz" else packed)
    with refused("dlrm-file-unreadable", where=str(path), names=["three plain tensors", "torch.save"]) as raised:
        ns.load_tables("dlrm", path=str(path))
    assert "weights_only" not in str(raised.value)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_load_tables_reads_tables_from_a_users_file(tmp_path, suffix):
    tables = ns.load_tables(_written(tmp_path / f"tables.{suffix}", ROWS), batch_size=512)
    assert [(t.name, t.rows, t.dim, t.pooling_factor) for t in tables] == [("a", 100, 16, 2.5), ("b", 7, 4, 1.0)]
    assert sum(tables[0].reuse) == pytest.approx(1)


@pytest.mark.parametrize("source", [None, 3, [], b"x.csv", 2.5, {}, np.int64(3)])
def test_load_tables_refuses_sources_of_other_types(source):
    with refused("tables-source-type", names=[str(source)[:5], "str or Path"]):
        ns.load_tables(source)


def test_load_tables_takes_paths_and_numpy_numbers(tmp_path):
    path = Path(_written(tmp_path / "tables.csv", ROWS))
    tables = ns.load_tables(path, batch_size=np.int32(64), zipf_exponent=np.float64(0.5))
    assert tables == ns.load_tables(str(path), batch_size=64, zipf_exponent=0.5)
    assert ns.load_tables(Path("criteo")) == ns.load_tables(np.str_("criteo"))
    for number in (np.float64(5), np.float32(2.5), 5.0):
        with refused("value-outside-limits", names=["batch_size", number]):
            ns.load_tables(str(path), batch_size=number)


def test_table_from_trace_counts_lookups_by_row_block_if_requested():
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
def test_load_tables_reads_optional_fields_given_for_some_tables(tmp_path, suffix, field, given, in_csv, read):
    cells = in_csv if suffix == "csv" else given
    rows = [row | {field: its} for row, its in zip(ROWS, cells, strict=True)]
    tables = ns.load_tables(_written(tmp_path / f"tables.{suffix}", rows))
    assert [getattr(table, field) for table in tables] == read


def test_load_tables_keeps_reuse_histograms_of_the_file(tmp_path):
    reuse = {f"reuse_{i}": float(i == 4) for i in range(17)}
    path = _written(tmp_path / "tables.csv", [ROWS[0] | reuse])
    assert ns.load_tables(path)[0].reuse == tuple(float(i == 4) for i in range(17))


def test_table_from_trace_has_pooling_factor_and_reuse_of_the_trace():
    table = ns.table_from_trace("t", np.array([1, 1, 2]), np.array([0, 2, 3]), rows=5, dim=8)
    assert (table.pooling_factor, table.reuse[:2]) == (1.5, (0.5, 0.5))


def test_load_tables_reads_names_as_text_without_conversion(tmp_path):
    names = ["007", "7", "NA", "nan", "null", "True", "1e5", "x y", "=1+1", "a,b", 'say "b"', "${oc.env:HOME}"]
    lines = [HEADER, *('"' + name.replace('"', '""') + '",10,4,1' for name in names)]
    assert [table.name for table in _own(tmp_path, "\n".join(lines))] == names


def test_table_file_numbers_may_be_written_as_spreadsheets_do(tmp_path):
    (table,) = _own(tmp_path, "\ufeff" + HEADER + "\r\na, 1e6,4.0,.5\r\n\r\n")
    assert (table.rows, table.dim, table.pooling_factor) == (10**6, 4, 0.5)


@pytest.mark.parametrize(
    ("text", "code", "place", "names"),
    [
        (f"{HEADER}\na,3,4,1,9\n", "tables-file-cell-count", ", line 2", ["5 cells", "4 columns"]),
        (f"{HEADER}\na,3,4,1\nb,3,4\n", "tables-file-cell-count", ", line 3", ["3 cells", "4 columns"]),
        (f"{HEADER},rows\na,3,4,1,5\n", "tables-file-column-twice", ", line 1", ["'rows'"]),
        (f"{HEADER}\na,3,4,1\na,3,4,1\n", "table-name-shared", "", ["'a'"]),
        (f"{HEADER},bytes_per_elment\na,3,4,1,2\n", "unknown-name", "", ["'bytes_per_elment'", "'bytes_per_element'"]),
        (f",{HEADER}\nx,a,3,4,1\n", "unknown-name", "", ["''"]),
        ("name;rows;dim;pooling_factor\na;3;4;1\n", "tables-file-separator", ", line 1", ["';'"]),
        ("name\trows\tdim\na\t3\t4\n", "tables-file-separator", ", line 1", [r"'\t'"]),
        ("names,ROWS,dims,colour\na,3,4,1\n", "unknown-name", "", ["'names'", "'name'"]),
        ("colour,rows,dim\n3,3,4\n", "unknown-name", "",
         ["'colour'", "name, rows, dim, pooling_factor, bytes_per_element"]),
        ("name,rows,num_embeddings,dim\na,3,3,4\n", "tables-file-column-twice", ", line 1",
         ["'rows'", "'num_embeddings'"]),
        (f"{HEADER},dtype,bytes_per_element\na,3,4,1,fp16,2\n", "tables-file-dtype-twice", "",
         ["dtype", "bytes_per_element"]),
        (f"{HEADER},dtype\na,3,4,1,int8\n", "table-dtype-unknown", ", line 2", ["dtype", "'int8'", "fp32", "fp16"]),
        (f"{HEADER}\na,3,10,1\n", "table-dim-not-padded", ", line 2", ["dim", 10, 12, "tables.pad_dims=true"]),
        (f"{HEADER}\na,True,4,1\n", "value-outside-limits", ", line 2", ["rows", "'True'"]),
        (f"{HEADER}\n,3,4,1\n", "value-outside-limits", ", line 2", ["name", "''", 1]),
        (f"{HEADER}\na,,4,1\n", "value-outside-limits", ", line 2", ["rows", "''"]),
        (f"{HEADER}\na,NA,4,1\n", "value-outside-limits", ", line 2", ["rows", "'NA'"]),
        (f"{HEADER}\na,3,4,nan\n", "value-outside-limits", ", line 2", ["pooling_factor", "'nan'"]),
        (f"{HEADER}\na,3,4,1e308\n", "value-outside-limits", ", line 2", ["pooling_factor", "1e+308"]),
        (f"{HEADER}\na,3,4,1e999\n", "value-outside-limits", ", line 2", ["pooling_factor", "'1e999'"]),
        (f"{HEADER}\na,{2**70},4,1\n", "value-outside-limits", ", line 2", ["rows", 2**70, 2**40]),
        (f"{HEADER}\na,1_000,4,1\n", "value-outside-limits", ", line 2", ["rows", "'1_000'"]),
        (f"{HEADER}\na,\u0663,4,1\n", "value-outside-limits", ", line 2", ["rows", "'\u0663'"]),
        (f'{HEADER}\n"a"b,3,4,1\n', "tables-file-csv-malformed", ", line 2", []),
        (f'{HEADER}\n"a,3,4,1\n', "tables-file-csv-malformed", ", line 2", []),
        (f"{HEADER},bytes_per_element\na,3,4,1,\n", "value-outside-limits", ", line 2", ["bytes_per_element", "''"]),
        (f"{HEADER},reuse_batch_size\na,3,4,1,64\n", "tables-file-reuse-missing", "", ["reuse_batch_size"]),
        (f"{HEADER},row_lookups\na,9,4,1,0.5 0.1\n", "table-row-lookups-sum", ", line 2: table 'a'",
         ["row_lookups", 0.6]),
        (f"{HEADER},row_lookups\na,9,4,1,0.5 x\n", "value-outside-limits", ", line 2", ["row_lookups[1]", "'x'"]),
        (f"{HEADER},row_lookups\na,9,4,1,2 -1\n", "value-outside-limits", ", line 2", ["row_lookups[0]", 2]),
        (f"{HEADER},row_lookups\na,9,4,1,1 {'0 ' * 1024}\n", "value-outside-limits", ", line 2",
         ["row_lookups", 1024]),
        (f"{HEADER},pooled\na,9,4,1,maybe\n", "value-outside-limits", ", line 2", ["pooled", "'maybe'"]),
        (f"{HEADER},features\na,9,4,1,0\n", "value-outside-limits", ", line 2", ["features", 0, 1]),
        ("name,rows,dim\na,1,4\n", "tables-file-column-missing", "", ["'pooling_factor'"]),
        (f"{HEADER}\n", "tables-file-no-table", "", []),
        (f"{HEADER}\na,3,4,1\na ,3,4,1\n", "table-name-shared", "", ["'a'"]),
        (f"{HEADER}\n ,3,4,1\n", "value-outside-limits", ", line 2", ["name", "''"]),
        (f",{HEADER}\n", "tables-file-no-table", "", []),
        ("name,rows,dim\n", "tables-file-column-missing", "", ["'pooling_factor'"]),
        ("a,10,4,1\n", "tables-file-header-missing", "", ["a, 10, 4, 1", "pooling_factor"]),
        ("a,10,4,1\nb,10,8,1\n", "tables-file-header-missing", "", ["a, 10, 4, 1", "pooling_factor"]),
        (f"{HEADER}\na,{'9' * 38},4,1\n", "value-outside-limits", ", line 2", ["rows", "9" * 38, 2**40]),
        (f"{HEADER}\na,1e400,4,1\n", "value-outside-limits", ", line 2", ["rows", "'1e400'"]),
        (f"{HEADER}\na,4,4,-1e400\n", "value-outside-limits", ", line 2", ["pooling_factor", "'-1e400'"]),
        (f"{HEADER},row_lookups\na,9,4,1,1e400 1\n", "value-outside-limits", ", line 2", ["row_lookups[0]", "'1e400'"]),
        (f"{HEADER}\na,-3,4,1\n", "value-outside-limits", ", line 2", ["rows", -3]),
        (f"{HEADER}\na,3,4,x\n", "value-outside-limits", ", line 2", ["pooling_factor", "'x'"]),
        (f"{HEADER}\na,3.5,4,1\n", "value-outside-limits", ", line 2", ["rows", 3.5]),
        (f"{HEADER},reuse_0\na,3,4,1,1\n", "tables-file-reuse-incomplete", "", ["reuse_0", "reuse_16"]),
        (f"{HEADER},{REUSE}\na,3,4,1,0.5{',0' * 16}\n", "table-reuse-sum", ", line 2: table 'a'", [0.5]),
        (f"{HEADER}\na,0,4,1\n", "value-outside-limits", ", line 2", ["rows", 0]),
        ("", "tables-file-empty", "", []),
        (HEADER.encode("utf-16"), "tables-file-encoding", "", ["UTF-8"]),
        (f"{HEADER}\né,3,4,1\n".encode("latin-1"), "tables-file-encoding", "", ["UTF-8"]),
    ],
)  # fmt: skip
def test_incomplete_csv_lines_are_refused_with_their_number(tmp_path, text, code, place, names):
    with refused(code, where=f"{tmp_path / 'tables.csv'}{place}", names=names):
        _own(tmp_path, text)


@pytest.mark.parametrize(("suffix", "place"), [("parquet", ", row 1"), ("json", ", table 1")])
@pytest.mark.parametrize(
    ("change", "code", "names"),
    [
        ({"name": 7}, "value-outside-limits", ["name", 7]),
        ({"name": ""}, "value-outside-limits", ["name", "''"]),
        ({"name": None}, "value-outside-limits", ["name", None]),
        ({"rows": True}, "value-outside-limits", ["rows", True]),
        ({"rows": "5"}, "value-outside-limits", ["rows", "'5'"]),
        ({"rows": 1e30}, "value-outside-limits", ["rows", int(1e30), 2**40]),
        ({"pooling_factor": 1e-30}, "reuse-too-few-lookups", ["pooling factor"]),
        ({"rows": None}, "value-outside-limits", ["rows", None]),
        ({"pooling_factor": 1e308}, "value-outside-limits", ["pooling_factor", 1e308]),
        ({"reuse": [1.0]}, "value-outside-limits", ["reuse", [1.0], 17]),
        ({"reuse": [True] * 17}, "value-outside-limits", ["reuse[0]", True]),
        ({f"reuse_{i}": 2.0 for i in range(17)}, "table-reuse-share", ["reuse_0", 2.0, 0, 1]),
    ],
)
def test_wrong_cells_are_named_in_every_file_format(tmp_path, suffix, place, change, code, names):
    path = _written(tmp_path / f"tables.{suffix}", [ROWS[0] | change])
    with refused(code, where=f"{path}{place}", names=names):
        ns.load_tables(path)


@pytest.mark.parametrize("suffix", ["parquet", "json"])
def test_unknown_columns_are_named_in_every_file_format(tmp_path, suffix):
    path = _written(tmp_path / f"tables.{suffix}", [ROWS[0] | {"bytes_per_elment": 2}])
    with refused("unknown-name", where=path, names=["'bytes_per_elment'", "'bytes_per_element'"]):
        ns.load_tables(path)


def test_json_table_file_may_be_a_list_or_columns_and_nothing_else(tmp_path):
    expected = _own(tmp_path, json.dumps(ROWS), "json")
    columns = {name: [row[name] for row in ROWS] for name in ROWS[0]}
    assert _own(tmp_path, json.dumps(columns), "json") == expected
    labelled = pd.DataFrame(ROWS).to_json()  # {"name": {"0": "a", ...}, ...}
    assert _own(tmp_path, labelled, "json") == expected
    for content, code, place, names in (
        ({"name": ["a"], "rows": [1, 2], "dim": [4], "pooling_factor": [1]}, "tables-file-json-rows", "", []),
        ({"name": {"0": "a"}, "rows": {"1": 1}}, "tables-file-json-rows", "", []),
        ({"name": "a"}, "tables-file-json-column", "", ["'name'", "'a'"]),
        ([ROWS[0], 5], "tables-file-json-table", ", table 2", [5]),
        (5, "tables-file-json-list", "", [5]),
    ):
        with refused(code, where=f"{tmp_path / 'tables.json'}{place}", names=names):
            _own(tmp_path, json.dumps(content), "json")


def test_load_tables_ignores_an_index_column_written_by_pandas(tmp_path):
    frame = pd.DataFrame(ROWS, index=[5, 7])
    frame.to_parquet(tmp_path / "tables.parquet")
    assert len(ns.load_tables(str(tmp_path / "tables.parquet"))) == len(ROWS)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_table_file_columns_may_have_the_names_of_other_systems(tmp_path, suffix):
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


def test_load_tables_ignores_a_column_without_a_name_and_an_index_of_pandas(tmp_path):
    plain = _own(tmp_path, f"{HEADER}\na,3,4,1\nb,3,4,1\n")
    assert _own(tmp_path, f"Unnamed: 0,{HEADER},\n0,a,3,4,1,\n1,b,3,4,1,\n") == plain


def test_errors_of_several_tables_are_reported_together(tmp_path):
    lines = [HEADER, "a,3,10,1", "b,3,4,1", "c,0,4,1", *(f"d{i},3,4,x" for i in range(9))]
    with refused(
        "tables-file-several-errors",
        where=str(tmp_path / "tables.csv"),
        names=["11 tables", "line 2: dim is 10", "line 4: rows is 0", "6 more"],
    ) as caught:
        _own(tmp_path, "\n".join(lines))
    assert caught.value.message.what.count("line ") == 5


def test_load_tables_pads_dims_only_if_requested(tmp_path):
    text = f"{HEADER}\na,3,10,1\nb,3,12,1\nc,3,1,1\n"
    with refused("tables-file-several-errors", names=["2 tables", "line 2: ", 12, "line 4: ", 4, "tables.pad_dims"]):
        _own(tmp_path, text)
    padded = ns.load_tables(str(tmp_path / "tables.csv"), pad_dims=True)
    assert [table.dim for table in padded] == [12, 12, 4]
    assert [table.unpadded_dim for table in padded] == [10, None, 1]
    task = ns.Task(padded, ns.Topology(2, 1 << 20), 65536)
    (warning,) = task.warnings
    check(warning, "tables-padded", names=["2 tables", "a 10 -> 12, c 1 -> 4"])
    assert replace(task, tables=padded[1:2]).warnings == ()
    assert read_back(task).warnings == (warning,)
    plain = ns.Task(tuple(replace(table, unpadded_dim=None) for table in padded), task.topology, 65536)
    assert plain == task
    assert "unpadded_dim" not in str(plain.to_json())


@pytest.mark.parametrize("model", ["cpu", "roofline:h100"])
def test_tables_without_lookups_are_loaded_and_add_little_cost(tmp_path, model):
    reuse = {f"reuse_{i}": 0.0 for i in range(17)}
    path = _written(tmp_path / "tables.csv", [ROWS[0] | reuse | {"pooling_factor": 0}])
    (unused,) = ns.load_tables(path, batch_size=64)
    assert unused.pooling_factor == 1 / 64
    (used,) = _own(tmp_path, f"{HEADER}\nb,7,4,1\n")
    sim = ns.Simulator(ns.CostModels.load(model))
    both, alone = (ns.Task(tables, ns.Topology(2, "1GiB"), 64) for tables in ((used, unused), (used,)))
    costs = [sim.cost(task, ns.search(task, sim, searcher="size_greedy")).total_ms for task in (both, alone)]
    assert 0 < costs[1] <= costs[0] < 10 * costs[1]


def test_loaded_tables_have_the_batch_size_of_their_histogram(tmp_path):
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


def test_load_tables_reads_tables_of_a_data_directory_unchanged(tmp_path):
    tables = ns.load_tables("criteo", batch_size=512)
    DataDirectory(tmp_path).begin(Manifest({}, {}, {}, 0), tables)
    found = ns.load_tables(str(tmp_path / "tables.parquet"))
    assert found == tables
    assert {table.reuse_batch_size for table in found} == {512}


@pytest.mark.parametrize(
    ("indices", "offsets", "settings", "code", "names"),
    [
        ([1.0, 2.0], [0, 2], {}, "lookups-not-whole", ["indices", "float64"]),
        ([[1], [2]], [0, 2], {}, "lookups-not-whole", ["indices", "int64", "(2, 1)"]),
        ([1, 2], [0.0, 2.0], {}, "lookups-not-whole", ["offsets", "float64"]),
        ([], [0, 0], {}, "trace-empty", ["0 indices", "1 sample"]),
        ([1, 1, 2], [0, 2, 3], {"rows": 2}, "lookups-index-outside", ["index 2", "rows 0 to 1"]),
        ([1, 1, 2], [0, 2], {}, "lookups-splits-mismatch", ["offsets", 3]),
    ],
)
def test_table_from_trace_refuses_invalid_traces(indices, offsets, settings, code, names):
    with refused(code, where="trace of 't'", names=names):
        ns.table_from_trace("t", indices, offsets, **{"rows": 5, "dim": 8} | settings)


def test_table_from_trace_refuses_too_many_row_blocks():
    with refused("value-outside-limits", names=["row_blocks", 1025, 1024]):
        ns.table_from_trace("t", [1, 1, 2], [0, 2, 3], rows=5, dim=8, row_blocks=1025)


_AROUND = torch.tensor([2**62, -(2**63), -(2**62)])  # each 2^62 more than the one before, in 64 bits


@pytest.mark.parametrize(
    ("change", "code", "names"),
    [
        (lambda i, o, n: (i.float(), o, n), "dlrm-file-dtype", ["torch.float32"]),
        (lambda i, o, n: (torch.arange(3), torch.arange(3), torch.zeros(2, 2)), "dlrm-file-offsets", ["(2, 2)", 3]),
        (lambda i, o, n: (i, o - 1, n), "dlrm-file-offsets", ["(2, 2)", 4]),
        (lambda i, o, n: (i, torch.cat([o[:1], o[1:4] * 0 + _AROUND, o[4:]]), n), "dlrm-file-offsets", ["(2, 2)", 4]),
        (lambda i, o, n: (i, o, n[0]), "dlrm-file-other-content", []),
        (lambda i, o, n: (i, o), "dlrm-file-other-content", []),
        (lambda i, o, n: (i, 3, n), "dlrm-file-other-content", []),
        (lambda i, o, n: (i.to_sparse(), o, n), "dlrm-file-other-content", []),
        (lambda i, o, n: (i + (1 << 50), o, n), "dlrm-file-index-outside", ["table 0"]),
        (lambda i, o, n: (i, o * 0, n), "dlrm-file-no-lookups", []),
        (lambda i, o, n: (i, o[:1], n[:, :0]), "dlrm-file-offsets", ["(2, 0)", 4]),
    ],
)
def test_dlrm_source_refuses_invalid_lookups(tmp_path, change, code, names):
    path = tmp_path / "lookups.pt"
    torch.save(change(torch.tensor([0, 1, 1, 4]), torch.tensor([0, 1, 2, 3, 4]), torch.ones(2, 2)), path)
    with refused(code, where=str(path), names=names):
        dlrm(str(path))


@pytest.mark.parametrize(
    ("source", "settings", "code", "names"),
    [
        ("critoe", {}, "unknown-name", ["'critoe'", "'criteo'"]),
        ("criteo", {"zipf_exponnet": 1.0}, "unknown-name", ["'zipf_exponnet'", "'zipf_exponent'"]),
        ("criteo", {"dim": 6}, "value-outside-limits", ["dim", 6, 4]),
        ("criteo", {"batch_size": 10**30}, "value-outside-limits", ["batch_size", 10**30]),
        ("criteo", {"zipf_exponent": "x"}, "value-outside-limits", ["zipf_exponent", "'x'"]),
        ("dlrm_like", {"num_tables": True}, "value-outside-limits", ["num_tables", True]),
        ("dlrm_like", {"num_tables": 0}, "value-outside-limits", ["num_tables", 0, 1]),
        ("dlrm_like", {"seed": -1}, "value-outside-limits", ["seed", -1]),
    ],
)
def test_load_tables_refuses_unknown_sources_and_invalid_settings(source, settings, code, names):
    with refused(code, names=names):
        ns.load_tables(source, **settings)


@pytest.mark.parametrize("field", ["name", "rows", "dim", "pooling_factor"])
def test_record_of_a_json_file_without_a_field_is_named(tmp_path, field):
    record = {"name": "a", "rows": 10, "dim": 4, "pooling_factor": 1}
    lacking = {name: value for name, value in record.items() if name != field}
    path = tmp_path / "tables.json"
    path.write_text(json.dumps([record, lacking]))
    with refused("tables-file-column-missing", where=f"{path}, table 2", names=[repr(field)]):
        ns.load_tables(path)
