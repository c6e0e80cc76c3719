"""Every reader refuses damaged files in one line.

NEUROSHARD_FUZZ=10000 pytest tests/test_damaged_files.py tries 10,000 of each kind instead of a few.
"""

import json
import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from neuroshard import CostModels, Found, Plan, Simulator, UserError, load_tables
from neuroshard.app.arguments import for_hydra
from neuroshard.measure.store import DataDirectory, Manifest
from neuroshard.measure.store.noise import fastest
from neuroshard.measure.store.plan_measurements import PlanMeasurement, passes_in
from neuroshard.measure.store.run_directory import RunDirectory
from neuroshard.measure.store.samples import CommSample, ComputeSample, Measurement, Repeats
from neuroshard.models import Card, load_bundle, save_bundle
from neuroshard.plumbing.registry import instantiate_config
from neuroshard.stages.search.evaluate.candidate_plan_files import (
    Searched,
    candidate_plan_rows,
    read_searched,
    write_searched,
)
from neuroshard.stages.search.evaluate.kernel_measurer import rows_of_cost
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.heuristics import Random
from neuroshard.stages.search.methods.replan import Replan
from neuroshard.stages.search.report.gather import gather
from neuroshard.stages.search.results.search_results import SearchRun
from neuroshard.stages.search.rl.agent import load_agent
from neuroshard.stages.search.runs.search import Search
from neuroshard.tasks.constraints import load_constraints
from neuroshard.tasks.draw import from_file, save_tasks
from neuroshard.testing import constrained_task, random_models, toy_tables, toy_task
from neuroshard.torchrec import load_sharding_plan, save_sharding_plan, to_sharding_plan
from neuroshard.torchrec.kept import KeptPlan
from neuroshard.words.fingerprint import Fingerprint
from tests.kit.bundles import newer_models
from tests.kit.costs import cost_of
from tests.kit.damage import damaged
from tests.kit.hydra_configs import compose_config
from tests.kit.plans import whole

