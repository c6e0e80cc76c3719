"""Costs of plans, predicted: the search's stand-in for hardware."""

from collections.abc import Sequence

import numpy as np

from neuroshard.arrays import FloatArray
from neuroshard.cost import Cost
from neuroshard.errors import UserError
from neuroshard.models import CostModels
from neuroshard.plan import Plan
from neuroshard.task import Task


class Simulator:
    """Predicts costs with a set of cost models; many plans per call."""

    def __init__(self, models: CostModels) -> None:
        self.models = models

    def cost(self, task: Task, plan: Plan) -> Cost:
        """The plan's cost.

        Raises:
            UserError: the plan is another task's, or the models can't serve the task.
        """
        return self.costs(task, [plan])[0]

    def costs(self, task: Task, plans: Sequence[Plan]) -> list[Cost]:
        """Each plan's cost; memory is not checked."""
        self.models.check(task)
        for plan in plans:
            if plan.task is not task and plan.task != task:
                raise UserError("the plan was made for another task")
        sets = [tables for plan in plans for tables in plan.device_tables]
        shape = (len(plans), task.topology.num_devices)
        compute = self.models.compute.predict(sets, task.batch_size).reshape(shape)
        dims = np.array([plan.device_dims for plan in plans], dtype=np.float64).reshape(shape)
        forward, backward = self.communication(dims, compute)
        return [Cost(*parts) for parts in zip(compute, forward, backward, strict=True)]

    def communication(self, dims: FloatArray, compute_ms: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Forward and backward communication, (B, D) ms each, of devices with dims and compute costs (B, D).

        Forward communication starts on each device when its compute ends; backward starts everywhere at once.
        """
        forward = self.models.forward.predict(dims, compute_ms)
        backward = self.models.backward.predict(dims, np.zeros_like(dims))
        return forward, backward
