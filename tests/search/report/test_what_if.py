"""Changes of single devices and splits, against plans that are built and costed whole."""

from dataclasses import replace

import numpy as np
import pytest

from neuroshard import CostModels, MemoryUse, Plan, Simulator, Topology
from neuroshard.cost.loads import Loads, LoadSets
from neuroshard.plans.plan import assemble
from neuroshard.stages.search.report import what_if
from neuroshard.stages.search.report.what_if import Change, changed_compute_ms, split_worths
from neuroshard.testing import OpaqueCompute, linear_models, random_by_form, random_ensemble, random_models, toy_task
from neuroshard.words.form import Form
from tests.kit.plans import COPIES, laid_out, placed, whole

MODELS = {
    "linear": linear_models(),
    "neural": random_models(),
    "ensemble": replace(random_models(), compute=random_ensemble()),
    "opaque": replace(linear_models(), compute=OpaqueCompute()),
}


def _placed(task, seed):
    """Random columns of every table on one to three devices."""
    rng = np.random.default_rng(seed)
    for index, table in enumerate(task.tables):
        parts = min(int(rng.integers(1, 4)), table.dim // 4)
        cuts = np.sort(rng.choice(table.dim // 4 - 1, parts - 1, replace=False)) + 1
        widths = np.diff([0, *cuts, table.dim // 4]) * 4
        for device, width in zip(rng.permutation(task.topology.num_devices), widths.tolist(), strict=False):
            yield index, width, int(device)


MIXED_TASK = replace(toy_task(8), topology=Topology(4, 1 << 30, devices_per_host=2))


def _mixed(*whole, task=MIXED_TASK, lie=(0, 1, 2, 3)):
    """Tables in rows on all devices, in rows on one host, in copies, in two shards; or whole, as (table, device)."""
    forms = range(4), [2, 3], COPIES, {0: 4, 3: task.tables[3].dim - 4}
    places = *((i, forms[i]) for i in lie), *((i, i % 4) for i in range(4, len(task.tables))), *whole
    return Plan(task, tuple(one for i, where in places for one in placed(task, i, where)))


ROOFLINE, IN_TORCHREC = CostModels.load("roofline:h100"), CostModels.load("roofline:h100+torchrec")


@pytest.mark.parametrize(("batched", "models"), [(0, ROOFLINE), (1, ROOFLINE), (1, IN_TORCHREC)])
def test_what_tables_in_any_form_are_worth_is_what_whole_plans_cost(batched, models):
    task = replace(MIXED_TASK, memory=MemoryUse("adam", batched))
    simulator, plan = Simulator(models), _mixed(task=task)
    worths = split_worths(plan, simulator.cost(task, plan), simulator)
    assert {worth.table: worth.layout.form for worth in worths} == dict(
        zip(("toy0", "toy1", "toy2", "toy3"), (Form.ROWS, Form.ROWS, Form.COPIES, Form.COLUMNS), strict=True)
    )
    for worth in worths:
        index = int(worth.table[3:])
        others = [i for i in range(4) if i != index]
        devices = [placed.device for placed in plan.placements if placed.shard.table == index]
        wholes = [_mixed((index, device), task=task, lie=others) for device in devices]
        expected = min(cost.total_ms for cost in simulator.costs(task, wholes))
        assert worth.whole_ms == pytest.approx(expected, rel=1e-4)
    received = (1 << 30) - task.shard_memory[0]
    full = _mixed(task=replace(task, topology=Topology(4, tuple(b + received for b in plan.device_bytes), 0, 2)))
    tight = full.task
    assert any(worth.whole_ms is None for worth in split_worths(full, simulator.cost(tight, full), simulator))


IN_COLUMNS = assemble(toy_task(7), _placed(toy_task(7), 1))


@pytest.mark.parametrize(
    ("plan", "model"),
    [
        *((IN_COLUMNS, models.compute) for models in MODELS.values()),
        (_mixed(), ROOFLINE.compute),
        (_mixed(), random_by_form()),
    ],
    ids=[*MODELS, "roofline", "by_form"],
)
def test_changed_devices_cost_what_they_would(plan, model):
    """A table's block, copy or shard taken from a device, and columns of another put there."""
    each = range(len(plan.task.tables))
    changes = [Change(table, device, dim) for table in each for device in range(4) for dim in (0, 4)]
    loads, devices = plan.device_loads.loads, [placed.device for placed in plan.by_device]
    expected = []
    for table, device, dim in changes:
        here = [n for n, placed in enumerate(plan.by_device) if devices[n] == device and placed.shard.table != table]
        parts = [loads.take(np.array(here, dtype=np.int64))]
        parts += [Loads.of([plan.task.tables[table].with_dim(dim)], plan.task.batch_size)] if dim else []
        calls = LoadSets.joined([LoadSets(part, np.array([len(part)])) for part in parts])
        device_calls = LoadSets(calls.loads, np.array([len(calls.loads)])).by_kernel()[0]
        expected.append(model.predict(device_calls).sum())
    np.testing.assert_allclose(changed_compute_ms(plan, changes, model), expected, rtol=1e-4)
    opaque = what_if._of_sets(plan, changes, model)
    np.testing.assert_allclose(opaque, expected, rtol=1e-5)


def test_tables_on_many_devices_are_tried_where_there_is_room():
    """A copy of a small table on 64 devices, of which one has room for all of it besides what it has."""
    tables = tuple(replace(toy_task(2).tables[0], name=name, rows=10_000, dim=64) for name in "ab")
    caps = [tables[0].size_bytes] * 64
    caps[40] = 3 * tables[0].size_bytes
    task = replace(toy_task(2), tables=tables, topology=Topology(64, tuple(caps)))
    plan, simulator = laid_out(task, COPIES, range(64)), Simulator(ROOFLINE)
    worths = {worth.table: worth.whole_ms for worth in split_worths(plan, simulator.cost(task, plan), simulator)}
    alone = laid_out(task, COPIES, 40)
    assert worths["b"] == pytest.approx(simulator.cost(task, alone).total_ms, rel=1e-4)


def test_a_device_left_without_tables_costs_nothing():
    task = toy_task(2, num_devices=2)
    plan = whole(task)
    for models in MODELS.values():
        assert changed_compute_ms(plan, [Change(0, 0, 0), Change(0, 1, 0)], models.compute)[0] == 0
        assert changed_compute_ms(plan, [Change(0, 1, 0)], models.compute)[0] > 0
    assert changed_compute_ms(plan, [], models.compute).size == 0


@pytest.mark.parametrize("models", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("tight", [0, 1])
def test_splits_are_worth_what_whole_plans_cost(models, tight):
    task, simulator = toy_task(9, seed=3), Simulator(models)
    placed = list(_placed(task, 3))
    if tight:
        task = replace(task, topology=Topology(4, tuple(assemble(task, placed).device_bytes)))
    plan = assemble(task, placed)
    found = {worth.table: worth.whole_ms for worth in split_worths(plan, simulator.cost(task, plan), simulator)}
    expected = {}
    for index, table in enumerate(task.tables):
        own = [device for number, _, device in placed if number == index]
        rest = [place for place in placed if place[0] != index]
        if len(own) > 1:
            wholes = [assemble(task, [*rest, (index, table.dim, device)]) for device in own]
            costs = [simulator.cost(task, whole).total_ms for whole in wholes if whole.fits]
            expected[table.name] = min(costs, default=None)
    assert len(found) > 3
    assert {name for name, ms in found.items() if ms is None} == {n for n, ms in expected.items() if ms is None}
    assert (None in found.values()) == bool(tight)
    for name, ms in expected.items():
        assert ms is None or found[name] == pytest.approx(ms, rel=1e-4)
    shown = [ms for ms in found.values() if ms is not None]
    assert shown == sorted(shown, reverse=True)
