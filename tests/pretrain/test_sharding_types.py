"""Models of all sharding types and collectives, fitted to made-up devices with known costs."""

import json
from dataclasses import replace

import numpy as np
import pytest

from neuroshard import CostModels, Simulator, Task, Topology
from neuroshard.cost.loads import Loads, Traffic
from neuroshard.measure.store import DataDirectory
from neuroshard.measure.store.noise import fastest
from neuroshard.models.parts import compute_part
from neuroshard.stages.augment.comm import CommAugmentation
from neuroshard.stages.augment.compute import ComputeAugmentation
from neuroshard.stages.pretrain.fit_additive import Additive
from neuroshard.stages.pretrain.fit_set_comm import SetCommunication
from neuroshard.stages.pretrain.paper import PaperComm, PaperCompute
from neuroshard.stages.pretrain.pieces import pieces_of
from neuroshard.stages.pretrain.pretrain import Pretrain
from neuroshard.stages.pretrain.training import TrainingSettings
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.published.grid import GridSettings
from neuroshard.tables.sources.dlrm_like import dlrm_like
from neuroshard.words.collective import Collective, name_of
from neuroshard.words.form import CALLS, COLUMN_WISE_CALL, ON_DEVICE_CALLS, Call, Form
from tests.kit.devices import MADE_UP, measured_comm
from tests.kit.made_up import BRIEF, BRIEF_SETS, MACHINE, begun, collected
from tests.kit.messages import refused
from tests.kit.plans import DATA_PARALLEL, laid_out, whole

pytestmark = pytest.mark.xdist_group("forms")  # its tests share models that take long to fit
DEVICE = MADE_UP["cpu"]
TABLES = tuple(table for table in dlrm_like(num_tables=120, batch_size=4096) if table.rows >= 64)
FEW_EPOCHS = TrainingSettings(50, 64, 5e-3, "cosine", "absolute_relative", 50)
STILL = replace(BRIEF, epochs=1, learning_rate=1e-12)
SETS = {
    "compute_model": Additive((32,), training=FEW_EPOCHS, corrections=4),
    "comm_model": SetCommunication((32,), FEW_EPOCHS, parts=2),
}
FEWER = SetCommunication((32,), replace(FEW_EPOCHS, epochs=25), parts=2)
ALL_PARTS = {
    "compute", "compute.row_wise", "compute.data_parallel", "input",
    "forward", "forward.reduce_scatter", "forward.host_reduce_scatter", "forward.host_all_to_all",
    "backward", "backward.reduce_scatter", "backward.host_reduce_scatter", "backward.host_all_to_all",
    "backward.all_reduce",
}  # fmt: skip


WIDELY = {"sharding_types": tuple(Form), "sharers": (2, 4)}


def _write(path, calls, exchanges, **changes):
    drawn = ComputeAugmentation(
        max_tables=6, max_bytes=1 << 30, **{"sharding_types": tuple(Form), "sharers": (2, 4)} | changes
    )
    swapped = CommAugmentation(max_start_ms=DEVICE.max_start_ms, collectives=tuple(name_of(one) for one in Collective))
    return collected(path, TABLES, (calls, drawn), (exchanges, swapped), devices_per_host=2)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return _write(tmp_path_factory.mktemp("forms") / "data", 600, 600).path


@pytest.fixture(scope="module")
def columns(data):
    return [m for m in fastest(DataDirectory(data).compute().each()) if m.sample.call == COLUMN_WISE_CALL]


@pytest.fixture(scope="module")
def fitted(data):
    return _pretrain(data, "bundle", **SETS)


@pytest.fixture(scope="module")
def models(data, fitted):
    return CostModels.load(data.parent / "bundle")


def _pretrain(data, out, **changes):
    return Pretrain(data=str(data), out=str(data.parent / out), **changes).run()


def _mixed(devices_per_host):
    wide = sorted(TABLES, key=lambda table: -table.rows)
    tables = tuple(table.with_dim(32) for table in (*wide[:2], wide[-1], *wide[20:23]))
    task = Task(tables, Topology(4, 8 << 30, devices_per_host=devices_per_host), 4096)
    return laid_out(task, range(4), range(2 if devices_per_host else 4), DATA_PARALLEL, 0, 2, 3)


