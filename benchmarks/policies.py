"""Learned policies beside heuristics and NeuroShard, on tasks of sizes they were not trained on.

usage: policies.py [--only] MODEL COUNT POLICY...

POLICY: installed or a directory, trained on 30 tables x 4 devices; --only leaves the other methods out.

Tables unseen in training, dims 4 to 128, devices of 4 GiB, batch size 4,096.
"""

import argparse

import numpy as np
from shared import timed

from neuroshard.models import CostModels
from neuroshard.models.simulator import Simulator
from neuroshard.searching.searcher import Searcher
from neuroshard.stages.search.methods.heuristics import SCORES, Greedy, Random
from neuroshard.stages.search.methods.learned import PolicySearch
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.tables.sources.dlrm_like import dlrm_like
from neuroshard.tasks.draw import TaskDraw, drawn
from neuroshard.tasks.task import Topology

SHAPES = ((30, 4), (10, 4), (50, 4), (100, 4), (30, 2), (30, 8))
BATCH_SIZE = 4096


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", action="store_true")
    parser.add_argument("model")
    parser.add_argument("count", type=int)
    parser.add_argument("policies", nargs="+")
    given = parser.parse_args()
    simulator, count = Simulator(CostModels.load(given.model)), given.count
    methods = _policies(given.policies) if given.only else _everyone(given.policies)
    tables = dlrm_like(batch_size=BATCH_SIZE, seed=1)
    print("mean cost, ms, over the tasks that all solve; (solved); search time, ms")
    for num_tables, num_devices in SHAPES:
        draw = TaskDraw(count=count, min_tables=num_tables, max_tables=num_tables, seed=num_tables)
        tasks = drawn(tables, Topology(num_devices, 4 << 30), BATCH_SIZE, draw)
        found = {
            name: [timed(lambda task, method=method: method.find(task, simulator), task, simulator) for task in tasks]
            for name, method in methods.items()
        }
        common = np.all([[np.isfinite(cost) for cost, _ in results] for results in found.values()], axis=0)
        print(f"\n{num_tables} tables x {num_devices} devices: {common.sum()} of {count} tasks solved by all")
        print("| method | mean cost, ms | solved | search, ms (median) |")
        print("| --- | --- | --- | --- |")
        for name, results in found.items():
            cost, seconds = (np.array(values) for values in zip(*results, strict=True))
            mean = cost[common].mean() if common.any() else float("nan")
            print(f"| {name} | {mean:.2f} | {np.isfinite(cost).sum()} | {1e3 * np.median(seconds):.1f} |", flush=True)


def _policies(names: list[str]) -> dict[str, Searcher]:
    likeliest: dict[str, Searcher] = {name: PolicySearch(name) for name in names}
    return likeliest | {f"{name}, best of 33": PolicySearch(name, samples=32) for name in names}


def _everyone(names: list[str]) -> dict[str, Searcher]:
    heuristics: dict[str, Searcher] = {f"{score} greedy": Greedy(score) for score in SCORES}
    return {
        "random": Random(),
        **heuristics,
        **_policies(names),
        "whole tables, grid search": BeamSearch(max_splits=0),
        "published search": BeamSearch(),
        "neuroshard": NeuroShard(),
    }


if __name__ == "__main__":
    main()
