"""Local search costs what the simulator costs, and its steps lose nothing, under models of the papers' form or any."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from neuroshard.models import ComputeModel
from neuroshard.models.simulator import Simulator
from neuroshard.stages.search.local.improvement import Improvement, PlainSearch, local_steps
from neuroshard.stages.search.local.local_search import LocalSearch
from neuroshard.stages.search.methods.heuristics import Random
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.stages.search.space.base import Base, device_memory
from neuroshard.stages.search.space.catalog import Catalog, even_layout
from neuroshard.stages.search.space.items import Items
from neuroshard.stages.search.space.packing import pack
from neuroshard.tables import Table
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing import ONCE, OpaqueCompute, constrained_task, linear_models, random_models, toy_task


@dataclass(frozen=True)
class _Hidden(ComputeModel):
    """A model that doesn't say that it is a sum; `asked` gets how many sets each call was for."""

    inner: ComputeModel
    asked: list[int]

    def predict(self, sets):
        self.asked.append(len(sets))
        return self.inner.predict(sets)


def _hidden(models):
    return Simulator(replace(models, compute=_Hidden(models.compute, [])))


def _opaque(num_devices=4):
    return _hidden(replace(linear_models(num_devices), compute=OpaqueCompute()))


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


KINDS = ["compiled", "plain"]
REL = {"compiled": 1e-4, "plain": 1e-6}  # how closely each knows what the simulator says
ROUNDS = {"compiled": 10, "plain": 4}  # the plain one takes longer


def _search(seed, num_devices, kind="compiled"):
    task = toy_task(8, num_devices, 1 << 30, seed)
    if seed % 4 == 3:
        task = replace(task, tables=tuple(replace(t, features=1 + i % 3) for i, t in enumerate(task.tables)))
    simulator = _simulator(kind, num_devices, seed)
    return task, simulator, _local(task, simulator)


def _simulator(kind, num_devices, seed):
    if kind == "plain":
        return _opaque(num_devices)
    return Simulator(linear_models(num_devices) if seed % 3 == 0 else random_models(num_devices, seed))


def _local(task, simulator, start=None, max_moved_bytes=None):
    catalog = Catalog.checked(Base.empty(task), simulator)
    start = np.zeros(catalog.items.limits.allowed.shape, dtype=np.int64) if start is None else start
    return local_steps(catalog, start, max_moved_bytes)


def to_plan(task, held):
    return Items.of(Base.empty(task)).plan(held)


def _check(task, simulator, found, rel):
    """A plan that was found keeps all limits, and is what the simulator says of it."""
    plan = to_plan(task, found.held)
    assert plan.violations == ()
    assert found.cost_ms == pytest.approx(simulator.cost(task, plan).total_ms, rel=rel)
    assert tuple(found.contents.size_bytes) == plan.device_bytes
    assert tuple(4 * found.units) == plan.device_dims


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(12))
def test_steps_keep_every_column_and_lower_the_cost(seed, kind):
    task, simulator, local = _search(seed, 2 + seed % 3, kind)
    state = local.costed(_random_held(task, np.random.default_rng(seed)))
    _check(task, simulator, state, REL[kind])
    different = 0
    for number in range(ROUNDS[kind]):
        for other in local.others(state, 3, range(4)):
            different += (other.held != state.held).any()
            assert (other.held.sum(axis=1) == state.held.sum(axis=1)).all()
            assert (other.held >= 0).all()
            _check(task, simulator, other, REL[kind])
        better = local.best_step(state)
        if better is None:
            assert number  # something helps a random plan
            break
        assert (better.held.sum(axis=1) == state.held.sum(axis=1)).all()
        assert (better.held >= 0).all()
        assert better.cost_ms < state.cost_ms
        _check(task, simulator, better, REL[kind])
        state = better
    assert different