def test_pretrained_models_of_all_parts_learn_the_costs(data, fitted):
    assert fitted.metrics.keys() == ALL_PARTS
    for part, metric in fitted.metrics.items():
        assert metric.test.mape < 0.25, (part, metric.test.mape)
        assert metric.coverage > 0.6, part
    card = json.loads((data.parent / "bundle" / "bundle.json").read_text())["card"]
    assert card["metrics"]["others"].keys() == ALL_PARTS - {"compute", "forward", "backward"}
    assert card["data"]["other_samples"].keys() == card["metrics"]["others"].keys()


@pytest.mark.parametrize("devices_per_host", [None, 2])
def test_predictions_for_every_sharding_type_are_near_true_costs(models, devices_per_host):
    plan = _mixed(devices_per_host)
    assert models.forms == set(Form)
    found, true = (Simulator(one, count_input=True).cost(plan.task, plan) for one in (models, DEVICE.truth))
    assert found.total_ms == pytest.approx(true.total_ms, rel=0.25)
    assert found.compute == pytest.approx(true.compute, rel=0.4)
    assert found.ms("input") == pytest.approx(true.ms("input"), rel=0.4)
    assert found.margin_ms > 0


def _outside(warnings):
    """The quantities of the warnings that values are outside the training range."""
    return [warning.where for warning in warnings if warning.code == "values-outside-training-range"]


def test_warnings_name_the_part_whose_loads_are_outside_the_training_range(models):
    task = _mixed(None).task
    huge = replace(task, tables=(replace(task.tables[2], rows=500_000_000),))
    other = laid_out(huge, DATA_PARALLEL)
    told = _outside(Simulator(models).warnings(other))
    assert any(one.startswith("compute.data_parallel: rows") for one in told)
    assert any(one.startswith("backward.all_reduce: bytes from a device") for one in told)


def test_simulator_warns_of_unmeasured_exchanges_between_hosts(models):
    simulator = Simulator(models)
    assert "exchanges: hosts" in _outside(simulator.warnings(_mixed(None)))
    assert not any("hosts" in one for one in _outside(simulator.warnings(_mixed(2))))


def test_training_range_includes_the_imbalance_of_measured_exchanges(models):
    (known,) = (one for one in models.ranges.others["exchanges"] if "of 4 devices" in one.name)
    assert known.least == 1.0
    assert 1.5 < known.most <= 4.0


def test_backward_waits_do_not_shorten_collectives_measured_without_waits(models):
    """After another exchange, devices start an all-gather at different times, which no sample measures."""
    plan = _mixed(None)
    gather = models.backward.exchanges[Collective.REDUCE_SCATTER]
    alone, wait_ms = plan.traffic.alone(Collective.REDUCE_SCATTER), np.array([[0.0, 3.0, 1.0, 2.0]])
    assert (gather.transfer_ms(alone, wait_ms) == gather.transfer_ms(alone, 0 * wait_ms)).all()
    scatter = models.forward.exchanges[Collective.REDUCE_SCATTER]
    assert (scatter.lead > 0).any()


def test_pretrain_fits_only_the_named_calls_and_refuses_unknown_ones(data):
    rows = _pretrain(data, "row_wise", calls=("row_wise",), **BRIEF_SETS)
    assert rows.metrics.keys() == {part for part in ALL_PARTS if not part.endswith(("data_parallel", "all_reduce"))}
    assert CostModels.load(data.parent / "row_wise").forms == {Form.COLUMN_WISE, Form.ROW_WISE}
    with refused("plan-sharding-type-unsupported", where="plan", names=["data_parallel", "column_wise, row_wise"]):
        Simulator(CostModels.load(data.parent / "row_wise")).cost(_mixed(None).task, _mixed(None))
    with refused("unknown-name", names=["'row'"]):
        _pretrain(data, "wrong", calls=("row",), **BRIEF_SETS)


