"""Local search with sequence tables and two data types: costs equal the simulator's, sequences are halved at most."""

from dataclasses import replace

import numpy as np
import pytest

from neuroshard import CostModels, Simulator, Topology, search
from neuroshard.stages.search.local.local_search import LocalSearch
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.stages.search.space.memory_checks import packed
from neuroshard.testing import sequence_task
from tests.kit.random_models import random_form_models
from tests.kit.searches import costed_space_of, ms_of

MODELS = {"roofline": CostModels.load("roofline:h100"), "by_form": random_form_models()}


def _cases():
    for name, models in MODELS.items():
        for seed in range(3):
            task = sequence_task(9, 2 + seed, seed, pooled=seed < 2)
            yield pytest.param(task, Simulator(models), id=f"{name}{seed}")
        types = [replace(table, bytes_per_element=4 if i % 3 else 2) for i, table in enumerate(task.tables)]
        yield pytest.param(replace(task, tables=tuple(types)), Simulator(models), id=f"{name}, two data types")


@pytest.mark.parametrize(("task", "simulator"), _cases())
def test_costs_inside_local_search_equal_simulator_costs(task, simulator):
    space = costed_space_of(task, simulator)
    start = packed(space)
    local = LocalSearch(space, start)
    state = local.costed(start)
    for number in range(6):
        others = local.others(state, 3, range(4 * number, 4 * number + 4))
        state = others[-1]
        for other in filter(None, (*others, local.best_step(state))):
            plan = space.plan(other.widths)
            assert plan.violations == ()
            assert other.cost_ms == pytest.approx(ms_of(plan, simulator), rel=2e-3)
            np.testing.assert_allclose(4 * other.units, plan.traffic.columns[0], atol=0.05)


@pytest.mark.parametrize(("task", "simulator"), _cases())
def test_searches_with_sequence_tables_break_no_limit_and_cost_no_more_than_beam_search(task, simulator):
    plan = search(task, simulator, tolerance=0)
    assert plan.violations == ()
    cost, in_columns = (ms_of(one, simulator) for one in (plan, BeamSearch(max_splits=2).find(task, simulator).plan))
    assert cost <= in_columns * (1 + 1e-6)


def test_search_halves_a_sequence_table_that_exceeds_a_device():
    task = sequence_task(4, 4)
    wide = replace(task.tables[0], dim=64, rows=100_000)
    tight = replace(task, tables=(wide, *task.tables[1:]), topology=Topology(4, int(wide.size_bytes * 0.8)))
    plan = search(tight, Simulator(MODELS["roofline"]))
    assert sorted(placed.shard.dim for placed in plan.placements if placed.shard.table == 0) == [32, 32]
