"""Local search costs what the simulator costs, and its steps lose nothing."""

import numpy as np
import pytest

from neuroshard.search.catalog import Catalog
from neuroshard.search.local import LocalSearch
from neuroshard.search.neuroshard import to_plan
from neuroshard.simulator import Simulator
from neuroshard.task import Task, Topology
from neuroshard.testing import linear_models, random_models, toy_task


def _random_held(task, rng):
    """Every table cut into random pieces on random devices."""
    held = np.zeros((len(task.tables), task.topology.num_devices), dtype=np.int64)
    for t, table in enumerate(task.tables):
        left = table.dim // 4
        while left:
            piece = int(rng.integers(1, left + 1))
            held[t, rng.integers(task.topology.num_devices)] += piece
            left -= piece
    return held


def _search(seed, num_devices, memory_bytes=1 << 30):
    task = toy_task(8, num_devices, memory_bytes, seed)
    simulator = Simulator(linear_models(num_devices) if seed % 3 == 0 else random_models(num_devices, seed))
    catalog = Catalog.of(task, simulator.models.compute)
    return task, simulator, LocalSearch(task, simulator, simulator.models.compute, catalog)


@pytest.mark.parametrize("seed", range(12))
def test_states_cost_what_the_simulator_says(seed):
    task, simulator, local = _search(seed, 2 + seed % 3)
    state = local.state(_random_held(task, np.random.default_rng(seed)))
    plan = to_plan(task, state.held)
    assert state.cost_ms == pytest.approx(simulator.cost(task, plan).total_ms, rel=1e-4)
    assert tuple(state.size_bytes) == plan.device_bytes
    assert tuple(4 * state.units) == plan.device_dims


@pytest.mark.parametrize("seed", range(12))
def test_steps_keep_every_column_and_lower_the_cost(seed):
    task, simulator, local = _search(seed, 2 + seed % 3)
    rng = np.random.default_rng(seed)
    state = local.state(_random_held(task, rng))
    for _ in range(10):
        shaken = local.random_step(state, rng)
        assert (shaken.held.sum(axis=1) == state.held.sum(axis=1)).all()
        assert (shaken.held != state.held).any()
        better = local.best_step(state)
        if better is None:
            break
        assert (better.held.sum(axis=1) == state.held.sum(axis=1)).all()
        assert (better.held >= 0).all()
        assert better.cost_ms < state.cost_ms
        assert better.cost_ms == pytest.approx(simulator.cost(task, to_plan(task, better.held)).total_ms, rel=1e-4)
        state = better


def test_steps_stay_within_memory():
    task = toy_task(10, 3)
    tight = Task(task.tables, Topology(3, int(task.size_bytes * 0.45)), task.batch_size)
    simulator = Simulator(random_models(3))
    local = LocalSearch(tight, simulator, simulator.models.compute, Catalog.of(tight, simulator.models.compute))
    rng = np.random.default_rng(0)
    held = np.zeros((10, 3), dtype=np.int64)
    held[np.arange(10), np.argsort([-t.size_bytes for t in task.tables]) % 3] = [t.dim // 4 for t in task.tables]
    state = local.state(held)
    assert to_plan(tight, state.held).fits
    for _ in range(30):
        state = local.random_step(state, rng)
        assert to_plan(tight, state.held).fits


def test_a_balanced_pair_is_left_alone():
    task, simulator, local = _search(0, 2)
    task = Task((task.tables[0], task.tables[0].__class__("twin", *_fields(task.tables[0]))), task.topology, 256)
    local = LocalSearch(task, simulator, simulator.models.compute, Catalog.of(task, simulator.models.compute))
    width = task.tables[0].dim // 4
    assert local.best_step(local.state(np.array([[width, 0], [0, width]]))) is None
    assert local.best_step(local.state(np.array([[width, 0], [width, 0]]))) is not None


def _fields(table):
    return table.rows, table.dim, table.pooling_factor, table.reuse
