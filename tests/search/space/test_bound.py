"""No plan costs less than its bound says, whatever the models; and where models keep to physics the bound is close."""

from dataclasses import replace

import numpy as np
import pytest

from neuroshard import Constraints, Simulator, TableRule, Topology, UserError, search
from neuroshard.cost.loads import Loads
from neuroshard.models import CostModels, FreeComm
from neuroshard.models.interface import Outline, device_waits, waits
from neuroshard.stages.search.space.bound import Prices, least_left_ms, longest_waits, lower_bound_ms
from neuroshard.stages.search.space.catalog import Catalog
from neuroshard.tables.sources.dlrm_like import dlrm_like
from neuroshard.tasks.draw import TaskDraw, drawn
from neuroshard.testing import (
    LinearCompute,
    OpaqueCompute,
    linear_models,
    random_by_widest,
    random_ensemble,
    random_models,
    random_regression,
    random_set_comm,
    toy_task,
)
from tests.kit.exhaustive import tiny_task
from tests.kit.searches import H100, catalog_of, sizes_of

MOST_PLANS = 1500


def _networks(seed):
    """As pre-training fits them, with random weights: every part of the bound counts."""
    forward, backward = (replace(random_set_comm(s), scale_ms=1e-8) for s in (seed, seed + 1))
    return CostModels(random_ensemble(seed), forward, backward, None)


def _offset_networks(seed):
    """A call costs much by itself, and nothing is exchanged on the way back."""
    members = tuple(replace(member, offset=40.0) for member in random_ensemble(seed).members)
    models = _networks(seed)
    return replace(models, compute=replace(models.compute, members=members), backward=FreeComm())


MODELS = {
    "linear": lambda devices, seed: linear_models(devices),
    "roofline": lambda devices, seed: CostModels.load("roofline:h100"),
    "installed": lambda devices, seed: CostModels.load("cpu"),
    "whole steps": lambda devices, seed: CostModels.load("cpu+torchrec"),
    "waiting for hosts": lambda devices, seed: CostModels.load("h100+torchrec+dense8ms"),
    "networks": lambda devices, seed: _networks(seed),
    "offset": lambda devices, seed: _offset_networks(seed),
    "by widest": lambda devices, seed: replace(_networks(seed), compute=random_by_widest(seed)),
    "regression": lambda devices, seed: replace(_networks(seed), compute=random_regression(seed)),
    "paper": random_models,
    "paper_compute": lambda devices, seed: replace(_networks(seed), compute=random_models(devices, seed).compute),
}


def _bound(task, simulator):
    return lower_bound_ms(catalog_of(task, simulator))


def _tiny_tasks(seeds):
    """Those whose plans can all be costed, constraints and all."""
    for seed in seeds:
        tiny = tiny_task(seed)
        try:
            tiny.task()
        except UserError:
            continue
        if tiny.num_spreads <= MOST_PLANS and (plans := list(tiny.plans())):
            yield seed, tiny.task(), plans


