"""Gathering run directories: results, errors in one line, and distinct names of runs."""

import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from neuroshard.measure.store.run_directory import RunDirectory
from neuroshard.models.bundle import Card, save_bundle
from neuroshard.plumbing.errors import UserError
from neuroshard.stages.search.methods.heuristics import Random
from neuroshard.stages.search.report.gather import gather, named
from neuroshard.stages.search.results.search_results import SearchRun
from neuroshard.stages.search.runs.report import Report
from neuroshard.stages.search.runs.search import Search
from neuroshard.testing import random_models, toy_task
from tests.kit.messages import refused
from tests.kit.wrong_values import change_for

TRIES = int(os.environ.get("NEUROSHARD_FUZZ", "20"))


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A directory with a run of every kind."""
    root = tmp_path_factory.mktemp("gather")
    save_bundle(root / "models", random_models(), Card())
    for name in ("one", "two"):
        tasks = tuple(toy_task(4, seed=seed) for seed in range(2))
        Search(str(root / "models"), tasks, Random(), name, str(root / "runs" / name)).run()
    for name, kind in (("measured", "evaluate"), ("trained", "train-policy")):
        RunDirectory(root / "runs" / name).finish(kind, {})
    columns = {"method": ["a", "b"], "task": [0, 0], "plan": ["p", None], "error": [None, "x"]}
    numbers = {name: [1.0, 2.0] for name in ("predicted_ms", "margin_ms", "measured_ms", "seconds")}
    pq.write_table(pa.table(columns | numbers), root / "runs" / "measured" / "results.parquet")
    curve = pa.table({"round": [0, 1], "valid_ms": [2.0, float("inf")], "loss": [1.0, 2.0]})
    pq.write_table(curve, root / "runs" / "trained" / "curve.parquet")
    (root / "runs" / "trained" / "policy.json").write_text('{"card": {"references_ms": {"random": 3.0}}}')
    return root / "runs"


@pytest.fixture
def runs(good, tmp_path):
    shutil.copytree(good, tmp_path / "runs")
    return tmp_path / "runs"


def test_kind_of_a_run_is_read_from_its_file_alone(runs):
    """The kind does not depend on other files: here trainings and evaluations have files of each other."""
    shutil.copy(runs / "measured" / "results.parquet", runs / "trained" / "results.parquet")
    shutil.copy(runs / "trained" / "curve.parquet", runs / "measured" / "curve.parquet")
    found = gather([runs])
    assert (len(found.measured), len(found.learned)) == (2, 2)


def test_gather_reads_search_evaluation_and_training_runs(good):
    found = gather([good])
    assert (len(found.searched), len(found.measured), len(found.learned)) == (4, 2, 2)
    assert list(found.references.values()) == [{"random": 3.0}]
    assert found.searched["tasks"].nunique() == 1


def test_a_run_counts_once_however_its_directory_is_written(good, tmp_path, monkeypatch):
    monkeypatch.chdir(good)
    (tmp_path / "link").symlink_to(good)
    found = gather([Path(), good, Path("..") / good.name / "one", tmp_path / "link"])
    assert (len(found.searched), len(found.measured), len(found.learned)) == (4, 2, 2)
    assert set(found.searched["path"]) == {"one", "two"}


def test_gather_numbers_different_sets_of_tasks_with_equal_descriptions(good, runs, tmp_path):
    """Sets of tasks with unique descriptions have no number."""
    (name,) = gather([good]).searched["tasks"].unique()
    assert name == "2 tasks of 4 tables, dims up to 64, 4 devices, batch 256"
    save_bundle(tmp_path / "models", random_models(), Card())
    others = tuple(toy_task(4, seed=seed) for seed in (1, 0))  # the same in another order
    Search(str(tmp_path / "models"), others, Random(), "three", str(runs / "three")).run()
    found = gather([runs]).searched
    assert {tasks.split(", predicted by ")[0] for tasks in found["tasks"]} == {f"{name} (set 1)", f"{name} (set 2)"}
    assert found.groupby("method")["tasks"].nunique().tolist() == [1, 1, 1]


def test_gather_separates_costs_of_other_models_or_with_the_input_dist(runs):
    tasks, models = tuple(toy_task(4, seed=seed) for seed in range(2)), "roofline:h100"
    for name, count in (("other", False), ("counted", True)):
        Search(models, tasks, Random(), name, str(runs / name), count).run()
    found = gather([runs]).searched.groupby("method")["tasks"].first()
    assert found["other"].endswith(models)
    assert f" {models}, " in found["counted"]
    assert found.nunique() == 3


MARKUP = "[bold]$x$"  # of terminals and of formulas
HOSTILE = [
    None, True, -1, -1.5, 10**30, 1e308, float("nan"), float("inf"), "", "x", MARKUP, "\ud800", "=1", [], [1],
    {}, {"a": 1}, [[[]]], 0, 0.5, 2**63, "../outside.json", "/dev/zero", b"bytes",
]  # fmt: skip


def _columns(table, name, value):
    """Return the table with a column of hostile values, if Arrow can represent these values."""
    array = pa.array([value] * len(table))
    return table.set_column(table.column_names.index(name), name, array)


@pytest.mark.parametrize("step", [2, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("path", ["one/results.parquet", "measured/results.parquet", "trained/curve.parquet"])
def test_gathering_tables_with_wrong_values_raises_only_user_errors(runs, path, step):
    table = pq.read_table(runs / path)
    tried = refused = 0
    for number, name in enumerate(table.column_names):
        for value in HOSTILE[number % step :: step]:
            try:
                pq.write_table(_columns(table, name, value), runs / path)
            except (pa.ArrowException, UnicodeError, OverflowError):
                continue
            tried += 1
            try:
                Report(str(runs), str(runs.parent / "out")).run() if value == MARKUP else gather([runs])
            except UserError:
                refused += 1
        pq.write_table(table.drop_columns([name]), runs / path)
        try:
            gather([runs])
        except UserError as error:
            assert str(runs / path.split("/")[0]) in error.message.where + error.message.what
    assert tried > 30 / step
    assert refused > 10 / step


@pytest.mark.parametrize("path", ["one/run.json", "one/tasks.json", "trained/policy.json"])
def test_gathering_json_with_wrong_values_raises_only_user_errors(runs, path):
    sound, rng, refused = (runs / path).read_bytes(), np.random.default_rng(0), 0
    for _ in range(TRIES):
        (runs / path).write_bytes(change_for(sound)(sound, rng))
        try:
            gather([runs])
        except UserError:
            refused += 1
    assert refused > TRIES / 10


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "path",
    ["one/run.json", "one/results.parquet", "one/tasks.json", "measured/results.parquet", "trained/curve.parquet",
     "trained/policy.json"],
)  # fmt: skip
def test_gathering_a_directory_with_a_pipe_does_not_wait(runs, path):
    (runs / path).unlink()
    os.mkfifo(runs / path)
    if path == "one/run.json":  # no run at all
        assert len(gather([runs]).searched) == 2
    else:
        with refused("run-file-missing", names=[runs / path]):
            gather([runs])


def _runs(*settings, method="neuroshard", tasks=("t",)):
    return [
        (tasks[number % len(tasks)], SearchRun(Path(str(number)), method, (), "cpu", some))
        for number, some in enumerate(settings)
    ]


def test_method_name_of_a_single_run_has_no_settings():
    assert named(_runs({"width": 3}))[Path("0")].method == "neuroshard"
    both = named(_runs({"width": 3}, {"width": 4}, tasks=("one", "other")))
    assert {name.method for name in both.values()} == {"neuroshard"}


def test_runs_that_differ_in_a_number_are_a_sweep():
    found = named(_runs({"grid": {"points": 3}, "width": 1}, {"grid": {"points": 11}, "width": 1}))
    assert [name.method for name in found.values()] == ["neuroshard (grid.points=3)", "neuroshard (grid.points=11)"]
    assert {name.setting for name in found.values()} == {"grid.points of neuroshard"}
    assert [name.value for name in found.values()] == [3.0, 11.0]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"seed": 1}, {"seed": 2}),
        ({"kind": "a"}, {"kind": "b"}),
        ({"on": True}, {"on": False}),
        ({"n": 1}, {"n": None}),
        ({"n": 1}, {}),
        ({"n": 1, "m": 1}, {"n": 2, "m": 2}),
        ({"n": [1]}, {"n": [2]}),
        ({"n": 1}, {"n": 10**400}),
        ({"n": 1}, {"n": float("inf")}),
        ({"n": 1}, {"n": float("nan")}),
    ],
)
def test_runs_that_differ_in_something_else_than_a_number_are_named_but_no_sweep(one, other):
    found = named(_runs(one, other))
    assert len({name.method for name in found.values()}) == 2
    assert {name.setting for name in found.values()} == {None}
    key = next(iter(one))
    assert f"({key}={one[key]}" in found[Path("0")].method


def test_runs_with_equal_settings_are_named_by_paths():
    assert [name.method for name in named(_runs({}, {})).values()] == ["neuroshard (0)", "neuroshard (1)"]


@pytest.mark.parametrize(
    ("method", "setting", "value"),
    [("width=1", "width", 1.0), ("a.b_c=-2.5e3", "a.b_c", -2500.0), ("samples=.5", "samples", 0.5)],
)
def test_methods_named_after_a_number_are_a_sweep(method, setting, value):
    (name,) = named(_runs({}, method=method)).values()
    assert (name.method, name.setting, name.value) == (method, setting, value)


@pytest.mark.parametrize(
    "method", ["a=b", "a=1.2.3", "a=", "=1", "a=1e", "a=1e9999", "a=1e999", "a=1 b", "a=nan", "a=inf"]
)
def test_method_names_without_a_setting_are_kept_whole(method):
    (name,) = named(_runs({}, method=method)).values()
    assert (name.method, name.setting, name.value) == (method, None, None)


def test_runs_with_deeply_nested_settings_are_named():
    deep: dict = {"x": 1}
    for _ in range(500):
        deep = {"a": deep}
    assert len(named(_runs(deep, {"a": 1}))) == 2