def test_fitting_further_starts_from_every_part_of_the_initial_models(data):
    _pretrain(data, "first", **BRIEF_SETS)
    unmoved = {
        "compute_model": Additive(training_further=STILL),
        "comm_model": SetCommunication(training_further=STILL),
    }
    _pretrain(
        data, "further", init=str(data.parent / "first"), min_finetune_samples=8, allow_regression=True, **unmoved
    )
    before, after = (CostModels.load(data.parent / name) for name in ("first", "further"))
    first, further = pieces_of(before), pieces_of(after)
    assert first.keys() == further.keys() == ALL_PARTS
    for part, model in first.items():
        for name, tensor in model.tensors().items():
            assert np.allclose(tensor, further[part].tensors()[name], rtol=1e-4, atol=1e-6), (part, name)
    assert after.ranges == before.ranges


def test_row_wise_models_start_from_fitted_column_wise_models(data):
    """Both types have the same kernel. Data-parallel tables have another one, whose model has no initial model."""
    networks = {"compute_model": Additive((8,), training=STILL), "comm_model": SetCommunication((8,), STILL)}
    _pretrain(data, "still", **networks)
    model, loads = CostModels.load(data.parent / "still").compute, Loads.of(TABLES[:20], 4096)
    columns, rows, copies = (model.of_call(Call(form)).embed(loads) for form in Form)
    assert np.allclose(rows, columns, rtol=1e-4)
    assert not np.allclose(copies, columns, rtol=0.1)


def test_paper_networks_fit_row_wise_tables_and_refuse_several_batch_sizes(tmp_path):
    _write(tmp_path / "data", 300, 400)
    networks = {"compute_model": PaperCompute(training=BRIEF), "comm_model": PaperComm(training=BRIEF)}
    with refused("samples-values-differ", names=["1024, 2048", "features=paper", "physical"]):
        _pretrain(tmp_path / "data", "wrong", **networks)  # data_parallel was measured with several numbers of devices
    _pretrain(tmp_path / "data", "row_wise", calls=("row_wise",), **networks)
    models = CostModels.load(tmp_path / "row_wise")
    assert models.forms == {Form.COLUMN_WISE, Form.ROW_WISE}
    assert models.num_devices == 4


@pytest.fixture(scope="module")
def sequences(tmp_path_factory):
    path = tmp_path_factory.mktemp("sequences") / "data"
    _write(
        path,
        600,
        300,
        sharding_types=("column_wise", "column_wise", "row_wise"),
        pooled=(True, False),
        max_output_bytes=256 << 20,
    )
    _pretrain(path, "bundle", **SETS | {"comm_model": FEWER})
    return CostModels.load(path.parent / "bundle")


def test_sequence_tables_are_learned_costed_and_searched(sequences):
    """From samples to a plan: sequence tables have separate kernels and models, and their costs add up."""
    assert sequences.compute.calls == {call for call in ON_DEVICE_CALLS if call.form is not Form.DATA_PARALLEL}
    chosen = sorted(TABLES, key=lambda table: table.pooling_factor)[10:22]
    tables = tuple(replace(table.with_dim(32), pooled=i % 3 > 0) for i, table in enumerate(chosen))
    task = Task(tables, Topology(4, 8 << 30), 4096)
    searcher = NeuroShard(3, 1, 2, GridSettings(points=3), Improvement(perturbations=2))
    plans = [searcher.find(task, Simulator(models)).plan for models in (sequences, DEVICE.truth)]
    for plan in plans:
        assert plan.violations == ()
        found, true = (Simulator(models).cost(task, plan) for models in (sequences, DEVICE.truth))
        assert found.compute == pytest.approx(true.compute, rel=0.4)
        assert found.total_ms == pytest.approx(true.total_ms, rel=0.3)
    ours, best = (Simulator(DEVICE.truth).cost(task, plan).total_ms for plan in plans)
    assert ours < 1.15 * best
    rows = laid_out(task, *(range(4) if i == 3 else i % 4 for i in range(12)))
    found, true = (Simulator(models).cost(task, rows) for models in (sequences, DEVICE.truth))
    assert found.compute == pytest.approx(true.compute, rel=0.4)
    long = replace(task, tables=(replace(tables[0], pooling_factor=5000.0), *tables[1:]))
    told = _outside(Simulator(sequences).warnings(whole(long)))
    assert any(one.startswith("compute.sequence_column_wise: outputs of a sample") for one in told)
    assert not any(one.startswith("pooling factor") for one in told)


