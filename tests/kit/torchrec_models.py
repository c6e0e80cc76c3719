"""TorchRec in tests: collections on the meta device, topologies of any devices, our planner, and its plans."""

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
    """Make the config of a table; if no features are given, the table has one, called f_NAME."""
    return kind(name=name, num_embeddings=rows, embedding_dim=dim, feature_names=[*features] or [f"f_{name}"], **fields)


bag, sequence = partial(_config, EmbeddingBagConfig), partial(_config, EmbeddingConfig)


def bags(*names: str, device: torch.device = META, **fields: Any) -> EmbeddingBagCollection:
    """Make a collection of pooled tables of equal shape; `fields` are those of `bag`."""
    return EmbeddingBagCollection([bag(name, **fields) for name in names], device=device)


def sequences(*names: str, device: torch.device = META, **fields: Any) -> EmbeddingCollection:
    """Make a collection of sequence tables of equal shape; `fields` are those of `sequence`."""
    return EmbeddingCollection([sequence(name, **fields) for name in names], device=device)


def shaped_bags(
    shapes: Mapping[str, tuple[int, int]],
    features: Mapping[str, Sequence[str]] | None = None,
    device: torch.device = META,
    **fields: Any,
) -> EmbeddingBagCollection:
    """Make a collection of pooled tables; `shapes` has rows and columns by name, `features` the features by name."""
    read_by = features or {}
    configs = [bag(name, *shape, read_by.get(name, ()), **fields) for name, shape in shapes.items()]
    return EmbeddingBagCollection(configs, device=device)


def topology(
    devices: int = 2, device: str = "cpu", cap: int = 1 << 20, on_host: int | None = None, **fields: Any
) -> Topology:
    """Make a topology of `on_host` devices per host (default: all), with `cap` bytes of device and host memory each."""
    given = {"ddr_cap": cap, "hbm_cap": cap, "local_world_size": on_host or devices} | fields
    return Topology(devices, device, created_by_factory=True, **given)


def planner(
    devices: int = 2, device: str = "cpu", cap: int = 1 << 20, on_host: int | None = None, **settings: Any
) -> NeuroShardPlanner:
    """Make a planner for `topology(devices, ...)`, or for the setting `topology` if given.

    Defaults of `settings`: linear models of any batch size, 4 samples per device, all memory for tables, and few
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
    """Make a planner with these settings and plan a model; return the planner and the plan."""
    ours = planner(**settings)
    return ours, ours.plan(model, sharders)


def places(plan: ShardingPlan, module: str = "") -> dict[str, tuple[str, list[int]]]:
    """Return the sharding type and the ranks of each table of a module, by name."""
    return {name: (sharding.sharding_type, sharding.ranks) for name, sharding in plan.plan[module].items()}


class AllOnLast(Searcher):
    """A user's own search method: it places all tables on the last device, and counts its calls."""

    def __init__(self) -> None:
        self.asked = 0

    def find(self, task: Task, simulator: Simulator) -> Found:
        """Place all tables on the last device."""
        self.asked += 1
        last = task.topology.num_devices - 1
        return Found(assemble(task, [(index, table.dim, last) for index, table in enumerate(task.tables)]))
