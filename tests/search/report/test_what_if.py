"""Changes of single devices and splits, against plans that are built and costed whole."""

from dataclasses import replace

import numpy as np
import pytest

from neuroshard.loads import LoadSets
from neuroshard.plans.plan import assemble
from neuroshard.simulator import Simulator
from neuroshard.stages.search.report.split_worth import split_worths
from neuroshard.stages.search.report.what_if import Change, changed_compute_ms
from neuroshard.tasks.task import Topology
from neuroshard.testing import OpaqueCompute, linear_models, random_ensemble, random_models, toy_task

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


@pytest.mark.parametrize("models", MODELS.values(), ids=MODELS)
def test_changed_devices_cost_what_they_would(models):
    task = toy_task(7)
    plan = assemble(task, _placed(task, 1))
    changes = [Change(table, device, dim) for table in range(7) for device in range(4) for dim in (0, 4)]
    found = changed_compute_ms(plan, changes, models.compute)
    sets = [
        [task.tables[p.shard.table].with_dim(p.shard.dim) for p in plan.placements
         if p.device == device and p.shard.table != table] + ([task.tables[table].with_dim(dim)] if dim else [])
        for table, device, dim in changes
    ]  # fmt: skip
    np.testing.assert_allclose(found, models.compute.predict(LoadSets.of(sets, task.batch_size)), rtol=1e-4, atol=1e-5)


def test_a_device_left_without_tables_costs_nothing():
    task = toy_task(2, num_devices=2)
    plan = assemble(task, [(0, task.tables[0].dim, 0), (1, task.tables[1].dim, 1)])
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
