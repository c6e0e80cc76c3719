"""The pre-trained models that come with the package keep their promise."""

from dataclasses import replace

import pytest

from neuroshard.bundles import shipped_names, shipped_path
from neuroshard.cost.cost import INPUT
from neuroshard.cost.loads import LoadSets
from neuroshard.models import CostModels, load_bundle
from neuroshard.models.parts import FRAMEWORK
from neuroshard.models.simulator import Simulator
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.tables.sources.dlrm_like import dlrm_like
from neuroshard.tasks.task import Task, Topology
from neuroshard.words.form import Form

_MANY = 100  # values, of which it means something that not one in thirty lies outside its interval


def test_cpu_models_are_shipped_with_a_complete_card():
    assert "cpu" in shipped_names()
    _, card = load_bundle(shipped_path("cpu"))
    assert card.hardware.kind == "cpu"
    assert "torch" in card.versions
    assert sum(card.data.compute_samples.values()) >= 3000
    assert sum(card.data.comm_samples.values()) >= 1500
    framework = {name for name in card.metrics.others if name.startswith(FRAMEWORK)}
    assert len(framework) == 3
    learned = [metrics for name, metrics in card.metrics.others.items() if name not in framework | {INPUT}]
    for metrics in (card.metrics.compute, card.metrics.forward, card.metrics.backward, *learned):
        assert 0 < metrics.test.mape < 0.15
        assert 0.8 < metrics.coverage < (0.97 if metrics.test.samples > _MANY else 1)
    assert 0 < card.metrics.others[INPUT].test.mape < 0.17  # two passes differ by 12%
    for name in framework:  # sums of counts, tested on a few dozen steps
        assert 0 < card.metrics.others[name].test.mape < 0.3
        assert 0.8 < card.metrics.others[name].coverage <= 1


def test_they_know_every_form_and_whole_steps():
    models = CostModels.load("cpu")
    assert models.forms == set(Form)
    assert models.input is not None
    assert models.in_torchrec().of_whole_steps


@pytest.mark.parametrize(("num_devices", "batch_size"), [(2, 256), (4, 4096), (5, 700), (8, 8192)])
def test_they_serve_any_number_of_devices_and_batch_size_in_range(num_devices, batch_size):
    simulator = Simulator(CostModels.load("cpu"))
    tables = tuple(table.with_dim(32) for table in dlrm_like(num_tables=20, batch_size=batch_size, seed=5))
    task = Task(tables, Topology(num_devices, 8 << 30), batch_size)
    plan = BeamSearch(max_splits=2).find(task, simulator).plan
    cost = simulator.cost(task, plan)
    assert 0 < cost.margin_ms < cost.total_ms
    assert not [w for w in simulator.warnings(plan) if w.startswith(("devices", "batch size", "dim", "tables"))]


def test_they_warn_outside_their_range():
    simulator = Simulator(CostModels.load("cpu"))
    tables = tuple(table.with_dim(1024) for table in dlrm_like(num_tables=16, batch_size=64, seed=5))
    task = Task(tables, Topology(16, 8 << 30), 64)
    names = {w.split(":")[0] for w in simulator.warnings(BeamSearch(max_splits=0).find(task, simulator).plan)}
    assert {"devices", "batch size", "dim"} <= names


@pytest.mark.parametrize("batch_size", [256, 2048])
def test_more_lookups_cost_no_less(batch_size):
    """Their form doesn't demand it: it is what they learned."""
    pool = dlrm_like(num_tables=120, batch_size=batch_size, seed=8)
    sets = [[table.with_dim(4 * (1 + (7 * i + n) % 32)) for n, table in enumerate(pool[i::12])] for i in range(12)]
    busier = [[replace(table, pooling_factor=1.5 * table.pooling_factor) for table in tables] for tables in sets]
    model = CostModels.load("cpu").compute
    cost = model.predict(LoadSets.of(sets, batch_size))
    assert (model.predict(LoadSets.of(busier, batch_size)) > cost).all()
    assert (model.predict(LoadSets.of(sets, 2 * batch_size)) > cost).all()


@pytest.mark.parametrize("dim", [4, 64, 512])
def test_beyond_what_was_measured_costs_grow_with_lookups(dim):
    """Four times the lookups of a large table take about four times as long, though no sample had as many."""
    table = replace(dlrm_like(num_tables=1, batch_size=1024, seed=5)[0], dim=dim, rows=2_000_000, pooling_factor=400.0)
    sets = [[table], [replace(table, pooling_factor=1600.0)]]
    few, many = CostModels.load("cpu").compute.predict(LoadSets.of(sets, 1024))
    assert 3 < many / few < 5
