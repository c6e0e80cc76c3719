"""What ends the local search: counts, and a clock only where it is asked for, which then is said."""

import time
import warnings
from dataclasses import replace
from itertools import count

import pytest
from rich.console import Console

import neuroshard as ns
from neuroshard.errors import UserError
from neuroshard.registry import build
from neuroshard.simulator import Simulator
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.local.search import LocalSearch
from neuroshard.stages.search.methods.ablations import NoCommunication, WithModels
from neuroshard.stages.search.methods.heuristics import Random
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.methods.replan import Replan
from neuroshard.stages.search.runs.search import Search
from neuroshard.stages.search.space.catalog import Catalog
from neuroshard.stages.search.space.feasibility import device_memory
from neuroshard.stages.search.space.packing import pack
from neuroshard.testing import random_models, toy_task

CLOCKS = ("time", "monotonic", "perf_counter", "process_time")


class _Clock:
    """`step_s` later whenever it is read."""

    def __init__(self, step_s):
        self._step_s, self.reads = step_s, 0

    def __call__(self):
        self.reads += 1
        return self.reads * self._step_s


def _local(task, simulator):
    catalog = Catalog.checked(task, simulator)
    local = LocalSearch(catalog, simulator, simulator.models.compute)
    return local, local.costed(pack(catalog, device_memory(task)))


def _improved(improvement, clock=lambda: 0.0):
    return improvement.improve(*_local(toy_task(15), Simulator(random_models())), clock=clock)


def test_no_clock_is_read_without_a_limit():
    clock = _Clock(1e6)
    improved = _improved(Improvement(shakes=5), clock)
    assert clock.reads == 0
    assert improved.remark is None


def test_a_limit_that_is_not_reached_changes_nothing():
    free, limited = (_improved(Improvement(shakes=5, time_limit_s=limit)) for limit in (None, 10.0))
    assert (free.best.held == limited.best.held).all()
    assert limited.remark is None


def test_a_limit_that_is_reached_is_said():
    clock = _Clock(1.0)
    improved = _improved(Improvement(shakes=10**6, time_limit_s=50.0), clock)
    assert clock.reads < 60
    assert improved.remark.startswith("time limit: local search stopped after 50 s and ")
    assert "of 1000000 shakes; another run may give another plan" in improved.remark


def test_no_time_at_all_is_a_limit_too():
    improved = _improved(Improvement(time_limit_s=0), _Clock(0))
    assert "after 0 s and 0 of 200 shakes" in improved.remark


def test_plans_looked_at_are_a_limit():
    few, more, all_of_them = (_improved(Improvement(shakes=50, max_plans=most)) for most in (1, 20_000, None))
    assert few.best.cost_ms >= more.best.cost_ms >= all_of_them.best.cost_ms
    assert few.best.cost_ms > all_of_them.best.cost_ms
    local, state = _local(toy_task(15), Simulator(random_models()))
    Improvement(shakes=10**6, max_plans=20_000).improve(local, state)
    assert 20_000 <= local.looked < 40_000


def test_small_tasks_get_all_their_shakes(monkeypatch):
    task = toy_task(50)
    local, state = _local(task, Simulator(random_models()))
    shaken = []
    others = local.others
    monkeypatch.setattr(
        local, "others", lambda plan, steps, seeds, *worth: shaken.extend(seeds) or others(plan, steps, seeds, *worth)
    )
    Improvement().improve(local, state)
    assert set(shaken) == set(range(200))


@pytest.mark.parametrize("name", ["neuroshard", "neuroshard_published", "replan", "random"])
def test_a_slow_clock_changes_no_plan(name, monkeypatch):
    """Whatever a search might look at, time has jumped by hours: plans are the same."""
    task, simulator = toy_task(20), Simulator(random_models())
    settings = {"start": Random(1).search(task, simulator)} if name == "replan" else {}
    searcher = build("searcher", name) if not settings else Replan(**settings)
    expected = searcher.search(task, simulator)
    ticks = count(step=10_000)
    for clock in CLOCKS:
        monkeypatch.setattr(time, clock, lambda: float(next(ticks)))
    assert searcher.search(task, simulator) == expected


def test_time_limits_are_off_by_default():
    for name in ("neuroshard", "replan"):
        searcher = build("searcher", name, **({"start": "none.json"} if name == "replan" else {}))
        assert searcher.improvement.time_limit_s is None
    assert build("searcher", "neuroshard").improvement == Improvement()


def test_searches_hand_on_what_a_limit_cut_short():
    task, simulator = toy_task(20), Simulator(random_models())
    hasty = Improvement(time_limit_s=0.0)
    found = NeuroShard(improvement=hasty).find(task, simulator)
    assert found.warning.startswith("time limit: ")
    assert WithModels(NeuroShard(improvement=hasty), NoCommunication()).find(task, simulator).warning == found.warning
    assert Replan(found.plan, improvement=hasty).find(task, simulator).warning == found.warning
    assert NeuroShard(improvement=replace(hasty, time_limit_s=None, shakes=1)).find(task, simulator).warning is None
    with pytest.warns(UserWarning, match="time limit: local search stopped after 0 s"):
        ns.search(task, simulator, improvement={"time_limit_s": 0.0})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ns.search(task, simulator, improvement={"shakes": 1})


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("time_limit_s", -1), ("time_limit_s", float("inf")), ("time_limit_s", float("nan")), ("time_limit_s", "2"),
        ("time_limit_s", True), ("shakes", -1), ("shakes", 1.5), ("shake_steps", None), ("max_plans", 0),
        ("max_plans", float("inf")), ("seed", -1),
    ],
)  # fmt: skip
def test_impossible_settings_are_refused_at_once(setting, value):
    with pytest.raises(UserError, match=f"{setting}=") as caught:
        Improvement(**{setting: value})
    assert "\n" not in str(caught.value)


def test_runs_record_what_a_limit_cut_short(tmp_path):
    task = replace(toy_task(8), batch_size=65536)
    hasty = NeuroShard(improvement=Improvement(time_limit_s=0.0), forms=("columns",))
    result = Search("roofline:h100", (task, task), hasty, "neuroshard", str(tmp_path / "run")).run()
    assert [record.warnings.splitlines()[0][:11] for record in result.saved.records] == ["time limit:"] * 2
    console = Console(record=True, width=200)
    result.show(console)
    assert "task 0: time limit: local search stopped after 0 s" in console.export_text()
