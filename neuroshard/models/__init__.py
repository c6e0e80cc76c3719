"""Cost models: the interfaces, the models that predict costs, and bundles, which store models on disk."""

from neuroshard.models.bundle import Card, save_bundle
from neuroshard.models.comm_models import FreeComm
from neuroshard.models.cost_models import CostModels, load_bundle
from neuroshard.models.interface import CommModel, ComputeModel, ReluHead, SumModel

__all__ = [
    "Card",
    "CommModel",
    "ComputeModel",
    "CostModels",
    "FreeComm",
    "ReluHead",
    "SumModel",
    "load_bundle",
    "save_bundle",
]
