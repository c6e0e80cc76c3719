"""Readable and refused files, and directories locked by a run."""

import errno
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from neuroshard.app.failures import report_of
from neuroshard.plumbing import parquet
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import (
    MAX_FILE_BYTES,
    by_place,
    check_directory,
    check_file,
    exclusive,
    read_json,
    regular_file,
    write_atomically,
)
from neuroshard.plumbing.parquet import read_rows, read_table
from neuroshard.plumbing.plain_yaml import read_yaml
from tests.kit.messages import check, refused


@pytest.fixture(params=[read_json, read_rows, read_yaml])
def read(request):
    return lambda path: request.param(path, "thing")


def test_reading_irregular_too_large_or_missing_files_is_refused(tmp_path, read):
    pipe, big, folder = tmp_path / "pipe", tmp_path / "big", tmp_path / "folder"
    os.mkfifo(pipe)
    folder.mkdir()
    with big.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)  # takes no room on disk
    (tmp_path / "link").symlink_to("/dev/zero")
    for path, code in (
        (pipe, "file-irregular"), (folder, "file-irregular"), (Path("/dev/zero"), "file-irregular"),
        (tmp_path / "link", "file-irregular"), (big, "file-large"), (tmp_path / "none", "file-missing"),
        (tmp_path / "a\x00b", "file-unreadable"), (tmp_path / ("x" * 300), "file-unreadable"),
    ):  # fmt: skip
        names = ["thing", path, *(["1 GiB"] if path is big else [])]
        with refused(code, names=names):
            read(path)
        with refused(code, names=names):
            regular_file(path, "thing")


def test_read_rows_ignores_key_value_directory_names(tmp_path):
    path = tmp_path / "searcher=random" / "results.parquet"  # as sweeps name directories
    path.parent.mkdir()
    pq.write_table(pa.table({"a": [1, None], "b": [["x"], []]}), path)
    assert read_rows(path, "thing") == [{"a": 1, "b": ["x"]}, {"a": None, "b": []}]
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), path)
    with refused("parquet-column-twice", names=["'a'", path]):
        read_rows(path, "thing")
    path.write_bytes(path.read_bytes()[:-3])
    with refused("parquet-damaged", names=[path]):
        read_rows(path, "thing")


TEXT = "x" * 8000
SAME = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), pa.array([TEXT]))


