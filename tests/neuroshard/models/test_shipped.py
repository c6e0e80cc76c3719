"""The shipped pre-trained models: cards, kernel calls, and training ranges."""

from dataclasses import replace

import pytest

from neuroshard import CostModels, Simulator, Task, Topology
from neuroshard.bundles import shipped_names, shipped_path
from neuroshard.cost.cost import COMPUTE, INPUT
from neuroshard.cost.loads import LoadSets
from neuroshard.models import load_bundle
from neuroshard.models.parts import FRAMEWORK
from neuroshard.models.roofline import RooflineComm
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.tables.sources.dlrm_like import dlrm_like
from neuroshard.words.form import CALLS, Form

SHIPPED = ["cpu", "h100"]
_MANY = 100  # values: enough that fewer than one in thirty outside its interval means something


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


def test_gpu_models_are_shipped_with_a_complete_card():
    assert "h100" in shipped_names()
    models, card = load_bundle(shipped_path("h100"))
    assert card.hardware.kind == "cuda"
    assert "H100" in card.hardware.device
    assert {"torch", "fbgemm-gpu"} <= card.versions.keys()
    assert sum(card.data.compute_samples.values()) >= 2000
    assert (card.metrics.forward, card.metrics.backward) == (None, None)  # a datasheet's
    assert isinstance(models.forward, RooflineComm)
    framework = {f"{FRAMEWORK}.{part}" for part in ("input", "kernels", "outputs", "host")}
    calls = {"row_wise", "data_parallel", "sequence_column_wise", "sequence_row_wise", "uvm_caching_column_wise"}
    assert card.metrics.others.keys() == framework | {f"{COMPUTE}.{call}" for call in calls}
    assert 0 < card.metrics.compute.test.mape < 0.1
    assert 0.8 < card.metrics.compute.coverage < 0.97
    for metrics in card.metrics.others.values():
        assert 0.8 <= metrics.coverage <= 1
    for call in calls:
        assert 0 < card.metrics.others[f"{COMPUTE}.{call}"].test.mape < 0.2
    for name in framework:
        assert 0 < card.metrics.others[name].test.mape < 0.3


@pytest.mark.parametrize("name", SHIPPED)
def test_installed_models_cost_every_sharding_type_input_dist_and_whole_steps(name):
    models = CostModels.load(name)
    assert models.forms == set(Form)
    assert models.input is not None
    assert models.in_torchrec().of_whole_steps
    assert CostModels.load(name, framework="torchrec").of_whole_steps


def test_gpu_models_cost_every_kernel_call():
    assert CostModels.load("h100").compute.calls == {*CALLS}


@pytest.mark.parametrize(
    ("name", "num_devices", "batch_size"),
    [
        *[("cpu", *sizes) for sizes in ((2, 256), (4, 4096), (5, 700), (8, 8192))],
        *[("h100", *sizes) for sizes in ((2, 2048), (5, 7000), (8, 65536), (128, 16384))],
    ],
)
def test_installed_models_serve_any_number_of_devices_and_batch_size_in_range(name, num_devices, batch_size):
    simulator = Simulator(CostModels.load(name))
    tables = tuple(table.with_dim(32) for table in dlrm_like(num_tables=20, batch_size=batch_size, seed=5))
    task = Task(tables, Topology(num_devices, 8 << 30), batch_size)
    plan = BeamSearch(max_splits=2).find(task, simulator).plan
    cost = simulator.cost(task, plan)
    assert 0 < cost.margin_ms < cost.total_ms
    outside = [one.where for one in simulator.warnings(plan)]
    assert not [where for where in outside if where.startswith(("devices", "batch size", "dim", "tables"))]


def test_installed_models_warn_outside_their_training_range():
    simulator = Simulator(CostModels.load("cpu"))
    tables = tuple(table.with_dim(1024) for table in dlrm_like(num_tables=16, batch_size=64, seed=5))
    task = Task(tables, Topology(16, 8 << 30), 64)
    names = {one.where for one in simulator.warnings(BeamSearch(max_splits=0).find(task, simulator).plan)}
    assert {"devices", "batch size", "dim"} <= names


@pytest.mark.parametrize(("name", "batch_size"), [("cpu", 256), ("cpu", 2048), ("h100", 2048), ("h100", 32768)])
def test_shipped_models_predict_no_lower_cost_for_more_lookups(name, batch_size):
    """The models' structure does not demand it: they learned it."""
    pool = dlrm_like(num_tables=120, batch_size=batch_size, seed=8)
    sets = [[table.with_dim(4 * (1 + (7 * i + n) % 32)) for n, table in enumerate(pool[i::12])] for i in range(12)]
    busier = [[replace(table, pooling_factor=1.5 * table.pooling_factor) for table in tables] for tables in sets]
    model = CostModels.load(name).compute
    cost = model.predict(LoadSets.of(sets, batch_size))
    assert (model.predict(LoadSets.of(busier, batch_size)) > cost).all()
    assert (model.predict(LoadSets.of(sets, 2 * batch_size)) > cost).all()


@pytest.mark.parametrize("dim", [4, 64, 512])
@pytest.mark.parametrize(("name", "batch_size"), [("cpu", 1024), ("h100", 65536)])
def test_costs_outside_the_training_range_grow_with_lookups(name, batch_size, dim):
    """Four times the lookups of a large table take about four times as long, though no sample had as many."""
    (table,) = dlrm_like(num_tables=1, batch_size=batch_size, seed=5)
    table = replace(table, dim=dim, rows=2_000_000, pooling_factor=400.0)
    sets = [[table], [replace(table, pooling_factor=1600.0)]]
    few, many = CostModels.load(name).compute.predict(LoadSets.of(sets, batch_size))
    assert 3 < many / few < 5
