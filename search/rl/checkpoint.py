"""What a checkpoint holds besides an agent, checked before a training goes on with it."""

import torch

from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import shown
from neuroshard.stages.search.rl.agent import Tensors, check_like
from neuroshard.stages.search.rl.batch import TaskBatch
from neuroshard.stages.search.rl.cost_network import MeasuredPlacements
from neuroshard.stages.search.rl.costs import NUM_PARTS

_ADAM = ("exp_avg", "exp_avg_sq", "step")


def adam_state(tensors: Tensors, optimizer: torch.optim.Optimizer) -> dict[int, Tensors]:
    """Adam's state by number of parameter, from tensors named "3.exp_avg".

    Raises:
        UserError: they aren't the state of this optimizer's parameters.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    names = {f"{number}.{field}" for number in range(len(parameters)) for field in _ADAM}
    if strange := tensors.keys() - names:
        raise UserError(f"tensor {shown(min(strange))} is of another training")
    state: dict[int, Tensors] = {}
    for number, parameter in enumerate(parameters):
        found = {field: tensors[f"{number}.{field}"] for field in _ADAM if f"{number}.{field}" in tensors}
        if not found:
            continue  # had no gradient so far
        if len(found) < len(_ADAM):
            raise UserError(f"the optimizer's state of parameter {number} lacks a tensor")
        for field, tensor in found.items():
            check_like(f"{number}.{field}", tensor, torch.zeros(()) if field == "step" else parameter)
        if not (found["step"] >= 1 and (found["exp_avg_sq"] >= 0).all()):
            raise UserError(f"the optimizer's state of parameter {number} is impossible")
        state[number] = found
    return state


def measured_before(tensors: Tensors, batch: TaskBatch) -> MeasuredPlacements:
    """The placements that were measured in earlier rounds.

    Raises:
        UserError: they are of other tasks, or impossible.
    """
    if tensors.keys() != {"task", "held", "parts"}:
        raise UserError(f"measured placements have {', '.join(sorted(tensors))}, not held, parts, task")
    task, held, parts = tensors["task"], tensors["held"], tensors["parts"]
    count, devices = task.shape[:1].numel(), batch.num_devices
    check_like("measured.task", task, torch.zeros(count, dtype=torch.int64))
    check_like("measured.held", held, torch.zeros(count, batch.num_items, devices, dtype=torch.bool))
    check_like("measured.parts", parts, torch.zeros(count, devices, NUM_PARTS))
    if not count or task.min() < 0 or task.max() >= len(batch) or parts.min() < 0:
        raise UserError("measured placements are of other tasks, or cost less than nothing")
    return MeasuredPlacements(task, held, parts)