@pytest.mark.parametrize(
    ("column", "settings"),
    [
        (pa.array([TEXT] * 1000), {}),
        (SAME, {}),
        (SAME, {"row_group_size": 10}),
        (pa.ListArray.from_arrays(pa.array([0, 1000], pa.int32()), SAME), {}),
        (pa.StructArray.from_arrays([SAME], ["a"]), {}),
        (pa.array([[(TEXT, TEXT)]] * 1000, pa.map_(pa.string(), pa.string())), {}),
        (pa.array([[TEXT]] * 1000, pa.list_(pa.string(), 1)), {}),
        (pa.array([TEXT] * 1000, pa.string_view()), {}),
        (pa.array([f'"{TEXT}"'] * 1000, pa.json_()), {}),
        (pa.array([TEXT] * 1000), {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"}),
        (pa.array([1] * 1_000_000), {}),
        (pa.array([[[[1]]]] * 100_000), {}),
    ],
)
def test_parquet_file_that_unpacks_to_more_than_the_limit_is_refused(tmp_path, monkeypatch, column, settings):
    """Equal values take almost no room in a file, and only in memory the room of all of them."""
    path = tmp_path / "bomb.parquet"
    pq.write_table(pa.table({"a": column}), path, compression="zstd", **settings)
    assert path.stat().st_size < 50_000
    monkeypatch.setattr(parquet, "MAX_FILE_BYTES", 1_000_000)
    with refused("parquet-large", names=[path, "1,000,000 bytes"]):
        read_table(path, "thing")
    with refused("parquet-large", names=[path]):
        read_rows(path, "thing")


def test_bomb_is_refused_before_memory_is_used(tmp_path, monkeypatch):
    """Texts of 80 MB in 8 KB are counted, but not unpacked: a limit of 10 MB keeps memory near 10 MB."""
    path = tmp_path / "bomb.parquet"
    pq.write_table(pa.table({"a": pa.array([TEXT] * 10_000)}), path, compression="zstd")
    monkeypatch.setattr(parquet, "MAX_FILE_BYTES", 10_000_000)
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        with refused("parquet-large", names=[path]):
            read_table(path, "thing")
    finally:
        pa.set_memory_pool(before)
    assert pool.max_memory() < 20_000_000


def test_texts_of_a_parquet_file_near_the_limit_are_read_unchanged(tmp_path, monkeypatch):
    """Files that might unpack to more than the limit are read twice; types and missing values stay."""
    names = [None, *(f"t{number % 50}" for number in range(5000))]
    table = pa.table(
        {
            "text": names,
            "view": pa.array(names, pa.string_view()),
            "lists": pa.array([None if name is None else [name, "", None] for name in names]),
            "maps": pa.array([[("a", name)] for name in names], pa.map_(pa.string(), pa.string())),
            "category": pa.array(names).dictionary_encode(),
        }
    )
    path = tmp_path / "near.parquet"
    pq.write_table(table, path)
    monkeypatch.setattr(parquet, "MAX_FILE_BYTES", 1_000_000)
    assert read_table(path, "thing").equals(table)
    assert read_rows(path, "thing") == table.to_pylist()


@pytest.mark.parametrize(
    "column",
    [
        pa.array([0], pa.timestamp("us", tz="Nowhere/Land")),
        pa.array([10**7], pa.date32()),
        pa.array([2**62], pa.duration("s")),
        pa.array([2**62], pa.timestamp("ms")),
    ],
)
def test_parquet_column_without_python_values_is_refused_by_name(tmp_path, column):
    path = tmp_path / "times.parquet"
    pq.write_table(pa.table({"name": ["a"], "when": column}), path)
    with refused("parquet-column-type", names=[path, "'when'", pq.read_schema(path).field("when").type]):
        read_rows(path, "thing")


BOMB = "a: &a [x, x, x, x, x, x, x, x]\n" + "".join(
    f"{to}: &{to} [{', '.join([f'*{of}'] * 8)}]\n" for of, to in zip("abcdefghi", "bcdefghij", strict=True)
)


@pytest.mark.parametrize(
    ("text", "code", "line", "names"),
    [
        (BOMB, "yaml-alias", 2, []),
        ("a: &a [*a]", "yaml-alias", 1, []),
        ("a: 1\nb: 2\na: 3", "yaml-field-twice", 3, ["'a'"]),
        ("b: 2\n1: 2", "yaml-name-not-text", 2, [1]),
        ("!!python/object/apply:os.system [ls]", "yaml-unreadable", None, []),
        ("a: !!set {b}", "yaml-unreadable", None, []),
        ("a: " + "[" * 3000, "value-nested-deeply", None, []),
        ('a: "\\ud800"', "yaml-unreadable", None, []),
        ("a: " + "9" * 5000, "yaml-unreadable", None, []),
        ("a: b: c", "yaml-unreadable", None, []),
        ("# " + "x" * (4 << 20), "yaml-large", None, [".json"]),
    ],
)
def test_reading_bad_yaml_is_refused_with_file_and_line(tmp_path, text, code, line, names):
    path = tmp_path / "x.yaml"
    path.write_text(text)
    where = None if line is None else f"thing {path}, line {line}"
    with refused(code, where=where, names=[f"thing {path}", *names]):
        read_yaml(path, "thing")


def test_read_yaml_returns_plain_values_only(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "told")
    (tmp_path / "x.yaml").write_text("a: ${oc.env:SECRET}\nb: 2024-01-01\nc: [1, 2.5, true, ~]\n")
    assert read_yaml(tmp_path / "x.yaml", "thing") == {
        "a": "${oc.env:SECRET}", "b": "2024-01-01", "c": [1, 2.5, True, None],
    }  # fmt: skip
    (tmp_path / "x.json").write_text('{"a": 1}')
    assert read_yaml(tmp_path / "x.json", "thing") == {"a": 1}


@pytest.mark.parametrize("place", ["pathlib.Path.write_bytes", "os.fsync", "os.open"])
def test_full_disk_error_names_the_path_and_keeps_the_old_file(tmp_path, monkeypatch, place):
    """Errors of open files have no path, and the path of the temporary file would not help the user."""
    path = tmp_path / "plan.json"
    path.write_text("before")

    def full(where, *_):
        names = (str(where),) if place == "os.open" else ()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *names)

    with monkeypatch.context() as patched, pytest.raises(OSError) as raised:
        patched.setattr(place, full)
        write_atomically(path, b"after")
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, str(path))
    check(report_of(raised.value), "system-refused", names=[path])
    assert str(raised.value).endswith(f"{str(path)!r}")
    assert [one.read_text() for one in tmp_path.iterdir()] == ["before"]


