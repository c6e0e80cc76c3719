"""Directories of runs: claimed once, gone on with by the same run only, marked when they are whole."""

import json
from pathlib import Path

import pytest

from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import exclusive
from neuroshard.records.run_directory import RunDirectory, RunFile, check_same, flat, runs_below
from neuroshard.testing import toy_task
from tests.kit.messages import refused

TASKS = (toy_task(3),)
SETTINGS = {"model": "cpu", "searcher": {"beam": 3, "widths": (1, 2)}, "reads": []}


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path / "run")


def test_the_next_free_number_is_taken(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "search" / "0007-old").mkdir(parents=True)
    places = [RunDirectory.at(None, "search", "random").path for _ in range(2)]
    assert places == [Path("runs/search/0008-random"), Path("runs/search/0009-random")]
    assert RunDirectory.at("there", "search", "random").path == Path("there")
    assert not Path("there").exists()


def test_one_run_at_a_time_and_nothing_left_of_none(run):
    with run.held():
        assert run.path.is_dir()
        with refused("out-in-use"), exclusive(run.path):
            pass
    assert not run.path.exists()


def test_places_that_cannot_be_written_to_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with refused("out-under-file"), RunDirectory(tmp_path / "file" / "run").held():
        pass


def test_the_same_run_goes_on(run):
    run.begin(SETTINGS, TASKS)
    before = (run.path / "settings.json").read_bytes()
    run.begin(SETTINGS, TASKS)
    assert (run.path / "settings.json").read_bytes() == before
    run.finish("search", {"searcher": "random"})
    run.begin(SETTINGS, TASKS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "gpu"}, "begun with model='cpu', not 'gpu'"),
        ({"searcher": {"beam": 4, "widths": (1, 2)}}, "begun with searcher.beam=3, not 4"),
        ({"searcher": {"beam": 3, "widths": (1,)}}, r"searcher.widths=\[1, 2\], not \[1\]"),
        ({"more": 1}, "begun with more=None, not 1"),
        ({"reads": ["0" * 64]}, "begun with other contents of files that it reads: models, plans or policies"),
    ],
)
def test_another_run_is_refused_with_what_differs(run, change, message):
    run.begin(SETTINGS, TASKS)
    with pytest.raises(UserError, match=message) as caught:
        run.begin(SETTINGS | change, TASKS)
    assert str(caught.value).startswith(f"{run.path} holds a run already")
    with pytest.raises(UserError, match="holds a run already, begun with other tasks"):
        run.begin(SETTINGS, (toy_task(4),))


@pytest.mark.parametrize("content", ["mine", json.dumps({"format": "neuroshard-tasks-2", "tasks": []})])
def test_files_that_are_no_runs_are_kept(run, content):
    run.path.mkdir()
    (run.path / "tasks.json").write_text(content)
    with refused("out-file-differs"):
        run.begin(SETTINGS, TASKS)
    assert (run.path / "tasks.json").read_text() == content


def test_a_run_that_was_killed_at_its_beginning_goes_on(run):
    run.begin(SETTINGS, TASKS)
    (run.path / "settings.json").unlink()
    run.begin(SETTINGS, TASKS)
    assert (run.path / "settings.json").exists()


def test_a_directory_is_free_until_a_run_begins(run):
    run.check_free()
    run.begin(SETTINGS, TASKS)
    with refused("out-has-run"):
        run.check_free()


def test_a_whole_run_of_another_kind_is_not_gone_on_with(run):
    run.finish("evaluate", {"seed": 0})
    with refused("out-has-run"):
        run.begin(SETTINGS, TASKS)
    assert not (run.path / "settings.json").exists()


def test_what_is_whole_says_its_format_and_kind(run, tmp_path):
    assert not run.finished
    run.finish("evaluate", {"seed": 0})
    assert run.finished
    assert json.loads((run.path / "run.json").read_text()) == {
        "format": "neuroshard-run-2", "kind": "evaluate", "seed": 0,
    }  # fmt: skip
    assert run.read() == RunFile("evaluate", {"seed": 0})
    assert run.facts("evaluate") == {"seed": 0}
    with refused("run-other-kind"):
        run.facts("search")
    assert list(runs_below(tmp_path)) == [run]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"format": "neuroshard-run-3", "kind": "search"}, "but 'neuroshard-run-3', of another version"),
        ({"format": "neuroshard-search-1"}, "not of format 'neuroshard-run-2' but 'neuroshard-search-1'"),
        ({"format": "neuroshard-run-2", "kind": "walk"}, "kind='walk' must be"),
        ({"format": "neuroshard-run-2"}, "kind=None must be"),
        ([], r"\[\] must be named fields"),
    ],
)
def test_malformed_run_files_are_one_line(run, content, message):
    run.path.mkdir()
    (run.path / "run.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=message) as caught:
        run.read()
    assert str(run.path / "run.json") in str(caught.value)


def test_no_run_is_one_line(run):
    with refused("file-missing"):
        run.facts("search")


def test_run_files_of_other_programs_are_nobodys(run):
    run.path.mkdir()
    (run.path / "run.json").write_text('{"settings": {"seed": 1}}')
    assert run.read() is None
    with refused("run-other-kind"):
        run.facts("search")


def test_settings_that_are_missing_are_null():
    check_same(Path("x"), {"a": None}, {})
    assert flat({"a": {"b": 1, "c": {}}, "d": [2]}) == {"a.b": 1, "d": [2]}
