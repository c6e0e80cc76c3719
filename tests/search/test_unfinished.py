"""Search runs that were killed go on; two at once are refused."""

import pytest

from neuroshard.errors import UserError
from neuroshard.files import exclusive
from neuroshard.models.bundle import Card, save_bundle
from neuroshard.search.heuristics import Greedy, Random
from neuroshard.search.runs import is_finished
from neuroshard.search.search_run import Search
from neuroshard.testing import random_models, toy_task


class _Killed(Exception):
    pass


class _Counting(Random):
    """Random placement that counts its calls, and dies at one of them."""

    calls = 0
    dies_at = None

    def search(self, task, simulator):
        type(self).calls += 1
        if type(self).calls == self.dies_at:
            raise _Killed
        return super().search(task, simulator)


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
    assert not is_finished(tmp_path / "run")
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
        with pytest.raises(UserError, match="holds a run already"):
            other.run()


def test_two_runs_at_once_are_refused(run, tmp_path):
    with exclusive(tmp_path / "run"), pytest.raises(UserError, match="another run is at work"):
        run(Random()).run()
    run(Random()).run()


def test_damaged_records_say_what_to_delete(run, killed, tmp_path):
    (tmp_path / "run" / "records" / "task-0001.json").write_text("{}")
    with pytest.raises(UserError, match=r"task-0001\.json is malformed"):
        run(_Counting()).run()
