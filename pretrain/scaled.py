"""Models whose costs are all multiplied by one factor: another machine's speed, before anything of its shape."""

from dataclasses import replace
from typing import Any

from neuroshard.models import CommModel, SumModel
from neuroshard.models.by_collective import CommByCollective
from neuroshard.models.by_form import ComputeByForm
from neuroshard.models.ensemble import ComputeEnsemble
from neuroshard.models.host_tiers import HostTiers
from neuroshard.models.regression import RegressionCompute


def scaled_compute(model: SumModel, factor: float) -> SumModel:
    """The model of any kind that bundles hold, its costs of every form times the factor."""
    if isinstance(model, ComputeByForm):
        return replace(model, by_call={call: scaled_compute(one, factor) for call, one in model.by_call.items()})
    if isinstance(model, ComputeEnsemble):
        return ComputeEnsemble(tuple(_rescaled(member, factor) for member in model.members))
    if isinstance(model, RegressionCompute):
        return replace(model, weight=model.weight * factor, offset_ms=model.offset_ms * factor)
    if isinstance(model, HostTiers):
        return model.scaled(factor)
    rescaled: SumModel = _rescaled(model, factor)
    return rescaled


def scaled_comm(model: CommModel, factor: float) -> CommModel:
    """The model of any kind that bundles hold, its transfers of every collective times the factor."""
    if isinstance(model, CommByCollective):
        exchanges = {collective: scaled_comm(one, factor) for collective, one in model.exchanges.items()}
        return CommByCollective(exchanges, model.serves)
    rescaled: CommModel = _rescaled(model, factor)
    return rescaled


def _rescaled(model: Any, factor: float) -> Any:
    return replace(model, scale_ms=model.scale_ms * factor)
