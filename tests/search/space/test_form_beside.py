"""Columns beside other tables cost what whole plans do."""

from dataclasses import replace

import numpy as np
import pytest

import neuroshard as ns
from neuroshard.cost.traffic import Traffic
from neuroshard.models.simulator import Simulator
from neuroshard.plans.lay_out import in_columns, in_copies, in_rows
from neuroshard.plans.plan import Plan
from neuroshard.stages.search.space.form_beside import beside
from neuroshard.stages.search.space.forms import FormedTask
from neuroshard.tasks.task import Topology
from neuroshard.testing import toy_task
from neuroshard.testing.toys import random_form_models


@pytest.mark.parametrize(
    "models", [ns.CostModels.load("roofline:h100"), random_form_models()], ids=["roofline", "random"]
)
def test_steps_of_columns_are_costed_as_whole_plans(models):
    """Rows on one host load its devices more than others."""
    task = replace(toy_task(6), topology=Topology(4, 1 << 40, devices_per_host=2))
    others = (*in_rows(task, 0, [2, 3]), *in_rows(task, 1, range(4)), *in_copies(task, 2))
    simulator = Simulator(models)
    for devices in ((0, 1, 2), (3, 3, 0)):
        columns = [(table, task.tables[table].dim, device) for table, device in zip((3, 4, 5), devices, strict=True)]
        plan = Plan(task, (*others, *in_columns(task, columns)))
        formed = FormedTask.of_plan(plan)
        own = formed.columns_plan(plan)
        compute = models.compute.predict(own.device_loads)[None]
        traffic = Traffic.of_columns(np.array([own.device_dims]), task.batch_size)
        forward, backward = beside(simulator, formed).communication(traffic, compute)
        cost = simulator.cost(task, plan)
        np.testing.assert_allclose(forward[0], cost.forward, rtol=1e-9)
        np.testing.assert_allclose((compute + backward)[0], cost.compute + cost.backward, rtol=1e-9)
        assert cost.compute[3] > compute[0, 3]