def test_lock_file_that_is_a_link_leaves_the_target_unchanged(tmp_path):
    victim = tmp_path / "precious.json"
    victim.write_text(json.dumps({"a": 1}))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(victim)
    lock = tmp_path / "run" / ".lock"
    with refused("out-lock-refused", names=[lock]) as raised, exclusive(tmp_path / "run"):
        pass
    assert str(lock) in raised.value.message.remedy
    assert victim.read_text() == '{"a": 1}'


def test_old_lock_file_does_not_stop_a_new_run(tmp_path):
    (tmp_path / ".lock").write_text("left by a run that was killed")
    with exclusive(tmp_path):
        assert (tmp_path / ".lock").exists()
        with refused("out-in-use", names=[tmp_path]), exclusive(tmp_path):
            pass
        with refused("out-in-use", names=[tmp_path]), exclusive(tmp_path):
            pass
    assert list(tmp_path.iterdir()) == []


def test_exclusive_directory_is_removed_after_an_error(tmp_path):
    with refused("rows-wrong"), exclusive(tmp_path / "a" / "b"):
        raise UserError("rows-wrong", "rows is 0")
    assert list(tmp_path.iterdir()) == []
    with exclusive(tmp_path / "a" / "b"):
        (tmp_path / "a" / "b" / "result").touch()
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["result"]


@pytest.mark.parametrize(("out", "place"), [("/proc/x", "/proc"), ("/sys/x/y", "/sys"), ("/proc/self", "/proc/self")])
def test_unwritable_paths_are_refused_before_any_work(out, place):
    with refused("out-unwritable", where=f"out={out}", names=[f"{place} ", "out=DIRECTORY"]):
        check_directory(Path(out))
    with refused("out-unwritable", where=f"out={out}/x", names=[f"{place} ", "out=FILE"]):
        check_file(Path(out) / "x")


@pytest.mark.parametrize("out", ["x" * 256, "a/" + "é" * 128 + "/b", "a/b/" + "x" * 300])
def test_names_that_are_too_long_are_refused_before_any_work(tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    for check_out, kind in ((check_directory, "DIRECTORY"), (check_file, "FILE")):
        with refused("out-name-long", names=["out=", len(max(out.encode().split(b"/"), key=len)), 255, f"out={kind}"]):
            check_out(Path(out))


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127])
def test_longest_possible_file_name_is_written(tmp_path, name):
    check_file(tmp_path / name)
    write_atomically(tmp_path / name, b"content")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_check_of_writable_paths_changes_nothing(tmp_path):
    check_directory(tmp_path / "a" / "b")
    assert not list(tmp_path.iterdir())


def test_by_place_groups_paths_of_the_same_directory_in_any_notation(tmp_path):
    here, other, link = tmp_path / "here", tmp_path / "other", tmp_path / "link"
    link.symlink_to(here)
    again = other / ".." / "here"
    assert by_place([link, other, here, again]) == [[link, here, again], [other]]