def test_pretrain_fits_the_named_calls_and_refuses_unmeasured_ones(tmp_path):
    _write(tmp_path / "data", 300, 200, sharding_types=("column_wise",), pooled=(True, False))
    for out, calls, known in (
        ("pooled", (), {COLUMN_WISE_CALL}),
        ("both", None, {COLUMN_WISE_CALL, Call(Form.COLUMN_WISE, False)}),
    ):
        _pretrain(tmp_path / "data", out, calls=calls, **BRIEF_SETS)
        assert CostModels.load(tmp_path / out).compute.calls == known
    for call, tables in (("row_wise", "row_wise tables"), ("sequence_row_wise", "row_wise sequence tables")):
        with refused("split-empty", where=str(tmp_path / "data"), names=["train", tables]):
            _pretrain(tmp_path / "data", "wrong", calls=(call,), **BRIEF_SETS)


def test_every_fitted_part_has_a_name():
    sequences = ["compute.sequence_column_wise", "compute.sequence_row_wise"]
    on_device = ["compute", "compute.row_wise", "compute.data_parallel", *sequences]
    kinds = ["column_wise", "row_wise", "sequence_column_wise", "sequence_row_wise"]
    in_host = [f"compute.{tier}_{kind}" for tier in ("uvm_caching", "uvm") for kind in kinds]
    assert [compute_part(call) for call in CALLS] == [*on_device, *in_host]


def _linked(path, devices_per_host, seed, calls):
    """Write kernel calls, and all-to-alls of 4 devices that take three times as long on two hosts."""
    rng = np.random.default_rng(seed)
    comm = [CommAugmentation(max_start_ms=DEVICE.max_start_ms).draw(4, 4096, rng, devices_per_host) for _ in range(400)]
    directory = begun(path, TABLES)
    measured = measured_comm(DEVICE, comm, 0.03, rng)
    if devices_per_host is not None:
        measured = [replace(m, repeats=replace(m.repeats, times_ms=3 * m.repeats.times_ms)) for m in measured]
    directory.comm().write(0, measured)
    directory.compute().write(0, calls)


@pytest.mark.slow
def test_fitted_models_cost_more_for_exchanges_that_cross_hosts(columns, tmp_path):
    """The data directories have exchanges on one host and between two hosts."""
    _linked(tmp_path / "one", None, 1, columns)
    _linked(tmp_path / "two", 2, 2, [])
    directories = tuple(str(tmp_path / name) for name in ("one", "two"))
    Pretrain(data=directories, out=str(tmp_path / "bundle"), **BRIEF_SETS | {"comm_model": FEWER}).run()
    models = CostModels.load(tmp_path / "bundle")
    dims = np.array([[256, 128, 256, 192]])
    inside, across = (
        models.backward.predict(Traffic.of_columns(dims, 4096, size), np.zeros((1, 4))) for size in (4, 2)
    )
    assert (across > 2 * inside).all()
    assert (inside == models.backward.predict(Traffic.of_columns(dims, 4096), np.zeros((1, 4)))).all()


def test_pretraining_from_a_directory_named_twice_is_refused(data, tmp_path):
    with refused("data-directory-twice", names=[data]):
        Pretrain(data=(str(data), f"{data}/."), out=str(tmp_path / "bundle"), **BRIEF_SETS).run()


@pytest.mark.parametrize(
    ("change", "machine", "code"),
    [
        (lambda table: table, MACHINE, "table-in-two-splits"),
        (lambda table: replace(table, features=2, reuse=table.reuse[::-1]), MACHINE, "table-in-two-splits"),
        (lambda table: table, replace(MACHINE, device="another"), "data-hardware-differs"),
    ],
    ids=["tables both trained on and tested with", "with more features and larger batches too", "another machine"],
)
def test_pretraining_from_directories_that_differ_is_refused(data, columns, tmp_path, change, machine, code):
    changed = {table.name: change(table) for table in TABLES}
    other = begun(tmp_path / "other", tuple(changed.values()), machine)
    its = [tuple(changed[table.name].with_dim(table.dim) for table in m.sample.tables) for m in columns]
    both = zip(columns, its, strict=True)
    other.compute().write(0, [replace(m, split="train", sample=replace(m.sample, tables=some)) for m, some in both])
    with refused(code, names=[data, other.path]):
        Pretrain(data=(str(data), str(other.path)), out=str(tmp_path / "bundle"), **BRIEF_SETS).run()