@pytest.mark.parametrize("kind", KINDS)
def test_other_plans_depend_on_their_seeds_alone(kind):
    task, _, local = _search(1, 3, kind)
    state = local.costed(_random_held(task, np.random.default_rng(1)))
    together, alone = local.others(state, 2, [5, 6, 7]), [local.others(state, 2, [seed])[0] for seed in (5, 6, 7)]
    for one, other in zip(together, alone, strict=True):
        assert (one.held == other.held).all()
    assert len({other.held.tobytes() for other in local.others(state, 2, range(20))}) > 1


def test_plans_are_improved_by_what_exchanges_cost_too():
    """A device may compute little and still be the slowest by its columns."""
    task, _, local = _search(0, 3)
    start = local.costed(_random_held(task, np.random.default_rng(3)))
    (improved,) = local.others(start, 0, [0])
    assert improved.cost_ms < start.cost_ms
    assert local.best_step(improved) is None or local.best_step(improved).cost_ms > 0.98 * improved.cost_ms


@pytest.mark.parametrize("kind", KINDS)
def test_steps_stay_within_memory(kind):
    task = toy_task(10, 3)
    tight = Task(task.tables, Topology(3, int(task.size_bytes * 0.45)), task.batch_size)
    simulator = _simulator(kind, 3, 1)
    held = np.zeros((10, 3), dtype=np.int64)
    held[np.arange(10), np.argsort([-t.size_bytes for t in task.tables]) % 3] = [t.dim // 4 for t in task.tables]
    local = _local(tight, simulator, held)
    state = local.costed(held)
    assert to_plan(tight, state.held).fits
    for number in range(ROUNDS[kind]):
        others = local.others(state, 3, range(3 * number, 3 * number + 3))
        for other in others:
            _check(tight, simulator, other, REL[kind])
        state = others[-1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(12))
def test_steps_keep_constraints(seed, kind):
    task, num_devices = constrained_task(seed), 2 + seed % 3
    simulator = _opaque(num_devices) if kind == "plain" else Simulator(random_models(num_devices, seed))
    held = pack(Catalog.checked(Base.empty(task), simulator), device_memory(task))
    if held is None:
        pytest.skip("nothing fits")
    local = _local(task, simulator, held)
    state = local.costed(held)
    for number in range(ROUNDS[kind]):
        for other in local.others(state, 3, range(3 * number, 3 * number + 3)):
            _check(task, simulator, other, REL[kind])
            state = other
        state = local.best_step(state) or state
        assert to_plan(task, state.held).violations == ()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_steps_move_no_more_than_allowed(seed, kind):
    task, simulator, _ = _search(seed, 3, kind)
    before = _random_held(task, np.random.default_rng(seed))
    limit = task.size_bytes // 10
    local = _local(task, simulator, before, limit)
    state, moved = local.costed(before), []
    for number in range(4 * ROUNDS[kind]):
        (state,) = local.others(state, 2, [number])
        columns = np.maximum(state.held - before, 0).sum(axis=1) * 4
        moved.append(sum(c * t.rows * 4 for c, t in zip(columns.tolist(), task.tables, strict=True)))
    assert limit / 2 < max(moved) <= limit
    still = _local(task, simulator, before, 1)
    assert still.best_step(still.costed(before)) is None


def test_a_balanced_pair_is_left_alone():
    task, simulator, local = _search(0, 2)
    task = Task((task.tables[0], task.tables[0].__class__("twin", *_fields(task.tables[0]))), task.topology, 256)
    local = _local(task, simulator)
    width = task.tables[0].dim // 4
    assert local.best_step(local.costed(np.array([[width, 0], [0, width]]))) is None
    assert local.best_step(local.costed(np.array([[width, 0], [width, 0]]))) is not None


def _fields(table):
    return table.rows, table.dim, table.pooling_factor, table.reuse


@pytest.mark.parametrize("most", [0.15, 0.5, 1.0])
def test_even_layouts_leave_no_shard_too_large(most):
    for seed in range(4):
        task = toy_task(10, num_devices=8, seed=seed)
        catalog = Catalog.checked(Base.empty(task), Simulator(linear_models(8)))
        layout = even_layout(catalog, most)
        item, width = catalog.item[layout], layout - catalog.first[catalog.item[layout]]
        cost = catalog.cost_ms[layout]
        share = np.maximum(cost / (catalog.cost_ms[catalog.whole].sum() / 8), width / (catalog.full_width.sum() / 8))
        count = np.bincount(item)[item]
        can_split = (count < 8) & (count < catalog.full_width[item])
        assert (share[can_split] <= most + 1e-9).all()


def test_many_devices_get_many_splits():
    """Where the published search's ten splits leave most devices empty."""
    tables = tuple(Table(f"t{i}", 1000, 64, 8.0, ONCE) for i in range(3))
    task, simulator = Task(tables, Topology(24, 1 << 30), 256), Simulator(linear_models(24))
    published = simulator.cost(task, BeamSearch(max_splits=2).find(task, simulator).plan).total_ms
    searcher = NeuroShard(max_splits=2, improvement=Improvement(shakes=0, max_plans=1))
    assert simulator.cost(task, searcher.find(task, simulator).plan).total_ms < published / 3


def _started(task, simulator):
    """The search, and a random plan to set out from."""
    held = Items.of(Base.empty(task)).held(Random().find(task, simulator).plan)
    local = _local(task, simulator, held)
    return local, local.costed(held)


def test_a_call_of_the_model_costs_many_plans():
    """A step takes one call, also where many plans take one each."""
    simulator = _opaque()
    local, plan = _started(toy_task(14), simulator)
    asked = simulator.models.compute.asked
    asked.clear()
    assert local.best_step(plan) is not None
    assert len(asked) == 1
    asked.clear()
    local.others(plan, 2, [0])
    alone = len(asked)
    asked.clear()
    local.others(plan, 2, range(10))
    assert len(asked) < 3 * alone


def test_what_the_model_costed_counts_as_looked_at():
    simulator = _opaque()
    local, plan = _started(toy_task(14), simulator)
    sets, looked = sum(simulator.models.compute.asked), local.looked
    Improvement(shakes=10**6, max_plans=300_000).improve(local, plan)
    sets = sum(simulator.models.compute.asked) - sets
    assert 300_000 <= local.looked - looked < 1_500_000
    assert 0.5 < 100 * sets / (local.looked - looked) < 1


def test_the_form_of_the_model_says_which_search():
    task = toy_task(4)
    for simulator, kind in ((Simulator(linear_models()), LocalSearch), (_opaque(), PlainSearch)):
        catalog = Catalog.checked(Base.empty(task), simulator)
        assert type(local_steps(catalog, pack(catalog, device_memory(task)), None)) is kind


def _gain(task, simulator, held):
    """Of local search over the plan that it sets out from."""
    catalog = Catalog.checked(Base.empty(task), simulator)
    local = local_steps(catalog, held, None)
    start = local.costed(held)
    return 1 - Improvement(shakes=20).improve(local, start).cost_ms / start.cost_ms


@pytest.mark.parametrize("num_devices", [2, 4])
def test_it_gains_what_the_compiled_search_gains(num_devices):
    """On the same model, whether it says that it is a sum or not."""
    gains = []
    for seed in range(6):
        task, models = toy_task(14, num_devices, seed=seed), random_models(num_devices, seed)
        held = BeamSearch().first_held(Catalog.checked(Base.empty(task), Simulator(models)))
        gains.append([_gain(task, simulator, held) for simulator in (_hidden(models), Simulator(models))])
    plain, compiled = np.mean(gains, axis=0)
    assert np.min(gains) >= 0
    assert compiled > 0.005
    assert plain > 0.9 * compiled


def test_no_single_step_would_still_help_much():
    """Against all moves of whole shards from any device, under a model that is far from a sum."""
    for seed in range(4):
        task, simulator = toy_task(10, 3, seed=seed), _opaque(3)
        local, plan = _started(task, simulator)
        (found,) = local.others(plan, 0, [0])
        after = []
        for item, source in np.argwhere(found.held > 0).tolist():
            for target in {0, 1, 2} - {source}:
                held = found.held.copy()
                held[item, target] += held[item, source]
                held[item, source] = 0
                after.append(local.costed(held).cost_ms)
        assert min(after) > 0.95 * found.cost_ms
