"""Error margins to assume for cost models whose errors are unknown: the margins of measured models of the same kind."""

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
    """Return True if the margins of kernels and exchanges come from the cost models; False if a margin is missing."""
    return all(part.margin is not None for part in cost.parts if part.name in PARTS)


def with_assumed_margins(cost: Cost, models: CostModels) -> Cost:
    """Return the cost with an error margin for every part:
    the margin that the part has, or else the margin that is assumed for models of this kind.
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
    """Return the margin to assume for a part of a step if the margin is unknown, as a share of the predicted ms."""
    if part == COMPUTE:
        return _KERNEL_DATASHEET if models.compute.arithmetic else _KERNEL_NETWORK
    if part in (FORWARD, BACKWARD):
        model = models.forward if part == FORWARD else models.backward
        return _EXCHANGE_DATASHEET if model.arithmetic else _EXCHANGE_NETWORK
    return _OTHER_PART
