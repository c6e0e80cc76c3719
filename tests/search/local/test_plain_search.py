"""Local search under models of any form: it costs what the simulator costs, and finds what the compiled one finds."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from neuroshard.models import ComputeModel
from neuroshard.models.simulator import Simulator
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.local.local_search import LocalSearch
from neuroshard.stages.search.local.plain import PlainSearch, local_steps
from neuroshard.stages.search.methods.heuristics import Random
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.stages.search.space.base import Base, device_memory
from neuroshard.stages.search.space.catalog import Catalog
from neuroshard.stages.search.space.items import Items
from neuroshard.stages.search.space.packing import pack
from neuroshard.stages.search.space.sizes import Sizes
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing import OpaqueCompute, constrained_task, linear_models, random_models, toy_task


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


def _started(task, simulator, limit=None):
    """The search, and a random plan to set out from."""
    catalog = Catalog.checked(Base.empty(task), simulator)
    held = catalog.items.held(Random().find(task, simulator).plan)
    local = PlainSearch(catalog, held, limit)
    return local, local.costed(held)


def _cost(task, simulator, found):
    plan = Catalog.checked(Base.empty(task), simulator).items.plan(found.held)
    assert plan.violations == ()
    assert tuple(found.contents.size_bytes) == plan.device_bytes
    return simulator.cost(task, plan).total_ms


@pytest.mark.parametrize("seed", range(6))
def test_plans_cost_what_the_simulator_says(seed):
    task, simulator = toy_task(9, 3, seed=seed), _opaque(3)
    local, plan = _started(task, simulator)
    assert plan.cost_ms == pytest.approx(_cost(task, simulator, plan))
    better = local.best_step(plan)
    assert better.cost_ms < plan.cost_ms
    for found in (better, *local.others(better, 2, range(4))):
        assert found.cost_ms == pytest.approx(_cost(task, simulator, found))


@pytest.mark.parametrize("seed", range(12))
def test_steps_keep_constraints(seed):
    task, simulator = constrained_task(seed), _opaque(2 + seed % 3)
    catalog = Catalog.checked(Base.empty(task), simulator)
    held = pack(catalog, device_memory(task))
    if held is None:
        pytest.skip("nothing fits")
    local = PlainSearch(catalog, held)
    plan = local.costed(held)
    for number in range(4):
        found = local.others(plan, 3, range(3 * number, 3 * number + 3))
        for other in found:
            assert other.cost_ms == pytest.approx(_cost(task, simulator, other))
        plan = found[-1]


def test_steps_stay_within_memory():
    loose = toy_task(10, 3)
    task, simulator = Task(loose.tables, Topology(3, int(loose.size_bytes * 0.45)), loose.batch_size), _opaque(3)
    local, plan = _started(task, simulator)
    for other in local.others(plan, 3, range(12)):
        _cost(task, simulator, other)


def test_steps_move_no_more_than_allowed():
    task, simulator = toy_task(9, 3), _opaque(3)
    limit = task.size_bytes // 10
    local, plan = _started(task, simulator, limit)
    sizes = Sizes.of(Items.of(Base.empty(task)))
    moved = [sizes.moved_bytes(plan.held, other.held).sum() for other in local.others(plan, 2, range(20))]
    assert limit / 2 < max(moved) <= limit
    still, start = _started(task, simulator, 1)
    assert still.best_step(start) is None


def test_other_plans_depend_on_their_seeds_alone():
    local, plan = _started(toy_task(9, 3), _opaque(3))
    together, alone = local.others(plan, 2, [5, 6, 7]), [local.others(plan, 2, [seed])[0] for seed in (5, 6, 7)]
    for one, other in zip(together, alone, strict=True):
        assert (one.held == other.held).all()
    assert len({other.held.tobytes() for other in local.others(plan, 2, range(8))}) > 1


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
