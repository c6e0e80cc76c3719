"""TorchRec in tests: collections without memory, devices that nobody has, our planner, and what its plans say."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig
from torchrec.distributed.planner import Topology
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.types import ShardingPlan

from neuroshard import Found, Searcher, Simulator, Task
from neuroshard.plans.plan import assemble
from neuroshard.testing import linear_models
from neuroshard.torchrec import NeuroShardPlanner

META, CPU = torch.device("meta"), torch.device("cpu")


def _config(
    kind: Any, name: str, rows: int = 100, dim: int = 16, features: Sequence[str] = (), **fields: Any
) -> EmbeddingBagConfig | EmbeddingConfig:
    """Make the config of a table; without names of its features, one called f_NAME reads it."""
    return kind(name=name, num_embeddings=rows, embedding_dim=dim, feature_names=[*features] or [f"f_{name}"], **fields)


bag, sequence = partial(_config, EmbeddingBagConfig), partial(_config, EmbeddingConfig)


def bags(*names: str, device: torch.device = META, **fields: Any) -> EmbeddingBagCollection:
    """Make a collection of pooled tables that are alike; `fields` are those of `bag`."""
    return EmbeddingBagCollection([bag(name, **fields) for name in names], device=device)


def sequences(*names: str, device: torch.device = META, **fields: Any) -> EmbeddingCollection:
    """Make a collection of sequence tables that are alike; `fields` are those of `bag`."""
    return EmbeddingCollection([sequence(name, **fields) for name in names], device=device)


def shaped_bags(
    shapes: Mapping[str, tuple[int, int]],
    features: Mapping[str, Sequence[str]] | None = None,
    device: torch.device = META,
    **fields: Any,
) -> EmbeddingBagCollection:
    """Make a collection of pooled tables by name: their rows and columns, and the features that read them."""
    read_by = features or {}
    configs = [bag(name, *shape, read_by.get(name, ()), **fields) for name, shape in shapes.items()]
    return EmbeddingBagCollection(configs, device=device)


def topology(
    devices: int = 2, device: str = "cpu", cap: int = 1 << 20, on_host: int | None = None, **fields: Any
) -> Topology:
    """Make devices of `cap` bytes, and as many for each on hosts; on one host if `on_host` doesn't say how many."""
    given = {"ddr_cap": cap, "hbm_cap": cap, "local_world_size": on_host or devices} | fields
    return Topology(devices, device, created_by_factory=True, **given)


def planner(
    devices: int = 2, device: str = "cpu", cap: int = 1 << 20, on_host: int | None = None, **settings: Any
) -> NeuroShardPlanner:
    """Make a planner for the devices of `topology`, or for those of the settings.

    What `settings` leave open: linear models of any batch size, 4 samples a device, all memory for tables, and few
    perturbations of the default search.
    """
    where = settings.pop("topology", None) or topology(devices, device, cap, on_host)
    given: dict[str, Any] = {
        "models": replace(linear_models(where.world_size), batch_size=None),
        "batch_size": 4,
        "storage_reservation": FixedPercentageStorageReservation(0.0),
    }
    if "searcher" not in settings:
        given["improvement"] = {"perturbations": 10}
    return NeuroShardPlanner(where, **given | settings)


def planned(model: nn.Module, sharders: Any = None, **settings: Any) -> tuple[NeuroShardPlanner, ShardingPlan]:
    """Plan a model: the planner of these settings, and what it found."""
    ours = planner(**settings)
    return ours, ours.plan(model, sharders)


def places(plan: ShardingPlan, module: str = "") -> dict[str, tuple[str, list[int]]]:
    """The sharding type of a module's tables, and their ranks."""
    return {name: (sharding.sharding_type, sharding.ranks) for name, sharding in plan.plan[module].items()}


class AllOnLast(Searcher):
    """Somebody's own method: everything on the last device; counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def find(self, task: Task, simulator: Simulator) -> Found:
        """Place all tables on the last device."""
        self.asked += 1
        last = task.topology.num_devices - 1
        return Found(assemble(task, [(index, table.dim, last) for index, table in enumerate(task.tables)]))
