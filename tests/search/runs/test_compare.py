"""`compare=torchrec`: costs of TorchRec's default plan in searches and explanations."""

import json
import sys
from dataclasses import replace

import pytest

from neuroshard import Constraints, CostModels, Plan, Simulator, TableRule, Task, Topology
from neuroshard.models import Card, save_bundle
from neuroshard.plumbing.errors import MissingPackageError
from neuroshard.plumbing.output import as_json
from neuroshard.stages.search.methods.heuristics import Greedy
from neuroshard.stages.search.methods.torchrec_default import TORCHREC_DEFAULT, torchrec_default
from neuroshard.stages.search.runs.explain import Explain
from neuroshard.stages.search.runs.search import Search
from neuroshard.testing import random_models, toy_task
from tests.kit.commands import shown
from tests.kit.messages import refused
from tests.kit.searches import H100
from tests.kit.tasks import plain_task

ANY = random_models(2)


@pytest.fixture
def bundle(tmp_path):
    save_bundle(tmp_path / "models", ANY, Card())
    return str(tmp_path / "models")


def _search(bundle, tmp_path, *tasks, compare="torchrec", out="out"):
    return Search(bundle, tasks, Greedy("dim"), "dim", str(tmp_path / out), compare=compare)


def _tasks():
    whole = Constraints((TableRule("*", sharding_types=("column_wise",)),))
    return [replace(toy_task(3, num_devices=2, seed=seed), constraints=whole) for seed in range(2)]


def test_search_with_compare_shows_torchrec_costs_and_keeps_its_plans(bundle, tmp_path):
    tasks = _tasks()
    result = _search(bundle, tmp_path, *tasks, Task(tasks[0].tables, Topology(2, tasks[0].size_bytes // 3), 256)).run()
    alone = _search(bundle, tmp_path, *tasks, compare=None, out="alone").run()
    assert [record.predicted_ms for record in result.saved.records[:2]] == [r.predicted_ms for r in alone.saved.records]
    assert alone.compared == ()
    facts = json.loads(as_json(result.facts))["compared"]
    assert [compared["task"] for compared in facts] == [0, 1]  # no plan of task 2 is there to be compared
    for compared in facts:
        if compared["plan"] is not None:
            plan = Plan.load(tmp_path / "out" / compared["plan"])
            assert compared["predicted_ms"] == pytest.approx(plan.prediction.cost_ms)
    assert "TorchRec ms" in shown(result)
    assert _search(bundle, tmp_path, *tasks, out="alone").run().compared != ()  # also of a run that is finished


def test_an_explained_plan_is_compared_once_for_each_task(tmp_path, monkeypatch):
    task, found = plain_task([16, 8, 8]), []

    def counted(task, simulator):
        found.append(task)
        return torchrec_default(task, simulator)

    monkeypatch.setattr("neuroshard.stages.search.runs.explain.torchrec_default", counted)
    for score in ("dim", "size"):
        H100.predicted(Greedy(score).find(task, H100).plan).save(tmp_path / f"{score}.json")
    paths = tuple(str(tmp_path / f"{score}.json") for score in ("dim", "size"))
    result = Explain(paths, "roofline:h100", compare="torchrec").run()
    cost_ms = torchrec_default(task, H100).prediction.cost_ms
    assert [plan.heuristics[TORCHREC_DEFAULT].total_ms for plan in result.explanations] == [cost_ms] * 2
    assert len(found) == 1
    assert TORCHREC_DEFAULT not in Explain(paths, "roofline:h100").run().explanations[0].heuristics


@pytest.mark.parametrize("models", ["cpu", "roofline:h100"])
def test_torchrec_default_plans_sequence_tables_and_odd_names(models):
    simulator = Simulator(CostModels.load(models))
    task = plain_task([16, 8, 8, 16], devices=4)
    tables = tuple(replace(table, name=f"odd name. {table.name}") for table in task.tables)
    task = replace(task, tables=(*tables[:3], replace(tables[3], pooled=False)), topology=Topology(4, 1 << 30))
    plan = torchrec_default(task, simulator)
    assert plan.task == task
    assert plan.prediction.cost_ms == pytest.approx(simulator.cost(task, plan).total_ms)


def test_torchrec_default_refuses_a_task_without_a_plan():
    with refused("torchrec-default-no-plan"):
        torchrec_default(plain_task([64, 8], 100_000, memory_bytes=1 << 20), H100)


def test_a_missing_torchrec_is_named_before_any_work(bundle, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "neuroshard.torchrec", raising=False)
    monkeypatch.setitem(sys.modules, "torchrec", None)
    with refused("torchrec-not-installed", kind=MissingPackageError):
        _search(bundle, tmp_path, *_tasks()).run()
    assert not (tmp_path / "out").exists()
    with refused("torchrec-not-installed", kind=MissingPackageError):
        Explain(str(tmp_path / "none.json"), compare="torchrec").run()
