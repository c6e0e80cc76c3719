"""Steps that are measured on a GPU: which plans count as equal, and the rows of a measured rank."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import gpu_measure
import gpu_steps

import neuroshard as ns
from neuroshard.measure import DeviceSpec, Hardware
from neuroshard.measure.steps.step_samples import StepProtocol
from neuroshard.plans.plan import Plan


def _renumbered(plan, devices):
    return Plan(plan.task, tuple(replace(placed, device=devices[placed.device]) for placed in plan.placements))


def test_plans_have_the_same_shards_if_only_the_devices_have_other_numbers():
    plan, whole = map(gpu_steps.plans_of("papers8_5").get, (gpu_steps.TORCHREC_DEFAULT, "size_lookup_greedy"))
    devices = np.random.default_rng(0).permutation(8).tolist()
    shards = gpu_steps.shards_by_device(whole)
    assert shards == gpu_steps.shards_by_device(_renumbered(whole, devices))
    assert shards != gpu_steps.shards_by_device(plan)
    for number, placed in enumerate(whole.placements):
        moved = replace(placed, device=(placed.device + 1) % 8)
        others = (*whole.placements[:number], moved, *whole.placements[number + 1 :])
        assert shards != gpu_steps.shards_by_device(Plan(whole.task, others)), placed


@pytest.mark.slow
def test_a_measured_rank_has_a_row_for_each_plan_from_which_its_step_can_be_put_together(monkeypatch):
    tables = tuple(ns.Table(f"t{i}", 1000, 16, 4.0, ns.zipf_reuse(1000, 256)) for i in range(4))
    task = ns.Task(tables, ns.Topology(2, "1GiB"), 64)
    searchers = {gpu_steps.BASELINE: "dim_greedy", gpu_steps.TORCHREC_DEFAULT: "size_greedy", "default": "neuroshard"}
    simulator = gpu_steps.simulator_of(gpu_steps.WHOLE)
    plans = {name: ns.search(task, simulator, searcher) for name, searcher in searchers.items()}
    monkeypatch.setattr(gpu_measure, "plans_of", {"small": plans}.get)
    compared = gpu_measure.compared("small", "default")
    ranks = gpu_measure.ranks_of(compared.values())
    assert ranks[0] == 0 and set(ranks) <= {0, 1}
    protocol = StepProtocol(builds=1, turns=1, steps=1, dense=(8,), pipeline=gpu_steps.PIPELINE)
    frame = pd.DataFrame(gpu_measure.measured(compared, 1, protocol, Hardware(DeviceSpec("cpu"))))
    assert sorted(frame["plan"]) == sorted(compared)
    assert list(frame["rank"]) == [1] * len(compared)
    columns = set(pd.read_parquet(gpu_steps.DATA / "steps.parquet").columns)
    assert {"way", "task", *frame.columns} == columns
    for name, its in frame.groupby("plan"):
        step = gpu_steps.step_of(its, compared[name])
        assert 0 < step.dense_ms < step.step_ms
