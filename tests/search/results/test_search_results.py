"""Search runs that were killed go on; two at once are refused; damaged records and results are one line."""

import json

import pandas as pd
import pytest

from neuroshard.models.bundle import Card, save_bundle
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import exclusive
from neuroshard.records.run_directory import RunDirectory
from neuroshard.stages.search.methods.heuristics import Greedy, Random
from neuroshard.stages.search.results.search_results import SearchRun
from neuroshard.stages.search.runs.search import Search
from neuroshard.testing import random_models, toy_task
from tests.kit.messages import refused


class _Killed(Exception):
    pass


class _Counting(Random):
    """Random placement that counts its calls, and dies at one of them."""

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
        given = {"tasks": tasks, "method": "some", "out": str(tmp_path / "run")} | settings
        return Search(model=str(tmp_path / "models"), searcher=searcher, **given)

    return make


@pytest.fixture
def killed(run, monkeypatch):
    """A run that died in its third task."""
    monkeypatch.setattr(_Counting, "calls", 0)
    monkeypatch.setattr(_Counting, "dies_at", 3)
    with pytest.raises(_Killed):
        run(_Counting()).run()
    monkeypatch.setattr(_Counting, "dies_at", None)


def test_a_killed_run_searches_only_what_is_missing(run, killed, tmp_path):
    assert not RunDirectory(tmp_path / "run").finished
    found = run(_Counting()).run().saved
    assert _Counting.calls == 3 + 3  # two were done
    whole = run(Random(), out=str(tmp_path / "whole")).run().saved
    assert found.plans() == whole.plans()
    assert [record.predicted_ms for record in found.records] == [record.predicted_ms for record in whole.records]
    assert run(_Counting()).run().saved.plans() == whole.plans()
    assert _Counting.calls == 6


def test_another_runs_directory_is_refused(run):
    run(Random()).run()
    for other in (run(Random(seed=1)), run(Greedy("dim")), run(Random(), tasks=(toy_task(4),))):
        with refused("out-begun-otherwise"):
            other.run()


def test_two_runs_at_once_are_refused(run, tmp_path):
    with exclusive(tmp_path / "run"), refused("out-in-use"):
        run(Random()).run()
    run(Random()).run()


def test_damaged_records_say_what_to_delete(run, killed, tmp_path):
    (tmp_path / "run" / "records" / "task-0001.json").write_text('{"format": "neuroshard-task-1"}')
    with refused("field-missing"):
        run(_Counting()).run()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": 2}, "is of task 2"),
        ({"task": True}, "task=True must be a whole number"),
        ({"plan": "../outside.json"}, r"'../outside.json' must be a file in the run's directory"),
        ({"plan": "/dev/zero"}, "'/dev/zero' must be a file in the run's directory"),
        ({"plan": "a/../../b"}, "must be a file in the run's directory"),
        ({"plan": "."}, "must be a file in the run's directory"),
        ({"plan": 3}, "plan=3 must be text or nothing"),
        ({"plan": None}, "either a plan or an error"),
        ({"error": "x"}, "either a plan or an error"),
        ({"seconds": -1}, "seconds=-1"),
        ({"predicted_ms": 1e300}, r"predicted_ms=1e\+300 must be a number of at most"),
        ({"predicted_ms": "5"}, "predicted_ms='5' must be a number"),
        ({"warnings": ["x"]}, r"warnings=\['x'\] must be text or nothing"),
        ({"sekonds": 1}, "unknown field 'sekonds'"),
    ],
)
def test_wrong_values_in_records_are_one_line(run, killed, tmp_path, change, message):
    path = tmp_path / "run" / "records" / "task-0001.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=message) as caught:
        run(_Counting()).run()
    assert "task-0001.json" in str(caught.value)
    assert str(caught.value).endswith("delete it, and the task is searched again")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda frame: frame.assign(plan="../outside.json"), "must be a file in the run's directory"),
        (lambda frame: frame.assign(plan="/dev/zero"), "must be a file in the run's directory"),
        (lambda frame: frame.assign(plan=7), "plan=7 must be text or nothing"),
        (lambda frame: frame.assign(task=frame.task + 1), "tasks must be 0, 1, ..., 4, each once"),
        (lambda frame: frame.assign(task=0), "each once"),
        (lambda frame: frame[:3], "holds results of 3 tasks, not 5"),
        (lambda frame: frame.drop(columns="seconds"), "'seconds' is missing"),
        (lambda frame: frame.assign(seconds="1"), "seconds='1' must be a number"),
        (lambda frame: frame.assign(sekonds=1), "unknown field 'sekonds'"),
    ],
)
def test_wrong_values_in_results_are_one_line(run, tmp_path, change, message):
    run(Random()).run()
    path = tmp_path / "run" / "results.parquet"
    change(pd.read_parquet(path)).to_parquet(path, index=False)
    with pytest.raises(UserError, match=message):
        run(Random()).run()


def test_results_are_read_from_any_directory(run, tmp_path):
    name = tmp_path / "searcher=random,seed=1"  # as sweeps name them: no partition of a data set
    run(Random(), out=str(name)).run()
    assert [record.task for record in SearchRun.load(name).records] == list(range(5))
