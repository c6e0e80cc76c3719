"""Steps of the local search: costs equal those of the simulator, and all columns are kept."""

from dataclasses import replace

import numpy as np
import pytest

from neuroshard import CostModels, Simulator, Task, Topology
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.local.local_search import LocalSearch
from neuroshard.stages.search.local.starts import even_splits
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.stages.search.space.fixed_load import device_memory
from neuroshard.stages.search.space.packing import pack
from neuroshard.stages.search.space.search_space import SearchSpace
from neuroshard.testing import constrained_task, linear_models, random_models, toy_task
from tests.kit.searches import costed_space_of, ms_of
from tests.kit.tasks import hot_table, plain_task


def _random_held(task, rng):
    """Split every table into random shards on random devices."""
    held = np.zeros((len(task.tables), task.topology.num_devices), dtype=np.int64)
    for t, table in enumerate(task.tables):
        left = table.dim // 4
        while left:
            piece = int(rng.integers(1, left + 1))
            held[t, rng.integers(task.topology.num_devices)] += piece
            left -= piece
    return held


REL = 1e-4  # how closely it knows what the simulator says
ROUNDS = 10


def _search(seed, num_devices):
    task = toy_task(8, num_devices, 1 << 30, seed)
    if seed % 4 == 3:
        task = replace(task, tables=tuple(replace(t, features=1 + i % 3) for i, t in enumerate(task.tables)))
    simulator = _simulator(num_devices, seed)
    return task, simulator, _local(task, simulator)


def _simulator(num_devices, seed):
    return Simulator(linear_models(num_devices) if seed % 3 == 0 else random_models(num_devices, seed))


def _local(task, simulator, start=None, max_moved_bytes=None):
    space = costed_space_of(task, simulator)
    start = np.zeros(space.shards.rules.allowed.shape, dtype=np.int64) if start is None else start
    return LocalSearch(space, start, max_moved_bytes)


def _check(task, simulator, found, rel):
    """Check that a found plan keeps all limits and costs what the simulator predicts."""
    plan = SearchSpace.of_task(task).plan(found.widths)
    assert plan.violations == ()
    assert (found.widths >= 0).all()
    assert found.cost_ms == pytest.approx(simulator.cost(task, plan).total_ms, rel=rel)
    assert tuple(found.contents.size_bytes) == plan.device_bytes
    assert tuple(4 * found.units) == plan.device_dims


@pytest.mark.parametrize("seed", range(12))
def test_steps_keep_every_column_and_lower_the_cost(seed):
    task, simulator, local = _search(seed, 2 + seed % 3)
    state = local.costed(_random_held(task, np.random.default_rng(seed)))
    _check(task, simulator, state, REL)
    different = 0
    for number in range(ROUNDS):
        for other in local.others(state, 3, range(4)):
            different += (other.widths != state.widths).any()
            _check(task, simulator, other, REL)
        better = local.best_step(state)
        if better is None:
            assert number  # something helps a random plan
            break
        assert better.cost_ms < state.cost_ms
        _check(task, simulator, better, REL)
        state = better
    assert different


def test_perturbed_plans_depend_only_on_their_seed():
    task, _, local = _search(1, 3)
    state = local.costed(_random_held(task, np.random.default_rng(1)))
    together, alone = local.others(state, 2, [5, 6, 7]), [local.others(state, 2, [seed])[0] for seed in (5, 6, 7)]
    for one, other in zip(together, alone, strict=True):
        assert (one.widths == other.widths).all()
    assert len({other.widths.tobytes() for other in local.others(state, 2, range(20))}) > 1


def test_local_search_reduces_exchange_costs_too():
    """A device may have little compute and still be the straggler because of its columns."""
    task, _, local = _search(0, 3)
    start = local.costed(_random_held(task, np.random.default_rng(3)))
    (improved,) = local.others(start, 0, [0])
    assert improved.cost_ms < start.cost_ms
    assert local.best_step(improved) is None or local.best_step(improved).cost_ms > 0.98 * improved.cost_ms


