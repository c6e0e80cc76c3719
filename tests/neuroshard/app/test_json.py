"""`format=json`: standard output is one JSON object."""

import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from neuroshard.bundles import shipped_names
from neuroshard.models import Card, save_bundle
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.output import as_json, stdout_to_stderr
from neuroshard.stages.search.results.search_results import SearchRun
from neuroshard.testing import random_models
from tests.kit.commands import done, run_command


@pytest.fixture
def search(tmp_path, monkeypatch):
    """The arguments of a search in an empty directory, with a table file and models in another directory."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    save_bundle(tmp_path / "models", random_models(), Card())
    (tmp_path / "tables.csv").write_text("name,rows,dim,pooling_factor\na,100,16,2\nb,50,8,1\nc,70,32,3\n")
    return "search", f"model={tmp_path}/models", f"tables={tmp_path}/tables.csv", "batch_size=256"


def _object(capsys, *arguments):
    facts = json.loads(done(capsys, *arguments, "format=json"))
    assert isinstance(facts, dict)
    return facts


def test_search_with_json_prints_the_record_of_each_task(search, capsys):
    facts = _object(capsys, *search, "out=found", "searcher=random")
    (record,) = SearchRun.load(Path("found")).records
    (task,) = facts["tasks"]
    assert (facts["directory"], facts["method"]) == ("found", "random")
    assert (task["predicted_ms"], task["plan"], task["error"]) == (record.predicted_ms, record.plan, None)
    code, out, _ = run_command(capsys, *search, "format=json", "topology.memory_bytes=1500", "out=none")
    assert (code, out) == (2, "")


def test_sweep_with_json_prints_settings_and_outcome_of_each_job(search, capsys):
    jobs = _object(capsys, *search, "-m", "searcher=random,dim_greedy")["jobs"]
    assert all(f"searcher={name}" in job["settings"] for name, job in zip(("random", "dim_greedy"), jobs, strict=True))
    assert all(len(job["outcome"]["costs_ms"]) == 1 for job in jobs)


def test_json_of_a_sweep_over_devices_has_devices_headroom_and_scope_of_each_plan(search, capsys):
    command, _, *settings = search
    sweep = command, "model=cpu", *settings, "-m", "searcher=random", "topology.num_devices=2,4"
    outcomes = [job["outcome"] for job in _object(capsys, *sweep)["jobs"]]
    plans = [Plan.load(path) for path in sorted(Path("runs/search").glob("*/plans/*.json"))]
    assert [outcome["devices"] for outcome in outcomes] == [2, 4]
    free = [plan.task.shard_memory[0] - max(plan.device_bytes) for plan in plans]
    assert [outcome["headroom_bytes"] for outcome in outcomes] == free
    assert [outcome["scopes"] for outcome in outcomes] == [[plan.prediction.scope] for plan in plans]


def test_explain_with_json_prints_costs_and_bytes_of_each_plan(search, capsys):
    done(capsys, *search, "out=a", "searcher=random")
    done(capsys, *search, "out=b", "searcher=dim_greedy")
    paths = [f"{name}/plans/task-0000.json" for name in "ab"]
    facts = _object(capsys, "explain", *paths)
    for path, explained in zip(paths, facts["plans"], strict=True):
        plan = Plan.load(path)
        assert explained["plan"] == path
        assert explained["predicted_ms"] == pytest.approx(plan.prediction.cost_ms)
        assert explained["predicted_ms"] == max(device["cost_ms"] for device in explained["devices"])
        assert len(explained["shards"]) == len(plan.placements)
        assert [device["size_bytes"] for device in explained["devices"]] == [*plan.device_bytes]


def test_models_with_json_prints_bundles_and_datasheets(capsys):
    listed = _object(capsys, "models")
    assert [bundle["name"] for bundle in listed["bundles"]] == [*shipped_names()]
    assert {"name", "source"} == {*listed["datasheets"][0]}
    assert _object(capsys, "models", "roofline:h100").keys() >= {"figures"}


@dataclass(frozen=True)
class _Row:
    known: float
    unknown: float
    array: np.ndarray
    path: Path


def test_as_json_writes_numpy_numbers_as_plain_numbers_and_nan_as_null():
    row = _Row(np.float64(1.5), math.nan, np.arange(2), Path("a/b"))
    assert json.loads(as_json(row)) == {"known": 1.5, "unknown": None, "array": [0, 1], "path": "a/b"}


def test_stdout_to_stderr_redirects_prints_of_libraries_and_processes(capfd):
    with stdout_to_stderr():
        print("python")
        os.write(1, b"library\n")
        subprocess.run([sys.executable, "-c", "print('process')"], check=True)
    print("result")
    captured = capfd.readouterr()
    assert captured.out == "result\n"
    assert sorted(captured.err.split()) == ["library", "process", "python"]
