"""Search runs: killed runs resume, a second run at once is refused, damaged files are refused in one line."""

import json

import numpy as np
import pandas as pd
import pytest

from neuroshard.measure.store.run_directory import RunDirectory
from neuroshard.models.bundle import Card, save_bundle
from neuroshard.plumbing.files import exclusive
from neuroshard.searching.searcher import Searcher
from neuroshard.stages.search.methods.ablations import NoCommunication, SingleTableCosts, WithModels
from neuroshard.stages.search.methods.heuristics import Greedy, Random
from neuroshard.stages.search.results.search_results import SearchRun
from neuroshard.stages.search.runs.search import Search
from neuroshard.testing import random_models, toy_task
from tests.kit.messages import refused


class _Killed(Exception):
    pass


class _Counting(Random):
    """A random searcher that counts its calls, and fails at one of them."""

    calls = 0
    dies_at = None

    def find(self, task, simulator):
        type(self).calls += 1
        if type(self).calls == self.dies_at:
            raise _Killed
        return super().find(task, simulator)


@pytest.fixture
def run(tmp_path):
    save_bundle(tmp_path / "models", random_models(), Card())
    tasks = tuple(toy_task(5, seed=seed) for seed in range(5))

    def make(searcher, **settings):
        models = str(tmp_path / "models")
        given = {"model": models, "tasks": tasks, "method": "some", "out": str(tmp_path / "run")} | settings
        return Search(searcher=searcher, **given)

    return make


@pytest.fixture
def killed(run, monkeypatch):
    """A run that was interrupted in its third task."""
    monkeypatch.setattr(_Counting, "calls", 0)
    monkeypatch.setattr(_Counting, "dies_at", 3)
    with pytest.raises(_Killed):
        run(_Counting()).run()
    monkeypatch.setattr(_Counting, "dies_at", None)


def test_killed_search_run_searches_only_missing_tasks(run, killed, tmp_path):
    assert not RunDirectory(tmp_path / "run").finished
    found = run(_Counting()).run().saved
    assert _Counting.calls == 3 + 3  # two were done
    whole = run(Random(), out=str(tmp_path / "whole")).run().saved
    assert found.plans() == whole.plans()
    assert [record.predicted_ms for record in found.records] == [record.predicted_ms for record in whole.records]
    assert run(_Counting()).run().saved.plans() == whole.plans()
    assert _Counting.calls == 6


def test_search_into_the_directory_of_another_run_is_refused(run, tmp_path):
    run(Random()).run()
    others = {
        "settings.seed=0": run(Random(seed=1)),
        "class='Random'": run(Greedy("dim")),
        "tasks": run(Random(), tasks=(toy_task(4),)),
    }
    for what, other in others.items():
        with refused("out-begun-otherwise", names=[tmp_path / "run", what]):
            other.run()


class _Attributes(Searcher):
    """A searcher that is not a dataclass."""

    def __init__(self, **settings):
        vars(self).update(settings)

    def find(self, task, simulator):
        return Random().find(task, simulator)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (WithModels(Random(), NoCommunication()), WithModels(Random(), SingleTableCosts())),
        (_Attributes(seed=0), _Attributes(seed=1)),
        (_Attributes(rest=Random()), _Attributes(rest=Greedy("dim"))),
        (_Attributes(rest=[Random()]), _Attributes(rest=[_Counting()])),
        (_Attributes(rest={"a": Greedy("dim")}), _Attributes(rest={"a": Greedy("size")})),
    ],
)
def test_search_into_the_directory_of_a_run_that_differs_in_a_part_is_refused(run, tmp_path, one, other):
    run(one).run()
    with refused("out-begun-otherwise", names=[tmp_path / "run"]):
        run(other).run()


@pytest.mark.parametrize("value", [np.arange(3), object(), {"a": [np.arange(3)]}, Random])
def test_setting_that_json_cannot_store_is_refused_before_the_search(run, tmp_path, value):
    with refused("searcher-setting-not-plain", names=["searcher.weights"]):
        run(_Attributes(weights=value)).run()
    assert not (tmp_path / "run").exists()


