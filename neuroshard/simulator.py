"""Costs of plans, predicted: the search's stand-in for hardware."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from neuroshard.arrays import FloatArray
from neuroshard.cost import Cost
from neuroshard.errors import UserError
from neuroshard.loads import LoadSets
from neuroshard.models import CostModels
from neuroshard.models.trust import Margins
from neuroshard.plans.form import FORMS
from neuroshard.plans.plan import Plan
from neuroshard.plans.prediction import Prediction
from neuroshard.tasks.task import Task
from neuroshard.traffic import Traffic


class Simulator:
    """Predicts costs with a set of cost models; many plans per call."""

    def __init__(self, models: CostModels) -> None:
        self.models = models

    def cost(self, task: Task, plan: Plan) -> Cost:
        """The plan's cost.

        Raises:
            UserError: the plan is another task's, or the models can't serve the task or the plan's forms.
        """
        return self.costs(task, [plan])[0]

    def costs(self, task: Task, plans: Sequence[Plan]) -> list[Cost]:
        """Each plan's cost; memory is not checked.

        A device calls a kernel for each form that tables lie in there, one after the other: their costs add up.

        Raises:
            UserError: a plan is another task's, or the models can't serve the task or a plan's forms.
        """
        self.models.check(task)
        for plan in plans:
            if plan.task is not task and plan.task != task:
                raise UserError("the plan was made for another task")
            self.models.check_plan(plan)
        calls = LoadSets.joined([plan.device_loads for plan in plans]).by_form()
        shape = (len(plans), task.topology.num_devices, len(FORMS))
        compute = self.models.compute.predict(calls).reshape(shape).sum(axis=-1)
        forward, backward = self.communication(Traffic.joined([plan.traffic for plan in plans]), compute)
        if self.models.margins is None:
            return [Cost(*parts) for parts in zip(compute, forward, backward, strict=True)]
        spread = self.models.compute.spread_ms(calls).reshape(shape).sum(axis=-1)
        margin = _margin(self.models.margins, compute, spread, forward, backward)
        return [Cost(*parts) for parts in zip(compute, forward, backward, margin, strict=True)]

    def predicted(self, plan: Plan) -> Plan:
        """The same plan, with what these models predict of it."""
        return with_prediction(plan, self.cost(plan.task, plan), self.models.name)

    def warnings(self, plan: Plan) -> tuple[str, ...]:
        """What makes the costs of a plan doubtful, one line each.

        Histograms made for another batch size, and what lies outside the range that the models were fitted to.
        """
        ranges = self.models.ranges
        if ranges is None:
            return plan.task.warnings
        counts = [len(tables) for tables in plan.device_tables]
        return plan.task.warnings + ranges.warnings(plan.task) + ranges.device_warnings(counts, plan.device_dims)

    def communication(self, traffic: Traffic, compute_ms: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Forward and backward communication, (B, D) ms each, of devices with such traffic and compute costs (B, D).

        Backward communication starts everywhere at once; forward communication on each device when its backward
        communication and then its compute have ended.
        """
        backward = self.models.backward.predict(traffic, np.zeros_like(compute_ms))
        forward = self.models.forward.predict(traffic.forward, backward + compute_ms)
        return forward, backward


def with_prediction(plan: Plan, cost: Cost, models: str | None) -> Plan:
    """The same plan, with its cost as the models of that name predict it."""
    margins = (None, None) if cost.margin is None else (cost.margin_ms, cost.expected_ms)
    return replace(plan, prediction=Prediction(models, cost.total_ms, *margins))


def _margin(
    margins: Margins, compute: FloatArray, spread: FloatArray, forward: FloatArray, backward: FloatArray
) -> FloatArray:
    """(B, D) of each device's sum, errors taken as independent.

    Waiting makes every device's backward communication, compute and wait together as long as those of the device that
    is last to start forward communication, so that one's errors count for all.
    """
    last = (backward + compute).argmax(axis=1)[:, None]
    none = np.zeros_like(compute)
    before = margins.compute(compute, spread) ** 2 + margins.backward(backward, none) ** 2
    margin: FloatArray = np.sqrt(np.take_along_axis(before, last, axis=1) + margins.forward(forward, none) ** 2)
    return margin
