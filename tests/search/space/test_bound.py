"""No plan costs less than its bound says, whatever the models; and where models keep to physics the bound is close."""

from dataclasses import replace

import numpy as np
import pytest

from neuroshard.errors import UserError
from neuroshard.models import CostModels, FreeComm
from neuroshard.searching import search
from neuroshard.simulator import Simulator
from neuroshard.stages.search.space.bound import lower_bound_ms
from neuroshard.stages.search.space.catalog import Catalog
from neuroshard.stages.search.space.items import Items
from neuroshard.stages.search.space.prices import Prices
from neuroshard.stages.search.space.sizes import Sizes
from neuroshard.testing import (
    LinearCompute,
    OpaqueCompute,
    linear_models,
    random_ensemble,
    random_models,
    random_regression,
    random_set_comm,
    toy_task,
)
from neuroshard.testing.exhaustive import tiny_task

MOST_PLANS = 1500


def _networks(num_devices, seed):
    """As pre-training fits them, with random weights: every part of the bound counts."""
    comm = random_set_comm(seed)
    return CostModels(random_ensemble(seed), comm, replace(comm, scale_ms=0.1), None)


def _offset_networks(num_devices, seed):
    """A call costs much by itself, and nothing is exchanged on the way back."""
    members = tuple(replace(member, offset=40.0) for member in random_ensemble(seed).members)
    models = _networks(num_devices, seed)
    return replace(models, compute=replace(models.compute, members=members), backward=FreeComm())


MODELS = {
    "linear": lambda num_devices, seed: linear_models(num_devices),
    "roofline": lambda num_devices, seed: CostModels.load("roofline:h100"),
    "installed": lambda num_devices, seed: CostModels.load("cpu"),
    "networks": _networks,
    "offset": _offset_networks,
    "regression": lambda num_devices, seed: replace(_networks(num_devices, seed), compute=random_regression(seed)),
    "paper": random_models,
    "paper_compute": lambda num_devices, seed: replace(
        _networks(num_devices, seed), compute=random_models(num_devices, seed).compute
    ),
}


def _bound(task, simulator):
    return lower_bound_ms(Catalog.costed(Sizes.of(Items.of(task)), simulator.models.compute), simulator)


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


@pytest.mark.parametrize("name", MODELS)
def test_no_plan_costs_less_than_the_bound(name):
    tried = 0
    for seed, task, plans in _tiny_tasks(range(40)):
        simulator = Simulator(MODELS[name](task.topology.num_devices, seed))
        best = min(cost.total_ms for cost in simulator.costs(task, plans))
        assert _bound(task, simulator) <= best, seed
        tried += 1
    assert tried > 15