TRIES = int(os.environ.get("NEUROSHARD_FUZZ", "15"))


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A directory with an undamaged file of every kind."""
    root = tmp_path_factory.mktemp("good")
    task = constrained_task(1)
    plan = whole(toy_task(5), *range(4))
    plan.save(root / "plan.json")
    save_tasks(root / "tasks.json", [toy_task(4), task])
    save_sharding_plan(to_sharding_plan(plan, "ebc"), root / "sharding.json")
    KeptPlan({"tables": "digest"}, plan, to_sharding_plan(plan, "ebc"), (1 << 20,), (0,)).save(root / "kept.json")
    frame = pd.DataFrame({"name": ["a", "b"], "rows": [10, 20], "dim": [4, 8], "pooling_factor": [1.0, 2.5]})
    frame.to_csv(root / "tables.csv", index=False)
    frame.to_parquet(root / "tables.parquet")
    frame.to_json(root / "tables.json")
    lists = frame.assign(reuse=[[0.5, 0.5] + [0.0] * 15] * 2, reuse_batch_size=64)
    lists.to_json(root / "list.json", orient="records")
    lists.to_parquet(root / "list.parquet")
    rules = {"rules": [{"tables": "a*", "max_shards": 1}], "pinned": [{"table": "b", "dim": 4, "devices": [0]}]}
    (root / "rules.json").write_text(json.dumps(rules))
    lookups = (torch.arange(12) % 5, torch.arange(0, 13, 2), torch.full((2, 3), 2))
    torch.save(lookups, root / "lookups.pt")
    (root / "rules.yaml").write_text("rules:\n- {tables: a*, max_shards: 1}\ntogether: [[a, b]]\n")
    save_bundle(root / "bundle", random_models(), Card())
    save_bundle(root / "newer", newer_models(), Card())
    tasks = tuple(toy_task(4, seed=seed) for seed in range(2))
    Search(str(root / "bundle"), tasks, Random(), "random", str(root / "runs" / "one")).run()
    write_searched(root / "runs" / "one", 0, Searched(Found(plan), 1.0, (plan, plan)))
    cost = cost_of(*np.tile([1.0, 2.0, 3.0, 4.0], (3, 1)))
    for number in range(2):
        failed = PlanMeasurement(1, number, error="MemoryError")
        passes_in(root / "runs" / "one", 0, (plan, plan)).write(number, (*rows_of_cost(0, number, cost), failed))
    _data(root / "data")
    installed = Path(load_agent.__code__.co_filename).parent / "policies" / "dreamshard"
    (root / "policy").mkdir()
    for file in installed.iterdir():
        if file.suffix in (".json", ".safetensors"):
            (root / "policy" / file.name).write_bytes(file.read_bytes())
    return root


HERE = Fingerprint("cpu", "x", 1, 1)
MANIFEST = Manifest(asdict(HERE), {"torch": "2"}, {"rounds": [1, 2], "timing": {"live": 3}}, 0)


def _data(path):
    directory, tables = DataDirectory(path), toy_tables(4)
    directory.begin(MANIFEST, tables)
    repeats = Repeats(np.array([1.0, 2.0]), np.array([10.0, 11.0]))
    exchanges = Repeats(np.arange(8.0).reshape(2, 2, 2), np.array([1.0, 2.0]))
    failed = Measurement(ComputeSample(tables[1:], 64), 1, "test", 0, None, "MemoryError")
    directory.compute().write(0, [Measurement(ComputeSample(tables[:2], 64), 0, "train", 0, repeats), failed])
    directory.comm().write(0, [Measurement(CommSample.of_columns((16, 4), (0.0, 2.5), 64), 0, "valid", 0, exchanges)])


def _data_again(root):
    directory = DataDirectory(root / "data")
    directory.manifest().check_hardware(HERE, directory.path)


def _go_on(root):
    directory = DataDirectory(root / "data")
    directory.begin(MANIFEST, toy_tables(4))
    return fastest(directory.compute().each()), fastest(directory.comm().each())


def _search(root):
    tasks = tuple(toy_task(4, seed=seed) for seed in range(2))
    return Search(str(root / "bundle"), tasks, Random(), "random", str(root / "runs" / "one"))


def _resume(root):
    """A search as if it had been killed just before its end."""
    run = _search(root)
    RunDirectory(Path(run.out)).begin(run._depends(Simulator(CostModels.load(run.model))), run.tasks)
    return [SearchRun.record_parts(Path(run.out)).get(number) for number in range(2)], Path(run.out)


def _replan(root):
    simulator = Simulator(random_models())
    return Replan(str(root / "plan.json"), improvement=Improvement(perturbations=1)).find(toy_task(5), simulator).plan


def _finished(root):
    _search(root).run().show(Console(quiet=True))


def _candidate_plans(root):
    return candidate_plan_rows(0, read_searched(root / "runs" / "one", 0, toy_task(5)))


def _used(plan):
    return plan.violations, plan.device_dims, plan.to_json()


READERS = {
    "plan": ("plan.json", lambda root: _used(Plan.load(root / "plan.json"))),
    "plan to start from": ("plan.json", _replan),
    "tasks": ("tasks.json", lambda root: from_file(str(root / "tasks.json"))),
    "TorchRec's plan": ("sharding.json", lambda root: load_sharding_plan(root / "sharding.json")),
    "kept plan": ("kept.json", lambda root: KeptPlan.load(root / "kept.json")),
    "tables, CSV": ("tables.csv", lambda root: load_tables(str(root / "tables.csv"))),
    "tables, Parquet": ("tables.parquet", lambda root: load_tables(str(root / "tables.parquet"))),
    "tables, JSON": ("tables.json", lambda root: load_tables(str(root / "tables.json"))),
    "tables in a list": ("list.json", lambda root: load_tables(str(root / "list.json"))),
    "tables with lists": ("list.parquet", lambda root: load_tables(str(root / "list.parquet"))),
    "lookups": ("lookups.pt", lambda root: load_tables("dlrm", path=str(root / "lookups.pt"))),
    "constraints, JSON": ("rules.json", lambda root: load_constraints(str(root / "rules.json"))),
    "constraints": ("rules.yaml", lambda root: load_constraints(str(root / "rules.yaml"))),
    "bundle": ("bundle/bundle.json", lambda root: load_bundle(root / "bundle")),
    "bundle's weights": ("bundle/weights-*.safetensors", lambda root: load_bundle(root / "bundle")),
    "bundle of today": ("newer/bundle.json", lambda root: load_bundle(root / "newer")),
    "manifest": ("data/manifest.json", _data_again),
    "manifest of a run that goes on": ("data/manifest.json", _go_on),
    "measured tables": ("data/tables.parquet", _go_on),
    "compute part": ("data/compute/part-00000.parquet", _go_on),
    "exchange part": ("data/comm/part-00000.parquet", _go_on),
    "run": ("runs/one/run.json", lambda root: SearchRun.load(root / "runs" / "one")),
    "results": ("runs/one/results.parquet", lambda root: SearchRun.load(root / "runs" / "one")),
    "record": ("runs/one/records/task-0001.json", lambda root: SearchRun.record_parts(root / "runs" / "one").get(1)),
    "record of a run that goes on": ("runs/one/records/task-0000.json", _resume),
    "settings of a run that goes on": ("runs/one/settings.json", _resume),
    "tasks of a run that goes on": ("runs/one/tasks.json", _resume),
    "results of a finished run": ("runs/one/results.parquet", _finished),
    "candidate plans": ("runs/one/candidate_plans/task-0000.json", _candidate_plans),
    "pass over candidate plans": ("runs/one/measurements/task-0000/pass-0000.parquet", _candidate_plans),
    "plans of a finished run": (
        "runs/one/plans/task-0000.json",
        lambda root: SearchRun.load(root / "runs/one").plans(),
    ),
    "runs to report": ("runs/one/tasks.json", lambda root: gather([root / "runs"])),
    "policy": ("policy/policy.json", lambda root: load_agent(str(root / "policy"))),
    "policy's weights": ("policy/policy.safetensors", lambda root: load_agent(str(root / "policy"))),
}


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.timeout(3600)
def test_reading_a_damaged_file_is_refused_in_one_line(good, kind):
    name, read = READERS[kind]
    (path,) = good.glob(name)
    sound = path.read_bytes()
    read(good)
    refused = 0
    try:
        for seed in range(TRIES):
            path.write_bytes(damaged(sound, np.random.default_rng(seed)))
            try:
                read(good)
            except UserError:
                refused += 1
            except Exception as error:
                raise AssertionError(f"{kind}, seed {seed}: {type(error).__name__}: {error}") from error
    finally:
        path.write_bytes(sound)
    assert refused > TRIES // 4


WORDS = st.sampled_from(
    ["tables", "tasks", "searcher", "model", "batch_size", "topology", "num_devices", "out", "draw", "memory", "=",
     ".", "[", "]", "{", "}", ",", "'", "criteo", "neuroshard", "4", "-1", "null", "~", "+", "@", "${", "\n", "é",
     "  ", "1e9"]
)  # fmt: skip


@settings(max_examples=TRIES)
@given(
    st.sampled_from(["search", "evaluate", "collect"]), st.lists(st.lists(WORDS, max_size=6).map("".join), max_size=2)
)
@pytest.mark.timeout(3600)
def test_any_override_raises_at_most_a_user_error(command, overrides):
    with suppress(UserError):
        for_hydra(command, overrides)


KEYS = [
    "batch_size",
    "topology.num_devices",
    "topology.memory_bytes",
    "tables.num_tables",
    "tables.dim",
    "searcher.beam_width",
]
VALUES = ["0", "-1", "3.5", "null", "x", "[1]", "{a: 1}", "1e400", "true", "''", "99999999999999999999", "nan"]


@settings(max_examples=TRIES)
@given(st.sampled_from(KEYS), st.sampled_from(VALUES))
@pytest.mark.timeout(3600)
def test_any_setting_raises_at_most_a_user_error(key, value):
    with suppress(UserError):
        config = compose_config("search", ["tables.num_tables=3", f"{key}={value}"])
        instantiate_config(config.run.tasks)
        instantiate_config(config.searcher)
