"""The compiled published search agrees with a plain implementation."""

from dataclasses import replace

import pytest

from neuroshard.models.simulator import Simulator
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.testing import linear_models, random_models, toy_task
from tests.search.published.plain_search import plain_search


@pytest.mark.parametrize(
    "seed", [3, 4, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 1, 2, *range(5, 24)))]
)
def test_beam_search_costs_as_much_as_the_plain_reference_search(seed):
    devices = (2, 3, 4)[seed % 3]
    task = toy_task(4 + seed % 9, devices, memory_bytes=(1 << 20) + (seed % 2 << 30), seed=seed)
    if seed % 5 > 2:
        task = replace(task, tables=tuple(replace(t, features=1 + i % 3) for i, t in enumerate(task.tables)))
    simulator = Simulator(linear_models(devices) if seed % 4 == 0 else random_models(devices, seed))
    _, expected = plain_search(task, simulator, num_candidates=3, beam_width=2, max_splits=3)
    plan = BeamSearch(num_candidates=3, beam_width=2, max_splits=3).find(task, simulator).plan
    assert simulator.cost(task, plan).total_ms == pytest.approx(expected, rel=1e-4)
