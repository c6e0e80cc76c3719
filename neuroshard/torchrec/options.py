"""Translate a plan into TorchRec's sharding options, which are the input of TorchRec's reports and callbacks."""

from collections.abc import Sequence
from typing import Any

from torchrec.distributed.planner.enumerators import get_partition_by_type
from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator
from torchrec.distributed.planner.types import ParameterConstraints, Shard, ShardingOption, Storage
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.planner.utils import build_sharder_data_map, sharder_name
from torchrec.distributed.types import ModuleSharder, ParameterSharding, ShardingPlan, ShardingType

from neuroshard.torchrec.kernels import KEY_VALUE, shards_of
from neuroshard.torchrec.parameters import Parameter
from neuroshard.torchrec.prefetching import pipeline_type
from neuroshard.torchrec.releases import stashing

PASSED_ON = (
    "cache_params",
    "enforce_hbm",
    "stochastic_rounding",
    "bounds_check_mode",
    "output_dtype",
    "key_value_params",
)  # fields that are copied from constraints to a plan's parameters


def sharding_options(
    sharding_plan: ShardingPlan,
    parameters: Sequence[Parameter],
    batch_size: int,
    topology: TorchRecTopology,
) -> list[ShardingOption]:
    """Return a sharding option for each parameter of the plan; the shards have ranks, but no estimates.

    `batch_size` is the batch size of a device. Data-parallel parameters without ranks are on all devices.
    """
    pooled: dict[int, bool] = {}
    options = []
    for parameter in parameters:
        sharding, module_id = parameter.sharding_in(sharding_plan), id(parameter.module)
        if module_id not in pooled:
            pooled[module_id] = ShardingOption.module_pooled(parameter.module, parameter.path)
        options.append(
            ShardingOption(
                name=parameter.name,
                tensor=parameter.weights,
                module=(parameter.path, parameter.module),
                input_lengths=list(parameter.user_constraints.pooling_factors),
                batch_size=batch_size,
                sharding_type=sharding.sharding_type,
                partition_by=get_partition_by_type(sharding.sharding_type),
                compute_kernel=sharding.compute_kernel,
                shards=_shards(parameter, sharding, topology.world_size),
                is_pooled=pooled[module_id],
                feature_names=parameter.user_constraints.feature_names,
                **{name: getattr(sharding, name) for name in PASSED_ON},
                **stashing(parameter.is_stashed),
            )
        )
    return options


def _shards(parameter: Parameter, sharding: ParameterSharding, num_devices: int) -> list[Shard]:
    """Return the shards of a parameter with their ranks; a data-parallel parameter has a whole copy on each rank."""
    if sharding.sharding_type == ShardingType.DATA_PARALLEL.value:
        ranks = sharding.ranks or range(num_devices)
        return [Shard(list(parameter.weights.shape), [0, 0], rank=rank) for rank in ranks]
    pairs = zip(shards_of(sharding), sharding.ranks or [], strict=True)
    return [Shard(list(shard.shard_sizes), list(shard.shard_offsets), rank=rank) for shard, rank in pairs]


def estimate(estimator: Any, options: Sequence[ShardingOption], sharders: Sequence[ModuleSharder[Any]]) -> None:
    """Run one of TorchRec's estimators, which stores an estimate in each shard of the sharding options."""
    by_name = {sharder_name(sharder.module_type): sharder for sharder in sharders}
    estimator.estimate(list(options), build_sharder_data_map(by_name))


def storage_estimator(
    topology: TorchRecTopology, constraints: dict[str, ParameterConstraints], pipeline: str | None
) -> EmbeddingStorageEstimator:
    """Return TorchRec's memory estimator for a job with the given training pipeline.
    The estimator counts the buffers of the pipeline, and the outputs of one batch.
    """
    return EmbeddingStorageEstimator(topology, constraints, pipeline_type(pipeline), run_embedding_at_peak_memory=True)


def memory_of_tables(topology: TorchRecTopology) -> str:
    """Return the name of the memory that tables use, as in TorchRec's `Storage`: "ddr" on CPUs, otherwise "hbm"."""
    return "ddr" if topology.compute_device == "cpu" else "hbm"


def storage_taken(options: Sequence[ShardingOption], topology: TorchRecTopology) -> list[Storage]:
    """Return the memory that the shards of the sharding options use, as one TorchRec `Storage` for each device.
    `Storage.hbm` has the bytes in the memory of the device, and `Storage.ddr` has the bytes in host memory that the
    shards on the device use.

    The memory is TorchRec's estimate plus the second caches of key-value kernels, which TorchRec does not estimate.

    Key-value kernels have one second cache per device, in host memory, for the tables of a module that share a kernel.
    """
    taken, caches = [Storage(0, 0) for _ in topology.devices], set()
    for option in options:
        cached = (option.key_value_params and option.key_value_params.l2_cache_size) or 0
        for shard in option.shards:
            rank = int(shard.rank or 0)
            taken[rank] += shard.storage or Storage(0, 0)
            if option.compute_kernel in KEY_VALUE:
                caches.add((rank, option.path, option.compute_kernel, cached))
    for rank, _, _, gigabytes in caches:
        taken[rank] += Storage(0, gigabytes << 30)
    return taken