def test_search_is_refused_to_continue_with_models_whose_config_has_changed(run, monkeypatch):
    models = {"model": "roofline:h100"}
    with monkeypatch.context() as changed:
        changed.setattr("neuroshard.models.cost_models.described", lambda *_: {"hbm_gb_per_s": 1.0})
        run(Random(), **models).run()
    with refused("out-begun-otherwise", names=["other models"]):
        run(Random(), **models).run()


def test_second_search_run_in_a_directory_in_use_is_refused(run, tmp_path):
    with exclusive(tmp_path / "run"), refused("out-in-use", names=[tmp_path / "run"]):
        run(Random()).run()
    run(Random()).run()


def test_errors_of_damaged_records_name_the_file_to_delete(run, killed, tmp_path):
    path = tmp_path / "run" / "records" / "task-0001.json"
    path.write_text('{"format": "neuroshard-task-1"}')
    with refused("field-missing", where=f"task {path}", names=["'task'"]) as caught:
        run(_Counting()).run()
    assert str(path) in caught.value.message.remedy


@pytest.mark.parametrize(
    ("change", "code", "names"),
    [
        ({"task": 2}, "stored-part-wrong", ["task 2"]),
        ({"task": True}, "value-outside-limits", ["task", True]),
        ({"plan": "../outside.json"}, "search-record-plan-outside", ["'../outside.json'"]),
        ({"plan": "/dev/zero"}, "search-record-plan-outside", ["'/dev/zero'"]),
        ({"plan": "a/../../b"}, "search-record-plan-outside", ["'a/../../b'"]),
        ({"plan": "."}, "search-record-plan-outside", ["'.'"]),
        ({"plan": 3}, "value-outside-limits", ["plan", 3]),
        ({"plan": None}, "search-record-plan-or-error", ["task 1"]),
        ({"error": "x"}, "search-record-plan-or-error", ["task 1"]),
        ({"seconds": -1}, "value-outside-limits", ["seconds", -1]),
        ({"predicted_ms": 1e300}, "value-outside-limits", ["predicted_ms", 1e300]),
        ({"predicted_ms": "5"}, "value-outside-limits", ["predicted_ms", "'5'"]),
        ({"warnings": ["x"]}, "value-outside-limits", ["warnings", ["x"]]),
        ({"sekonds": 1}, "unknown-name", ["'sekonds'"]),
    ],
)
def test_reading_records_with_wrong_values_is_refused_in_one_line(run, killed, tmp_path, change, code, names):
    path = tmp_path / "run" / "records" / "task-0001.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with refused(code, where="" if code == "stored-part-wrong" else f"task {path}", names=names) as caught:
        run(_Counting()).run()
    assert str(path) in caught.value.message.remedy


@pytest.mark.parametrize(
    ("change", "code", "names"),
    [
        (lambda frame: frame.assign(plan="../outside.json"), "search-record-plan-outside", ["'../outside.json'"]),
        (lambda frame: frame.assign(plan="/dev/zero"), "search-record-plan-outside", ["'/dev/zero'"]),
        (lambda frame: frame.assign(plan=7), "value-outside-limits", ["plan", 7]),
        (lambda frame: frame.assign(task=frame.task + 1), "search-run-task-numbers", ["5 tasks"]),
        (lambda frame: frame.assign(task=0), "search-run-task-numbers", ["5 tasks"]),
        (lambda frame: frame[:3], "search-run-task-count", ["3 tasks", "5 tasks"]),
        (lambda frame: frame.drop(columns="seconds"), "field-missing", ["'seconds'"]),
        (lambda frame: frame.assign(seconds="1"), "value-outside-limits", ["seconds", "'1'"]),
        (lambda frame: frame.assign(sekonds=1), "unknown-name", ["'sekonds'"]),
    ],
)
def test_reading_results_with_wrong_values_is_refused_in_one_line(run, tmp_path, change, code, names):
    run(Random()).run()
    path = tmp_path / "run" / "results.parquet"
    change(pd.read_parquet(path)).to_parquet(path, index=False)
    with refused(code, where="" if code == "search-run-task-count" else str(path), names=names):
        run(Random()).run()


def test_results_are_read_from_any_directory(run, tmp_path):
    name = tmp_path / "searcher=random,seed=1"  # as sweeps name them: no partition of a data set
    run(Random(), out=str(name)).run()
    assert [record.task for record in SearchRun.load(name).records] == list(range(5))
