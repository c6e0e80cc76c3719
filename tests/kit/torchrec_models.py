"""TorchRec's collections and our planner in tests: tables without memory, devices that nobody has."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig
from torchrec.distributed.planner import Topology
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation

from neuroshard.testing import linear_models
from neuroshard.torchrec import NeuroShardPlanner

META = torch.device("meta")


def bag(name: str, rows: int = 100, dim: int = 16, features: Sequence[str] = (), **fields: Any) -> EmbeddingBagConfig:
    """Make the config of a pooled table; without names of its features, one called f_NAME reads it."""
    return EmbeddingBagConfig(
        name=name, num_embeddings=rows, embedding_dim=dim, feature_names=[*features] or [f"f_{name}"], **fields
    )


def bags(*names: str, device: torch.device = META, **fields: Any) -> EmbeddingBagCollection:
    """Make a collection of pooled tables that are alike; `fields` are those of `bag`."""
    return EmbeddingBagCollection([bag(name, **fields) for name in names], device=device)


def sequences(
    *names: str, rows: int = 100, dim: int = 16, device: torch.device = META, **fields: Any
) -> EmbeddingCollection:
    """Make a collection of sequence tables that are alike, each read by a feature called f_NAME."""
    configs = [
        EmbeddingConfig(name=name, num_embeddings=rows, embedding_dim=dim, feature_names=[f"f_{name}"], **fields)
        for name in names
    ]
    return EmbeddingCollection(configs, device=device)


def planner(
    devices: int = 2, device: str = "cpu", cap: int = 1 << 20, on_host: int | None = None, **settings: Any
) -> NeuroShardPlanner:
    """Make a planner for devices of `cap` bytes, on one host if `on_host` doesn't say how many a host has.

    What `settings` leave open: linear models of any batch size, 4 samples a device, and all memory for tables.
    """
    local = on_host or devices
    topology = Topology(devices, device, ddr_cap=cap, hbm_cap=cap, local_world_size=local, created_by_factory=True)
    models = replace(linear_models(devices), batch_size=None)
    reservation = FixedPercentageStorageReservation(0.0)
    given = {"models": models, "batch_size": 4, "storage_reservation": reservation} | settings
    return NeuroShardPlanner(topology=topology, **given)
