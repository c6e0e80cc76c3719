"""Searches place shards by the input dist if it counts."""

from dataclasses import replace

import numpy as np
import pytest

from neuroshard import CostModels, Simulator, Table, Task, Topology, zipf_reuse
from neuroshard.cost.cost import INPUT
from neuroshard.searching.searcher import searcher_of
from neuroshard.testing import random_models
from tests.kit.messages import refused

BATCH, DEVICES = 4096, 4


def _task(seed):
    """Narrow tables with many lookups and wide tables with few: index and output traffic favour different plans."""
    rng = np.random.default_rng(seed)
    tables = []
    for number in range(24):
        often = number % 4 == 0
        rows, pooling = int(rng.integers(2000, 50_000)), float(rng.integers(60, 120) if often else rng.integers(1, 4))
        dim = int(rng.choice((8, 16) if often else (64, 128)))
        tables.append(Table(f"t{number}", rows, dim, pooling, zipf_reuse(rows, round(BATCH * pooling))))
    return Task(tuple(tables), Topology(DEVICES, 8 << 30), BATCH)


@pytest.mark.parametrize("model", ["cpu", "roofline:h100"])
def test_compute_model_is_unchanged_if_the_input_dist_does_not_count(model):
    simulator = Simulator(CostModels.load(model))
    assert simulator.compute_for(_task(0)) is simulator.models.compute


@pytest.mark.parametrize("model", ["cpu", "roofline:h100"])
def test_compute_model_of_searches_includes_the_ms_per_load(model):
    simulator, task = Simulator(CostModels.load(model), count_input=True), _task(0)
    loads = task.loads.take(np.arange(2))
    plain, counted = simulator.models.compute, simulator.compute_for(task)
    added = counted.head(counted.embed(loads)) - plain.head(plain.embed(loads))
    bytes_each = 8 * (np.ceil(loads.lookups) + loads.bags)
    assert added[0] / added[1] == pytest.approx(bytes_each[0] / bytes_each[1], rel=0.02)
    assert (added > 0).all()


@pytest.mark.parametrize("searcher", [pytest.param("neuroshard", marks=pytest.mark.slow), "neuroshard_published"])
def test_searches_that_count_the_input_dist_find_cheaper_plans_on_average(searcher):
    models = CostModels.load("roofline:h100")
    models = replace(models, input=replace(models.input, speed=0.01))  # indices over links of a hundredth
    counting, ratios, inputs = Simulator(models, count_input=True), [], []
    for seed in range(4):
        task = _task(seed)
        plans = [searcher_of(searcher).find(task, simulator).plan for simulator in (Simulator(models), counting)]
        without, with_input = counting.costs(task, plans)
        ratios.append(with_input.total_ms / without.total_ms)
        inputs.append(with_input.ms(INPUT).max() / without.ms(INPUT).max())
    assert np.mean(ratios) < 1
    assert max(ratios) < 1.005
    assert np.mean(inputs) < 1


def test_simulator_refuses_to_count_an_input_dist_that_models_lack():
    with refused("models-lack-input-dist", names=["count_input"]):
        Simulator(random_models(), count_input=True)
