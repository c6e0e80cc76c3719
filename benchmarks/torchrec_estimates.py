"""TorchRec's estimates as cost models, which our searches can take."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.constants import DEFAULT_PERF_ESTIMATOR
from torchrec.distributed.planner.estimator.estimator import EmbeddingPerfEstimatorFactory
from torchrec.distributed.planner.types import Shard, ShardingOption
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.types import CacheParams, ShardingType
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from neuroshard.cost.loads import Loads
from neuroshard.models import CostModels, FreeComm, ReluHead, SumModel
from neuroshard.plumbing.arrays import Float32Array
from neuroshard.torchrec.kernels import KERNELS
from neuroshard.torchrec.options import sharder_data
from neuroshard.words.form import Call, Form
from neuroshard.words.home import TIERS, Tier


@dataclass(frozen=True)
class TorchRecCompute(SumModel):
    """TorchRec's estimate of a shard, communication included; a device's is the sum, as its planner has it.

    Attributes:
        topology: with TorchRec's bandwidths.
    """

    topology: TorchRecTopology

    @property
    def calls(self) -> frozenset[Call]:
        """Pooled columns, in any memory."""
        return frozenset(Call(Form.COLUMNS, tier=tier) for tier in Tier)

    @property
    def head(self) -> ReluHead:
        """Return the head for which a device costs the sum of its shards' ms."""
        return ReluHead.of_cost()

    def embed(self, loads: Loads) -> Float32Array:
        """Estimate (n, 1) ms of each of n loads with TorchRec's estimator."""
        local = np.maximum(loads.samples // self.topology.world_size, 1)
        features = np.maximum(np.round(loads.outputs / loads.samples), 1)
        numbers = (loads.rows, loads.dim, loads.bytes_per_element, local, features)
        whole = np.stack(numbers, axis=1).astype(np.int64).tolist()
        kernels = [KERNELS[TIERS[tier]] for tier in loads.tier.tolist()]
        each = zip(loads.pooling_factor.tolist(), kernels, loads.cached.tolist(), whole, strict=True)
        options = [self._option(pooling, kernel, cached, *sizes) for pooling, kernel, cached, sizes in each]
        if options:
            self._estimator.estimate(options, sharder_data([EmbeddingBagCollectionSharder()]))
        return np.array([[option.total_perf] for option in options], dtype=np.float32).reshape(-1, 1)

    @cached_property
    def _estimator(self) -> Any:
        return EmbeddingPerfEstimatorFactory.create(DEFAULT_PERF_ESTIMATOR, topology=self.topology)

    @cached_property
    def _module(self) -> EmbeddingBagCollection:
        config = EmbeddingBagConfig(name="t", embedding_dim=4, num_embeddings=1, feature_names=["f"])
        return EmbeddingBagCollection([config], device=torch.device("meta"))

    def _option(
        self,
        pooling: float,
        kernel: str,
        cached: float,
        rows: int,
        dim: int,
        element_bytes: int,
        batch_size: int,
        features: int,
    ) -> ShardingOption:
        dtype = torch.float16 if element_bytes == torch.float16.itemsize else torch.float32
        return ShardingOption(
            name="t",
            tensor=torch.empty(rows, dim, dtype=dtype, device="meta"),
            module=("", self._module),
            input_lengths=[pooling / features] * features,
            batch_size=batch_size,
            sharding_type=ShardingType.TABLE_WISE.value,
            partition_by="device",
            compute_kernel=kernel,
            cache_params=CacheParams(load_factor=cached) if kernel == KERNELS[Tier.CACHED] else None,
            shards=[Shard(size=[rows, dim], offset=[0, 0])],
            is_pooled=True,
        )


def torchrec_models(topology: TorchRecTopology) -> CostModels:
    """TorchRec's estimates as cost models, for our searchers."""
    return CostModels(TorchRecCompute(topology), FreeComm(), FreeComm(), None)
