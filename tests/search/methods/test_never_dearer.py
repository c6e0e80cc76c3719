"""The default search is never expected to cost more than what else is at hand, on tasks unlike the papers'."""

import numpy as np
import pytest

from neuroshard.models import CostModels
from neuroshard.models.simulator import Simulator
from neuroshard.stages.search.methods.heuristics import SCORES, Greedy
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.tables import Table
from neuroshard.tables.reuse import zipf_reuse
from neuroshard.tasks.task import Task, Topology

BATCH_SIZE = 2048
SEARCH = NeuroShard(forms=("columns",), tolerance=0.0)


def _table(name, rows, dim, lookups):
    return Table(name, rows, dim, lookups, zipf_reuse(rows, round(BATCH_SIZE * lookups)))


def _tables(seed, count, dims, lookups):
    rng = np.random.default_rng(seed)
    return tuple(
        _table(f"t{i}", int(10 ** rng.uniform(3, 5.5)), int(rng.choice(dims)), float(rng.integers(*lookups)))
        for i in range(count)
    )


KINDS = {
    "hot": (_table("hot", 500_000, 64, 120.0), *_tables(2, 16, (32, 64), (1, 8))),
    "two hot": (*(_table(f"hot{i}", 200_000, 32, 90.0) for i in range(2)), *_tables(3, 12, (32,), (1, 8))),
    "narrow": _tables(4, 24, (4, 8, 16), (2, 20)),
    "few": _tables(5, 5, (64, 128), (2, 20)),
}


@pytest.fixture(scope="module")
def simulator():
    return Simulator(CostModels.load("cpu"))


@pytest.mark.parametrize("num_devices", [2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_no_heuristic_is_expected_to_be_cheaper(kind, num_devices, simulator):
    task = Task(KINDS[kind], Topology(num_devices, 8 << 30), BATCH_SIZE)
    plans = [searcher.find(task, simulator).plan for searcher in (SEARCH, *map(Greedy, SCORES))]
    ours, *theirs = (cost.expected_ms for cost in simulator.costs(task, plans))
    assert ours <= min(theirs) * (1 + 1e-6)
