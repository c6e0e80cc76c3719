"""Exchanges in fewer bits cost what so many fewer bytes cost, and move shards."""

import numpy as np
import pytest
from rich.console import Console

from neuroshard.app.listing import show_models
from neuroshard.cost.loads import Traffic
from neuroshard.models import CostModels
from neuroshard.models.precision import narrowed
from neuroshard.models.simulator import Simulator
from neuroshard.plumbing.errors import UserError
from neuroshard.stages.search.methods.heuristics import Greedy
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.tables.sources.criteo import criteo
from neuroshard.tasks.task import Task, Topology
from neuroshard.words.collective import Collective, Precision

TASK = Task(criteo(4096, dim=32), Topology(4, 16 << 30), 4096)


def test_exchanges_cost_what_fewer_bytes_cost():
    full, half = CostModels.load("roofline:h100"), CostModels.load("roofline:h100+fp16/fp8")
    dims, start = np.array([[64, 128, 256, 512]]), np.zeros((1, 4))
    columns, less, least = (Traffic.of_columns(dims // share, 65536) for share in (1, 2, 4))
    assert (half.forward.predict(columns, start) == full.forward.predict(less, start)).all()
    assert (half.backward.predict(columns, start) == full.backward.predict(least, start)).all()
    assert (half.forward.chain(columns, start).total_ms == half.forward.predict(columns, start)).all()
    assert (half.forward.outline(columns).parts_ms == full.forward.outline(less).parts_ms).all()
    assert half.forward.coverage(columns) == full.forward.coverage(less)


def test_copies_and_the_input_stay_as_they_are():
    full, half = (CostModels.load(name) for name in ("roofline:h100", "roofline:h100+bf16"))
    given = np.zeros((1, 4, len(Collective)))
    given[..., Collective.ALL_REDUCE] = 1 << 28
    traffic = Traffic(given, np.array([4096]))
    assert (half.backward.predict(traffic, np.zeros((1, 4))) == full.backward.predict(traffic, np.zeros((1, 4)))).all()
    assert half.input == full.input


def test_conversion_is_a_part_of_datasheets_steps():
    simulator = Simulator(CostModels.load("roofline:h100+fp16"))
    plan = Greedy("size").find(TASK, simulator).plan
    cost, before = simulator.cost(TASK, plan), Simulator(CostModels.load("roofline:h100")).cost(TASK, plan)
    (part,) = (part for part in cost.parts if part.name == "conversion")
    elements = plan.traffic.given(Collective.ALL_TO_ALL)[0] / 4
    assert part.ms == pytest.approx((elements + elements.mean()) * 2 * (4 + 2) / 3350e6)
    assert (cost.forward < before.forward).all()
    assert cost.compute == pytest.approx(before.compute)


@pytest.mark.parametrize("name", ["cpu+fp16", "roofline:h100+adam+bf16/fp8"])
def test_searches_take_them_and_plans_say_so(name):
    models = CostModels.load(name)
    simulator = Simulator(models)
    plan = simulator.predicted(NeuroShard().find(TASK, simulator).plan)
    heuristic = Greedy("size").find(TASK, simulator).plan
    assert plan.prediction.models == models.name == name
    assert simulator.cost(TASK, plan).total_ms <= simulator.cost(TASK, heuristic).total_ms


def test_full_precision_changes_nothing():
    models = CostModels.load("cpu+fp32")
    assert type(models.forward) is type(CostModels.load("cpu").forward)
    assert not models.more


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("cpu+fp16/x", "'x'"),
        ("nobody+fp16", "nobody"),
        ("cpu+fp17", "cpu"),
        ("roofline:h10", "did you mean 'h100'"),
        ("roofline:h100+adams", "unknown optimizer 'adams'; did you mean 'adam'"),
    ],
)
def test_other_words_are_said(name, error):
    with pytest.raises(UserError, match=error):
        CostModels.load(name)


def test_bytes_of_an_element():
    assert {one.value: one.element_bytes for one in Precision} == {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}
    both = narrowed(CostModels.load("cpu"), "fp16/int8")
    assert (both.forward.share, both.backward.share) == (0.5, 0.25)


def test_cards_are_of_the_sheet(capsys):
    show_models(["roofline:h100+fp16"], Console(width=200))
    assert "beside published points" in capsys.readouterr().out
