import numpy as np
import pytest

from neuroshard.errors import UserError
from neuroshard.plans.plan import assemble
from neuroshard.simulator import Simulator
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing import linear_models, random_models, toy_task


def _spread(task):
    devices = task.topology.num_devices
    return assemble(task, [(i, table.dim, i % devices) for i, table in enumerate(task.tables)])


def test_cost_of_linear_models_by_hand():
    task = toy_task(6)
    plan = _spread(task)
    cost = Simulator(linear_models()).cost(task, plan)
    compute = np.array([sum(0.05 + 0.01 * t.dim * t.pooling_factor for t in tables) for tables in plan.device_tables])
    transfer = 0.002 * max(plan.device_dims)
    assert np.allclose(cost.compute, compute, rtol=1e-5)
    assert np.allclose(cost.backward, transfer)
    assert np.allclose(cost.forward, compute.max() - compute + transfer, rtol=1e-5)
    assert cost.total_ms == pytest.approx(compute.max() + 2 * transfer, rel=1e-5)


def test_many_plans_cost_what_each_costs_alone():
    task = toy_task(10)
    plans = [assemble(task, [(i, t.dim, (i * k) % 4) for i, t in enumerate(task.tables)]) for k in range(4)]
    simulator = Simulator(random_models())
    together = simulator.costs(task, plans)
    for plan, cost in zip(plans, together, strict=True):
        assert simulator.cost(task, plan).total_ms == pytest.approx(cost.total_ms, rel=1e-5)


def test_empty_devices_compute_nothing():
    task = toy_task(2)
    cost = Simulator(random_models()).cost(task, _spread(task))
    assert (cost.compute[2:] == 0).all()


def test_models_of_other_devices_or_batch_sizes_are_refused():
    task = toy_task(4, num_devices=2)
    with pytest.raises(UserError, match="made for 4 devices, the task has 2"):
        Simulator(linear_models(4)).cost(task, _spread(task))
    task = Task(task.tables, Topology(4, 1 << 30), 512)
    with pytest.raises(UserError, match="batch size 256, the task has 512"):
        Simulator(linear_models(4)).cost(task, _spread(task))


def test_plans_of_other_tasks_are_refused():
    with pytest.raises(UserError, match="another task"):
        Simulator(linear_models()).cost(toy_task(4), _spread(toy_task(5)))
