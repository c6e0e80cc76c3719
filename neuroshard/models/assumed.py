"""Error margins for cost models whose own prediction errors are unknown, taken from similar models whose predictions
were compared with measurements.
"""

from dataclasses import replace

from neuroshard.cost.cost import BACKWARD, COMPUTE, FORWARD, PARTS, Cost, Part
from neuroshard.models.cost_models import CostModels
from neuroshard.models.trust import Margin

# Half the width of an interval that holds 90% of the measurements, relative to the prediction.
_KERNEL_NETWORK = 0.15  # `cpu`: 0.148 of pooled columns, 0.11 to 0.24 of other calls
_EXCHANGE_NETWORK = 0.25  # `cpu`: 0.21 forward, 0.28 backward
_KERNEL_DATASHEET = 0.12  # mean errors of `roofline:h100`: 5 to 9% on one H100, 6.7% on kernels of an H200
_EXCHANGE_DATASHEET = 0.1  # published points of an H100, each left out of the interpolation: 0.095
_OTHER_PART = 0.3  # TorchRec's work, by `cpu` and `h100`: 0.09 to 0.57


def has_own_margins(cost: Cost) -> bool:
    """Return True if the cost has an error margin for kernels, forward exchanges and backward exchanges; False if any
    of these margins is missing.
    """
    return all(part.margin is not None for part in cost.parts if part.name in PARTS)


def with_assumed_margins(cost: Cost, models: CostModels) -> Cost:
    """Return the cost with typical error margins (`assumed_share`) added to the parts of the step, such as kernels or
    exchanges, that have no margin. A cost whose total has a margin is returned unchanged.
    """
    if cost.margin is not None:
        return cost
    return replace(cost, parts=tuple(_with_margin(part, models) for part in cost.parts))


def _with_margin(part: Part, models: CostModels) -> Part:
    if part.margin is not None:
        return part
    margin = Margin(assumed_share(part.name, models), 1.0)
    return part._replace(margin=margin(part.ms, 0 * part.ms))


def assumed_share(part: str, models: CostModels) -> float:
    """Return a typical error margin for the part of a step called `part`, such as "forward".
    The margin is a share of the predicted ms: 0.25 means plus or minus 25%.
    """
    if part == COMPUTE:
        return _KERNEL_DATASHEET if models.compute.arithmetic else _KERNEL_NETWORK
    if part in (FORWARD, BACKWARD):
        model = models.forward if part == FORWARD else models.backward
        return _EXCHANGE_DATASHEET if model.arithmetic else _EXCHANGE_NETWORK
    return _OTHER_PART
