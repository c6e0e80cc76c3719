"""Run directories: used by one run at a time, resumed only by the same run, marked when the run is finished."""

import json
from pathlib import Path

import pytest

from neuroshard.measure.store.run_directory import RunDirectory, RunFile, check_same, flat, runs_below
from neuroshard.plumbing.files import exclusive
from neuroshard.testing import toy_task
from tests.kit.messages import refused

TASKS = (toy_task(3),)
SETTINGS = {"model": "cpu", "searcher": {"beam": 3, "widths": (1, 2)}, "reads": []}


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path / "run")


def test_new_run_directory_has_the_next_free_number(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "search" / "0007-old").mkdir(parents=True)
    places = [RunDirectory.at(None, "search", "random").path for _ in range(2)]
    assert places == [Path("runs/search/0008-random"), Path("runs/search/0009-random")]
    assert RunDirectory.at("there", "search", "random").path == Path("there")
    assert not Path("there").exists()


def test_run_directory_in_use_refuses_a_second_run_and_is_removed_if_empty(run):
    with run.held():
        assert run.path.is_dir()
        with refused("out-in-use", names=[run.path]), exclusive(run.path):
            pass
    assert not run.path.exists()


def test_run_directory_under_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "run"
    with refused("out-under-file", where=f"out={path}", names=[path.parent]), RunDirectory(path).held():
        pass


def test_beginning_the_same_run_again_leaves_the_settings_file_unchanged(run):
    run.begin(SETTINGS, TASKS)
    before = (run.path / "settings.json").read_bytes()
    run.begin(SETTINGS, TASKS)
    assert (run.path / "settings.json").read_bytes() == before
    run.finish("search", {"searcher": "random"})
    run.begin(SETTINGS, TASKS)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"model": "gpu"}, ["model='cpu'", "'gpu'"]),
        ({"searcher": {"beam": 4, "widths": (1, 2)}}, ["searcher.beam=3", 4]),
        ({"searcher": {"beam": 3, "widths": (1,)}}, ["searcher.widths=[1, 2]", [1]]),
        ({"more": 1}, ["more=None", 1]),
        ({"reads": ["0" * 64]}, ["files"]),
    ],
)
def test_different_run_is_refused_with_the_differing_settings(run, change, names):
    run.begin(SETTINGS, TASKS)
    with refused("out-begun-otherwise", names=[run.path, *names]):
        run.begin(SETTINGS | change, TASKS)
    with refused("out-begun-otherwise", names=[run.path, "tasks"]):
        run.begin(SETTINGS, (toy_task(4),))


@pytest.mark.parametrize("content", ["mine", json.dumps({"format": "neuroshard-tasks-2", "tasks": []})])
def test_beginning_a_run_over_other_files_is_refused_and_keeps_them(run, content):
    run.path.mkdir()
    (run.path / "tasks.json").write_text(content)
    with refused("out-file-differs", names=[run.path / "tasks.json"]):
        run.begin(SETTINGS, TASKS)
    assert (run.path / "tasks.json").read_text() == content


def test_beginning_a_run_killed_before_its_settings_file_writes_the_file(run):
    run.begin(SETTINGS, TASKS)
    (run.path / "settings.json").unlink()
    run.begin(SETTINGS, TASKS)
    assert (run.path / "settings.json").exists()


def test_check_free_refuses_a_directory_after_a_run_begins(run):
    run.check_free()
    run.begin(SETTINGS, TASKS)
    with refused("out-has-run", names=[run.path]):
        run.check_free()


def test_beginning_a_run_over_a_finished_run_of_another_kind_is_refused(run):
    run.finish("evaluate", {"seed": 0})
    with refused("out-has-run", names=[run.path]):
        run.begin(SETTINGS, TASKS)
    assert not (run.path / "settings.json").exists()


def test_finished_run_directory_states_format_and_kind(run, tmp_path):
    assert not run.finished
    run.finish("evaluate", {"seed": 0})
    assert run.finished
    assert json.loads((run.path / "run.json").read_text()) == {
        "format": "neuroshard-run-2", "kind": "evaluate", "seed": 0,
    }  # fmt: skip
    assert run.read() == RunFile("evaluate", {"seed": 0})
    assert run.facts("evaluate") == {"seed": 0}
    with refused("run-other-kind", names=[run.path, "search", "'evaluate'"]):
        run.facts("search")
    assert list(runs_below(tmp_path)) == [run]


@pytest.mark.parametrize(
    ("content", "code", "names"),
    [
        ({"format": "neuroshard-run-3", "kind": "search"}, "file-format-other", ["'neuroshard-run-3'"]),
        ({"format": "neuroshard-search-1"}, "file-format-other", ["'neuroshard-run-2'", "'neuroshard-search-1'"]),
        ({"format": "neuroshard-run-2", "kind": "walk"}, "value-outside-limits", ["kind", "'walk'"]),
        ({"format": "neuroshard-run-2"}, "value-outside-limits", ["kind", None]),
        ([], "value-outside-limits", ["[]"]),
    ],
)
def test_reading_a_malformed_run_file_is_refused_in_one_line(run, content, code, names):
    run.path.mkdir()
    (run.path / "run.json").write_text(json.dumps(content))
    with refused(code, where=f"run {run.path / 'run.json'}", names=names):
        run.read()


def test_path_without_a_run_is_reported_in_one_line(run):
    with refused("file-missing", names=[run.path / "run.json"]):
        run.facts("search")


def test_run_file_of_another_program_is_not_read_as_a_run(run):
    run.path.mkdir()
    (run.path / "run.json").write_text('{"settings": {"seed": 1}}')
    assert run.read() is None
    with refused("run-other-kind", names=[run.path, "search"]):
        run.facts("search")


def test_check_same_takes_a_missing_setting_for_null():
    check_same(Path("x"), {"a": None}, {})
    assert flat({"a": {"b": 1, "c": {}}, "d": [2]}) == {"a.b": 1, "d": [2]}
