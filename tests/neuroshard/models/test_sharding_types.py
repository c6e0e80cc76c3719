"""Cost models with a model for each kernel call and each collective."""

from dataclasses import replace

import numpy as np

from neuroshard import CostModels, Simulator, Task, Topology
from neuroshard.cost.loads import Traffic
from neuroshard.models.comm_models import ExchangeModels
from neuroshard.models.interface import waits
from neuroshard.models.trust import DATASHEET, Margin, Margins, Range
from neuroshard.testing import toy_tables
from neuroshard.words.collective import Collective
from neuroshard.words.form import CALLS, Form
from tests.kit.messages import refused
from tests.kit.plans import DATA_PARALLEL, laid_out, whole
from tests.kit.random_models import random_ensemble, random_form_models, random_set_comm

MODELS = random_form_models()
TABLES = tuple(replace(table, rows=table.rows + 8) for table in toy_tables(4))


def _task(devices_per_host=None):
    return Task(TABLES, Topology(4, 1 << 30, devices_per_host=devices_per_host), 256)


def _mixed(task=None):
    task = task or _task()
    return laid_out(task, range(4), range(task.topology.host_size), DATA_PARALLEL, 1)


def test_kernel_calls_of_each_sharding_type_are_predicted_by_its_model():
    plan, model = _mixed(), MODELS.compute
    calls, of_kernels = plan.device_loads.by_kernel()
    for place, number in enumerate(of_kernels.tolist()):
        its, filled = np.arange(place, len(calls), len(of_kernels)), calls.counts[place :: len(of_kernels)] > 0
        alone_ms = model.of_call(CALLS[number]).predict(calls.take(its))
        assert (model.predict(calls)[its] == np.where(filled, alone_ms, 0)).all()
    assert (model.spread_ms(calls)[of_kernels.tolist().index(1) :: len(of_kernels)] > 0).all()
    assert model.forms == set(Form)
    assert model.calls == set(CALLS)


def test_column_wise_tables_cost_the_same_without_other_sharding_types():
    plan = whole(_task(), 0, 1, 2)
    alone = CostModels(random_ensemble(), random_set_comm(0), random_set_comm(10), None)
    with_forms, without = (Simulator(models).cost(plan.task, plan) for models in (MODELS, alone))
    for part in ("compute", "forward", "backward"):
        assert (getattr(with_forms, part) == getattr(without, part)).all()


def test_exchanges_of_several_collectives_run_in_order_and_count_waits_once():
    traffic, starts = _mixed(_task(2)).traffic, np.array([[0.0, 3.0, 1.0, 0.5]])
    model = MODELS.backward
    ends = starts
    for collective in Collective:
        if collective is Collective.INPUT:
            continue
        groups, alone = traffic.groups(collective), traffic.alone(collective)
        taken = model.exchanges[collective].predict(alone, ends[0, groups])
        taken = taken * (alone.size_bytes[..., 0].sum(axis=1, keepdims=True) > 0)
        after = ends.copy()
        after[0, groups] += taken
        ends = after
    assert np.allclose(model.predict(traffic, starts), ends - starts)
    assert np.allclose(model.transfer_ms(traffic, waits(starts)), ends - starts - waits(starts))
    outline = model.outline(traffic)
    together = np.maximum(outline.segments_ms, 0) @ outline.share
    assert np.allclose(together, model.predict(traffic, np.zeros((1, 4))), rtol=1e-5)


def test_host_collectives_exchange_within_groups_of_devices():
    traffic = _mixed(_task(2)).traffic
    assert traffic.groups(Collective.HOST_REDUCE_SCATTER).tolist() == [[0, 1], [2, 3]]
    assert traffic.groups(Collective.HOST_ALL_TO_ALL).tolist() == [[0, 2], [1, 3]]
    alone = traffic.alone(Collective.HOST_REDUCE_SCATTER)
    assert (
        alone.size_bytes[:, :, 0].tolist() == traffic.sent_bytes(Collective.HOST_REDUCE_SCATTER).reshape(2, 2).tolist()
    )
    chain = MODELS.forward.chain(traffic.forward, np.zeros((1, 4)))
    assert (chain.each_ms[Collective.HOST_REDUCE_SCATTER][0, :2] > 0).all()
    assert (chain.each_ms[Collective.HOST_REDUCE_SCATTER][0, 2:] == 0).all()  # nothing of the second host's


