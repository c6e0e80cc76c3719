"""Every reader answers a damaged file with one line, whatever is wrong with it.

NEUROSHARD_FUZZ=10000 pytest tests/test_damaged_files.py tries 10,000 of each kind instead of a few.
"""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuroshard.constraints import load_constraints
from neuroshard.errors import UserError
from neuroshard.models import Card, load_bundle, save_bundle
from neuroshard.models.trust import Range, Ranges
from neuroshard.overrides import check_overrides
from neuroshard.plan import Plan, assemble
from neuroshard.records import Manifest
from neuroshard.registry import compose_config, instantiate_config
from neuroshard.search.heuristics import Random
from neuroshard.search.report.gather import gather
from neuroshard.search.rl.agent import load_agent
from neuroshard.search.runs import SearchRun
from neuroshard.search.search_run import Search
from neuroshard.search.unfinished import Unfinished
from neuroshard.sources import load_tables
from neuroshard.tasks import from_file, save_tasks
from neuroshard.testing import constrained_task, random_ensemble, random_models, random_set_comm, toy_task
from neuroshard.testing.damage import damaged
from neuroshard.torchrec import load_sharding_plan, save_sharding_plan

TRIES = int(os.environ.get("NEUROSHARD_FUZZ", "120"))


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A directory with a sound file of every kind."""
    root = tmp_path_factory.mktemp("good")
    task = constrained_task(1)
    plan = assemble(toy_task(5), [(i, table.dim, i % 4) for i, table in enumerate(toy_task(5).tables)])
    plan.save(root / "plan.json")
    save_tasks(root / "tasks.json", [toy_task(4), task])
    save_sharding_plan(plan.to_torchrec("ebc"), root / "sharding.json")
    frame = pd.DataFrame({"name": ["a", "b"], "rows": [10, 20], "dim": [4, 8], "pooling_factor": [1.0, 2.5]})
    frame.to_csv(root / "tables.csv", index=False)
    frame.to_parquet(root / "tables.parquet")
    frame.to_json(root / "tables.json")
    (root / "rules.yaml").write_text("rules:\n- {tables: a*, max_shards: 1}\ntogether: [[a, b]]\n")
    ranges = Ranges(**{name: Range(name, 0.0, 1.0) for name in Ranges.__dataclass_fields__})
    models = random_models()
    save_bundle(root / "bundle", models, Card())
    from dataclasses import replace

    newer = replace(
        models, compute=random_ensemble(), forward=random_set_comm(), backward=random_set_comm(1), ranges=ranges
    )
    save_bundle(root / "newer", newer, Card())
    tasks = tuple(toy_task(4, seed=seed) for seed in range(2))
    Search(str(root / "bundle"), tasks, Random(), "random", str(root / "runs" / "one")).run()
    Manifest({"kind": "cpu"}, {"torch": "2"}, {"seed": 1}, 0).save(root / "data")
    installed = Path(load_agent.__code__.co_filename).parent / "policies" / "dreamshard"
    (root / "policy").mkdir()
    for file in installed.iterdir():
        if file.suffix in (".json", ".safetensors"):
            (root / "policy" / file.name).write_bytes(file.read_bytes())
    return root


READERS = {
    "plan": ("plan.json", lambda root: Plan.load(root / "plan.json")),
    "tasks": ("tasks.json", lambda root: from_file(str(root / "tasks.json"))),
    "TorchRec's plan": ("sharding.json", lambda root: load_sharding_plan(root / "sharding.json")),
    "tables, CSV": ("tables.csv", lambda root: load_tables(str(root / "tables.csv"))),
    "tables, Parquet": ("tables.parquet", lambda root: load_tables(str(root / "tables.parquet"))),
    "tables, JSON": ("tables.json", lambda root: load_tables(str(root / "tables.json"))),
    "constraints": ("rules.yaml", lambda root: load_constraints(str(root / "rules.yaml"))),
    "bundle": ("bundle/bundle.json", lambda root: load_bundle(root / "bundle")),
    "bundle's weights": ("bundle/weights-*.safetensors", lambda root: load_bundle(root / "bundle")),
    "bundle of today": ("newer/bundle.json", lambda root: load_bundle(root / "newer")),
    "manifest": ("data/manifest.json", lambda root: Manifest.load(root / "data")),
    "run": ("runs/one/run.json", lambda root: SearchRun.load(root / "runs" / "one")),
    "results": ("runs/one/results.parquet", lambda root: SearchRun.load(root / "runs" / "one")),
    "record": ("runs/one/records/task-0001.json", lambda root: Unfinished(root / "runs" / "one").record(1)),
    "runs to report": ("runs/one/tasks.json", lambda root: gather([root / "runs"])),
    "policy": ("policy/policy.json", lambda root: load_agent(str(root / "policy"))),
    "policy's weights": ("policy/policy.safetensors", lambda root: load_agent(str(root / "policy"))),
}


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.timeout(3600)
def test_damaged_files_are_one_line(good, kind):
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
            except UserError as error:
                assert "\n" not in str(error), seed
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


@settings(max_examples=TRIES, deadline=None)
@given(
    st.sampled_from(["search", "evaluate", "collect"]), st.lists(st.lists(WORDS, max_size=6).map("".join), max_size=2)
)
@pytest.mark.timeout(3600)
def test_overrides_of_any_kind_are_one_line(command, overrides):
    try:
        check_overrides(command, [text for text in overrides if not text.startswith("-")])
    except UserError as error:
        assert "\n" not in str(error)


KEYS = [
    "batch_size",
    "topology.num_devices",
    "topology.memory_bytes",
    "tables.num_tables",
    "tables.dim",
    "searcher.beam_width",
]
VALUES = ["0", "-1", "3.5", "null", "x", "[1]", "{a: 1}", "1e400", "true", "''", "99999999999999999999", "nan"]


@settings(max_examples=TRIES, deadline=None)
@given(st.sampled_from(KEYS), st.sampled_from(VALUES))
@pytest.mark.timeout(3600)
def test_settings_of_any_kind_are_one_line(key, value):
    try:
        instantiate_config(compose_config("search", ["tables.num_tables=3", f"{key}={value}"]).run.tasks)
        instantiate_config(compose_config("search", [f"{key}={value}"]).searcher)
    except UserError as error:
        assert "\n" not in str(error)
