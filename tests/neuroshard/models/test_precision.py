"""Exchanges in reduced precision: costs, conversion time, and plans."""

import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from neuroshard import CostModels, Simulator, Task, Topology
from neuroshard.app.listing import show_models
from neuroshard.cost.loads import LoadSets, Traffic
from neuroshard.models import Card, save_bundle
from neuroshard.models.parts import CONVERTED, Framework
from neuroshard.models.precision import Conversion, converted_mb
from neuroshard.stages.search.methods.heuristics import Greedy
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.tables.sources.criteo import criteo
from neuroshard.testing import LinearComm, toy_task
from neuroshard.words.collective import Collective, Precision
from neuroshard.words.model_choice import ModelChoice
from tests.kit.messages import refused
from tests.kit.plans import DATA_PARALLEL, laid_out
from tests.kit.random_models import random_form_models
from tests.kit.searches import H100
from tests.kit.step_plans import mixed_plan

TASK = Task(criteo(4096, dim=32), Topology(4, 16 << 30), 4096)


def test_exchange_dtype_of_fewer_bits_costs_as_much_as_exchanging_fewer_bytes():
    full, half = CostModels.load("roofline:h100"), CostModels.load("roofline:h100", exchange_dtype="fp16/fp8")
    dims, start = np.array([[64, 128, 256, 512]]), np.zeros((1, 4))
    columns, less, least = (Traffic.of_columns(dims // share, 65536) for share in (1, 2, 4))
    forward, backward = Simulator(half).communication(columns, start)
    assert (forward == full.forward.predict(less, start + backward)).all()
    assert (backward == full.backward.predict(least, start)).all()


def test_users_own_exchange_model_gets_the_bytes_in_exchange_precision():
    models = CostModels.load("cpu", exchange_dtype="fp16/fp8").with_forward(LinearComm(4, per_column_ms=1.0))
    columns, start = Traffic.of_columns(np.array([[64, 128, 256, 512]]), 65536), np.zeros((1, 4))
    backward = Simulator(models).communication(columns, start)[1]
    waits = backward.max() - backward
    assert Simulator(models).communication(columns, start)[0] == pytest.approx(256.0 + waits)


def test_cost_of_equal_devices_counts_the_exchange_precision():
    simulator, given = Simulator(CostModels.load("roofline:h100", exchange_dtype="fp16/fp8")), np.zeros((1, 6))
    given[0, Collective.ALL_TO_ALL] = 1 << 28
    traffic = Traffic(np.repeat(given[:, None], 4, axis=1), np.array([TASK.batch_size]))
    forward, backward = simulator.communication(traffic, np.zeros((1, 4)))
    assert simulator.even_ms(TASK, given, np.zeros(1)) == pytest.approx((forward + backward).max(axis=1))


def test_exchange_dtype_does_not_change_all_reduce_and_input_dist():
    full, half = (CostModels.load("roofline:h100", exchange_dtype=dtype) for dtype in (None, "bf16"))
    given = np.zeros((1, 4, len(Collective)))
    given[..., Collective.ALL_REDUCE] = 1 << 28
    traffic = Traffic(given, np.array([4096]))
    each = [Simulator(models).communication(traffic, np.zeros((1, 4))) for models in (half, full)]
    np.testing.assert_array_equal(*each)
    assert half.input == full.input


def test_datasheet_cost_has_a_conversion_part_in_reduced_exchange_precision():
    simulator = Simulator(CostModels.load("roofline:h100", exchange_dtype="fp16"))
    plan = Greedy("size").find(TASK, simulator).plan
    cost, before = simulator.cost(TASK, plan), H100.cost(TASK, plan)
    (part,) = (part for part in cost.parts if part.name == "conversion")
    elements = plan.traffic.sent_bytes(Collective.ALL_TO_ALL)[0] / 4
    assert part.ms == pytest.approx((elements + elements.mean()) * 2 * (4 + 2) / 3350e6)
    assert (cost.forward < before.forward).all()
    assert cost.compute == pytest.approx(before.compute)


@pytest.mark.parametrize(("name", "directions"), [("fp16", 2), ("fp32/bf16", 1), ("fp16/fp32", 1), ("fp32", 0)])
def test_models_with_a_fitted_conversion_time_count_it_in_reduced_precision_only(tmp_path, name, directions):
    framework = Framework(0.5, {}, {"calls": 0.1}, {"mean MB of column-wise outputs": 0.2, CONVERTED: 0.25})
    save_bundle(tmp_path, replace(random_form_models(), framework=framework), Card())
    plan = mixed_plan(4, devices_per_host=2)
    less, full = (
        Simulator(CostModels.load(tmp_path, framework="torchrec", exchange_dtype=dtype)).cost(plan.task, plan)
        for dtype in (name, None)
    )
    taken_ms = 0.25 * directions * converted_mb(plan.traffic)[0]
    assert sum(its.ms for its in less.parts if its.name == "conversion") == pytest.approx(taken_ms)
    assert less.ms("framework.outputs") == pytest.approx(full.ms("framework.outputs"))
    assert "conversion" not in {its.name for its in full.parts}


def test_devices_convert_the_bytes_they_send_and_receive():
    task = toy_task(2, num_devices=4)
    outputs = [4e-6 * task.batch_size * table.dim for table in task.tables]
    columns = laid_out(task, 0, 3)
    got = sum(outputs) / 4
    np.testing.assert_allclose(converted_mb(columns.traffic), [[outputs[0] + got, got, got, outputs[1] + got]])
    rows = laid_out(task, range(4), range(4))
    np.testing.assert_allclose(converted_mb(rows.traffic), [[sum(outputs) * (1 + 1 / 4)] * 4])
    data_parallel = laid_out(task, DATA_PARALLEL, DATA_PARALLEL)
    assert not converted_mb(data_parallel.traffic).any()


def test_searches_place_shards_by_conversion_time():
    simulator, plan = Simulator(replace(random_form_models(), more=(Conversion(0.25),))), mixed_plan(4)
    sets = plan.device_loads
    loads, times = sets.loads, simulator.kernel_times(sets, 4)
    added = simulator.compute_for(plan.task).predict(LoadSets.alone(loads))
    added -= simulator.models.compute.predict(LoadSets.alone(loads))
    shared = simulator.shared_ms(plan.task, times.kernels, times.counts.mean(axis=1), np.zeros(1))
    np.testing.assert_allclose(sets.totals(added) + shared, 0.25 * converted_mb(plan.traffic)[0], rtol=1e-4)
    assert not simulator.models.of_whole_steps


def test_conversion_costs_nothing_if_not_fitted_or_in_full_precision():
    assert not CostModels.load("cpu", exchange_dtype="fp16").more
    assert "conversion" not in {
        part.name for part in CostModels.load("cpu", framework="torchrec", exchange_dtype="fp16").more
    }
    models = CostModels.load("cpu", exchange_dtype="fp32")
    assert type(models.forward) is type(CostModels.load("cpu").forward)
    assert not models.more


@pytest.mark.parametrize(
    "choice",
    [
        ModelChoice("cpu", exchange_dtype="fp16"),
        ModelChoice("roofline:h100", exchange_dtype="bf16/fp8", optimizer="adam"),
    ],
)
def test_searches_accept_precisions_and_plans_record_them(choice):
    models = CostModels.of(choice)
    simulator = Simulator(models)
    plan = simulator.predicted(NeuroShard().find(TASK, simulator).plan)
    heuristic = Greedy("size").find(TASK, simulator).plan
    assert plan.prediction.models == models.choice == choice
    assert simulator.cost(TASK, plan).total_ms <= simulator.cost(TASK, heuristic).total_ms


@pytest.mark.parametrize(
    ("name", "settings", "code", "names"),
    [
        ("cpu", {"exchange_dtype": "fp16/x"}, "unknown-name", ["exchange_dtype", "'x'"]),
        ("cpu", {"exchange_dtype": "fp16/"}, "unknown-name", ["exchange_dtype", "''", "bf16, fp16, fp32, fp8, int8"]),
        ("cpu", {"exchange_dtype": "fp16/bf16/fp8"}, "exchange-dtype-count", ["exchange_dtype", "fp16/bf16/fp8", 3, 2]),
        ("cpu", {"exchange_dtype": "fp17"}, "unknown-name", ["exchange_dtype", "'fp17'", "'fp16'"]),
        ("cpu", {"framework": "torchrecs"}, "unknown-name", ["framework", "'torchrecs'", "'torchrec'"]),
        ("cpu", {"optimizer": "adam"}, "models-ignore-optimizer", ["'cpu'", "optimizer=adam", "roofline:NAME"]),
        ("nobody", {"exchange_dtype": "fp16"}, "unknown-name", ["'nobody'"]),
        ("roofline:h10", {}, "unknown-name", ["'h10'", "'h100'"]),
        ("roofline:h100", {"optimizer": "adams"}, "unknown-name", ["optimizer", "'adams'", "'adam'"]),
    ],
)
def test_models_with_unknown_settings_are_refused(name, settings, code, names):
    with refused(code, names=names):
        CostModels.load(name, **settings)


def test_precision_has_known_bytes_per_element():
    assert {one.value: one.element_bytes for one in Precision} == {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}
    both = CostModels.load("cpu", exchange_dtype="fp16/int8")
    assert (both.forward_precision, both.backward_precision) == (Precision.FP16, Precision.INT8)


def test_show_models_prints_figures_and_errors_of_the_datasheet(capsys):
    show_models(["roofline:h100"], Console(width=200))
    figures, errors, machines = json.loads(capsys.readouterr().out).values()
    assert figures["host_link_gb_per_s"] == 64.0
    assert {"forward, device", "all_reduce, 8 devices"} <= errors.keys()
    assert "alltoall between hosts, infiniband, Sophia" in machines