def test_later_start_in_a_chain_makes_no_device_end_earlier():
    rng, traffic = np.random.default_rng(0), _mixed(_task(2)).traffic
    many = Traffic.joined([traffic] * 200)
    starts = rng.uniform(0, 1, size=(200, 4)) * rng.choice([0.0, 0.1, 2.0], size=(200, 1))
    delay = rng.uniform(0, 2, size=(200, 1)) * np.eye(4)[rng.integers(4, size=200)]
    before, after = (MODELS.backward.predict(many, s) + s for s in (starts, starts + delay))
    assert (after >= before * (1 - 1e-6)).all()
    assert (after <= before + delay.max(axis=1, keepdims=True) + 1e-6 * before).all()


def test_predicting_an_unknown_collective_is_refused():
    known = {
        one: random_set_comm() for one in (Collective.ALL_TO_ALL, Collective.REDUCE_SCATTER, Collective.ALL_REDUCE)
    }
    models = replace(MODELS, backward=ExchangeModels(known, frozenset(Form)))
    Simulator(models).cost(_task(), _mixed())
    with refused("models-lack-collective", names=["host_reduce_scatter", "table_row_wise"]):
        Simulator(models).cost(_task(2), _mixed(_task(2)))


def test_caveat_names_a_datasheet_among_exchange_models():
    plan, sheet = _mixed(), CostModels.load("roofline:h100").forward
    assert MODELS.forward.coverage(plan.traffic) is None
    assert Simulator(MODELS).caveat(plan) is None
    some = ExchangeModels(MODELS.forward.exchanges | {Collective.ALL_TO_ALL: sheet}, frozenset(Form))
    assert some.coverage(plan.traffic) == sheet.coverage(plan.traffic.alone(Collective.ALL_TO_ALL))
    assert DATASHEET in Simulator(replace(MODELS, forward=some)).caveat(plan)


def test_cost_shows_the_input_dist_and_counts_it_if_requested():
    task, plan = _task(), _mixed()
    shown, counted = (Simulator(MODELS, count_input).cost(task, plan) for count_input in (False, True))
    comes_ms = MODELS.input.predict(plan.traffic.alone(Collective.INPUT), np.zeros((1, 4)))[0]
    assert (shown.ms("input") == comes_ms).all()
    assert (counted.ms("input") == comes_ms).all()
    assert shown.total_ms == (shown.compute + shown.forward + shown.backward).max()
    assert np.allclose(counted.device_ms, counted.compute + counted.forward + counted.backward + counted.ms("input"))
    ready = shown.backward + shown.compute
    later = MODELS.forward.predict(plan.traffic.forward, (ready + shown.ms("input"))[None])
    assert np.allclose(counted.forward, later[0])
    for device, ms in enumerate(comes_ms):
        assert f" ms (input {ms:.3f}" in str(shown).splitlines()[device]
        assert f" + input {ms:.3f} = " in str(counted).splitlines()[device]
    assert "input" not in str(Simulator(replace(MODELS, input=None)).cost(task, plan))
    with refused("models-lack-input-dist", names=["count_input"]):
        Simulator(replace(MODELS, input=None), count_input=True)


def test_margin_of_a_sharding_type_or_collective_widens_the_margin_of_the_cost():
    margin, plan = Margin(0.1, 1.0), _mixed()
    plain = Margins(margin, margin, margin)
    for part in ("compute.row_wise", "compute.data_parallel", "forward.reduce_scatter", "backward.all_reduce"):
        wide = replace(plain, others={part: Margin(0.1, 1e6)})
        known, unknown = (
            Simulator(replace(MODELS, margins=its)).cost(plan.task, plan).margin_ms for its in (wide, plain)
        )
        assert known > unknown
    assert plain.of("backward.all_reduce") == margin


def _outside(models, plan):
    """Return the quantities of a plan that warnings name as outside the training range."""
    return {one.where for one in Simulator(models).warnings(plan) if one.code == "values-outside-training-range"}


def test_warnings_outside_the_training_range_name_the_sharding_type():
    ranges = CostModels.load("cpu").ranges
    spans = {"compute.row_wise": (Range("rows", 1, 2),), "backward.all_reduce": (Range("bytes from a device", 1, 2),)}
    models = replace(MODELS, ranges=replace(ranges, others=spans))
    parts = {"compute.row_wise: rows", "backward.all_reduce: bytes from a device"}
    assert parts <= _outside(models, _mixed())
    assert not parts & _outside(models, whole(_task(), 0))