def test_local_search_steps_stay_within_device_memory():
    task = toy_task(10, 3)
    tight = Task(task.tables, Topology(3, int(task.size_bytes * 0.45)), task.batch_size)
    simulator = _simulator(3, 1)
    held = np.zeros((10, 3), dtype=np.int64)
    held[np.arange(10), np.argsort([-t.size_bytes for t in task.tables]) % 3] = [t.dim // 4 for t in task.tables]
    local = _local(tight, simulator, held)
    state = local.costed(held)
    assert SearchSpace.of_task(tight).plan(state.widths).fits
    for number in range(ROUNDS):
        others = local.others(state, 3, range(3 * number, 3 * number + 3))
        for other in others:
            _check(tight, simulator, other, REL)
        state = others[-1]


@pytest.mark.parametrize("seed", range(12))
def test_local_search_steps_keep_constraints_of_the_task(seed):
    task, num_devices = constrained_task(seed), 2 + seed % 3
    simulator = Simulator(random_models(num_devices, seed))
    held = pack(costed_space_of(task, simulator), device_memory(task))
    if held is None:
        pytest.skip("nothing fits")
    local = _local(task, simulator, held)
    state = local.costed(held)
    for number in range(ROUNDS):
        for other in local.others(state, 3, range(3 * number, 3 * number + 3)):
            _check(task, simulator, other, REL)
            state = other
        state = local.best_step(state) or state
        assert SearchSpace.of_task(task).plan(state.widths).violations == ()


@pytest.mark.parametrize("seed", range(6))
def test_local_search_steps_move_no_more_bytes_than_allowed(seed):
    task, simulator, _ = _search(seed, 3)
    before = _random_held(task, np.random.default_rng(seed))
    limit = task.size_bytes // 10
    local = _local(task, simulator, before, limit)
    state, moved = local.costed(before), []
    for number in range(4 * ROUNDS):
        (state,) = local.others(state, 2, [number])
        columns = np.maximum(state.widths - before, 0).sum(axis=1) * 4
        moved.append(sum(c * t.rows * 4 for c, t in zip(columns.tolist(), task.tables, strict=True)))
    assert limit / 2 < max(moved) <= limit
    still = _local(task, simulator, before, 1)
    assert still.best_step(still.costed(before)) is None


def test_local_search_finds_a_step_only_if_equal_tables_are_unbalanced():
    task, simulator, _ = _search(0, 2)
    task = replace(task, tables=(task.tables[0], replace(task.tables[0], name="twin")))
    local = _local(task, simulator)
    width = task.tables[0].dim // 4
    assert local.best_step(local.costed(np.array([[width, 0], [0, width]]))) is None
    assert local.best_step(local.costed(np.array([[width, 0], [width, 0]]))) is not None


@pytest.mark.parametrize("most", [0.15, 0.5, 1.0])
def test_even_splits_leave_no_divisible_shard_above_its_share(most):
    for seed in range(4):
        task = toy_task(10, num_devices=8, seed=seed)
        space = costed_space_of(task, Simulator(linear_models(8)))
        layout = even_splits(space, most)
        item, width = space.shards.item[layout], layout - space.shards.first[space.shards.item[layout]]
        cost = space.shards.cost_ms[layout]
        share = np.maximum(
            cost / (space.shards.cost_ms[space.shards.whole].sum() / 8), width / (space.shards.full_width.sum() / 8)
        )
        count = np.bincount(item)[item]
        can_split = (count < 8) & (count < space.shards.full_width[item])
        assert (share[can_split] <= most + 1e-9).all()


def test_local_search_splits_tables_further_if_devices_are_many():
    """With the ten splits of the published search most devices would be empty."""
    task, simulator = plain_task([64] * 3, lookups=8.0, devices=24), Simulator(linear_models(24))
    searchers = (
        BeamSearch(max_splits=2),
        NeuroShard(max_splits=2, improvement=Improvement(perturbations=0, max_plans=1)),
    )
    published, ours = (ms_of(searcher.find(task, simulator).plan, simulator) for searcher in searchers)
    assert ours < published / 3


def test_perturbation_relieves_the_device_with_by_far_the_largest_output():
    """Estimates distinguish twice the mean output from seven times the mean."""
    hot = hot_table("hot", 10_000, 64, 60, pooled=False)
    cold = plain_task([16] * 7, lookups=4.0, devices=8, batch_size=16384)
    task, simulator = replace(cold, tables=(hot, *cold.tables)), Simulator(CostModels.load("roofline:h100"))
    held = np.diag([16, *[4] * 7])
    local = _local(task, simulator, held)
    whole = local.costed(held)
    (cut,) = local.others(whole, 0, [0])
    assert whole.units[0] > 3 * whole.units.mean()
    assert cut.cost_ms < 0.8 * whole.cost_ms