@pytest.mark.parametrize("tasks", [15, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MODELS)
def test_no_plan_costs_less_than_the_bound(name, tasks):
    tried = 0
    for seed, task, plans in _tiny_tasks(range(tasks)):
        simulator = Simulator(MODELS[name](task.topology.num_devices, seed))
        best = min(cost.total_ms for cost in simulator.costs(task, plans))
        assert _bound(task, simulator) <= best, seed
        tried += 1
    assert tried > tasks / 4


def _gap(task, simulator):
    """How far the default search's plan of columns is above the bound, every gain believed."""
    plan = search(task, simulator, choice=None, forms=["columns"])
    return simulator.cost(task, plan).total_ms / _bound(task, simulator) - 1


@pytest.mark.parametrize("num_devices", [4, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("models", "batch_size", "most"),
    [("roofline:h100", 65536, 0.2), ("cpu", 4096, 0.1), ("h100", 65536, 0.2), ("cpu+torchrec", 4096, 0.2)],
)
def test_the_bound_is_close_for_models_that_keep_to_physics(models, batch_size, most, num_devices):
    """Many tables of many sizes on a few devices leave little to be gained, but that each shard sorts all lookups."""
    simulator, tables = Simulator(CostModels.load(models)), dlrm_like(batch_size=batch_size, seed=1)
    (task,) = drawn(tables, Topology(num_devices, 4 << 30), batch_size, TaskDraw(count=1))
    assert 0 <= _gap(task, simulator) < most


def test_what_narrow_tables_save_takes_little_from_the_bound():
    """A wide table beside them would undo it on any device, by more than all that there is to be saved."""
    task, models = toy_task(48), replace(_networks(0), compute=random_by_widest())
    assert 0 <= _gap(task, Simulator(models)) < 0.1


def test_costs_that_only_add_up_are_bounded_by_their_mean():
    """48 tables of the same cost on 4 devices, 12 on each: nothing can be better."""
    task = replace(toy_task(48), tables=tuple(replace(toy_task(1).tables[0], name=f"t{i}") for i in range(48)))
    assert _gap(task, Simulator(linear_models())) == pytest.approx(0, abs=2e-3)


def test_the_widest_shard_of_a_table_bounds_too():
    """One table, whose shards each read all lookups: on as many devices as may hold it, or on one."""
    task = toy_task(1, num_devices=4)
    simulator = Simulator(replace(linear_models(), forward=FreeComm(), backward=FreeComm()))
    cut = task.tables[0].with_dim(16)
    alone_ms = float(simulator.models.compute.embed(Loads.of([cut.with_dim(4)], task.batch_size))[0, 0])
    whole_ms = float(simulator.models.compute.embed(Loads.of([cut], task.batch_size))[0, 0])
    for constraints, best_ms in ((Constraints(), alone_ms), (Constraints((TableRule("*", max_shards=1),)), whole_ms)):
        one = replace(task, tables=(cut,), constraints=constraints)
        assert _bound(one, simulator) == pytest.approx(best_ms, rel=2e-3)


def test_models_that_are_no_sums_have_no_bound():
    task, models = toy_task(4), linear_models()
    assert _bound(task, Simulator(models)) is not None
    assert _bound(task, Simulator(replace(models, compute=OpaqueCompute()))) is None


def test_one_device_costs_what_it_costs():
    task, simulator = toy_task(5, num_devices=1), Simulator(CostModels.load("cpu"))
    cost = simulator.cost(task, search(task, simulator, searcher="dim_greedy")).total_ms
    assert 0.9 * cost < _bound(task, simulator) <= cost


@pytest.mark.parametrize(
    "model", [random_ensemble().members[0], random_by_widest(), random_models().compute, LinearCompute()]
)
def test_prices_are_below_costs_of_any_set(model):
    """Of shards that may lie on one device together, one of an item at most."""
    task, rng = toy_task(12), np.random.default_rng(0)
    catalog = Catalog.costed(sizes_of(task), Simulator(random_models()), model)
    prices = Prices.of(catalog, model.head, 0.0)
    for _ in range(300):
        width = rng.integers(0, catalog.full_width + 1) * (rng.random(12) < rng.random())
        if width.any():
            held = catalog.first + width
            cost_ms = float(model.head(catalog.vectors[held].sum(axis=0)))
            assert prices.base_ms + prices.price_ms[held].sum() <= cost_ms * (1 + 1e-6) + 1e-6
            columns = np.array([4.0 * width.sum()])
            assert prices.of_columns_ms(columns)[0] <= prices.price_ms[held].sum() + 1e-6
            assert prices.price_ms[held].sum() >= -prices.discount_ms


@pytest.mark.parametrize("num_devices", [2, 3, 8])
def test_no_wait_shortens_a_transfer_by_more(num_devices):
    """Whoever waits, and however long: only the mean of the waits is told. Sometimes one waits for all the others."""
    rng, count, parts = np.random.default_rng(num_devices), 200, 3
    for _ in range(20):
        lead = rng.dirichlet(np.full(5, 0.3), size=parts)
        starts = rng.uniform(0, 5, size=(count, num_devices)) ** rng.choice([0.1, 1, 4], size=(count, num_devices))
        parts_ms, share = rng.uniform(0, 5, size=(count, 1, parts)), rng.dirichlet(np.ones(parts))
        wait_ms = waits(starts)
        least = least_left_ms(Outline(parts_ms, share, lead), wait_ms.mean(axis=1), longest_waits(num_devices))
        left = np.maximum(parts_ms - device_waits(wait_ms) @ lead.T, 0) @ share
        assert (left >= least[:, None] - 1e-9).all()


def test_fewer_steps_make_a_bound_that_is_a_little_lower():
    (task,) = drawn(dlrm_like(batch_size=65536, seed=1), Topology(8, 4 << 30), 65536, TaskDraw(count=1))
    catalog = catalog_of(task, H100)
    fine, coarse = (lower_bound_ms(catalog, steps) for steps in (1000, 100))
    assert 0.97 * fine < coarse <= fine
