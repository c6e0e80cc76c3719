"""Prefetching: a training pipeline that fetches rows into caches in advance.
For such a pipeline, the cache parameters of every cached table need a flag. This module sets and checks the flag.
"""

from collections.abc import Mapping
from dataclasses import replace

from fbgemm_gpu.split_table_batched_embeddings_ops_common import CacheAlgorithm
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import (
    CacheParams,
    EmbeddingModuleShardingPlan,
    ModuleShardingPlan,
    ParameterSharding,
    PipelineType,
    ShardingPlan,
)

from neuroshard.plumbing.errors import UserError
from neuroshard.tasks.memory import MemoryUse
from neuroshard.torchrec.kernels import PREFETCH, PREFETCHED

# TorchRec's names of pipelines, for its memory estimates. TorchRec has no name for semi-synchronous training, which
# has as many batches in flight as a prefetching pipeline, but prefetches nothing into caches.
_PIPELINE_TYPES = {
    "none": PipelineType.TRAIN_BASE,
    "sparse_dist": PipelineType.TRAIN_SPARSE_DIST,
    "prefetch": PipelineType.TRAIN_PREFETCH_SPARSE_DIST,
    "semi_sync": PipelineType.TRAIN_SPARSE_DIST,
}


def pipeline_of(pipeline: str | None, memory: MemoryUse | None) -> str | None:
    """Return the name of the job's training pipeline, such as "sparse_dist".
    The name is set in the planner's argument `pipeline` or in `memory.pipeline`; return None if both are unset.

    Raises:
        UserError: they name different pipelines, or there is no pipeline of this name.
    """
    named = MemoryUse(pipeline=pipeline).pipeline
    counted = None if memory is None else memory.pipeline
    if named is not None and counted not in (None, named):
        raise UserError(
            "pipeline-named-twice",
            f"pipeline={named!r} and memory.pipeline={counted!r} are different pipelines",
            remedy="Set only one of the two, or both to the same pipeline",
        )
    return counted if named is None else named


def pipeline_type(pipeline: str | None) -> PipelineType:
    """Return TorchRec's PipelineType for the name of a training pipeline; PipelineType.NONE if there is no name."""
    return PipelineType.NONE if pipeline is None else _PIPELINE_TYPES[pipeline]


def pipeline_named(named: PipelineType) -> str | None:
    """Return NeuroShard's name, such as "sparse_dist", for a training pipeline that TorchRec's PipelineType names.
    The result is None if `MemoryUse` does not support the pipeline.
    """
    return next((pipeline for pipeline, known_type in _PIPELINE_TYPES.items() if known_type is named), None)


def check_prefetching(constraints: Mapping[str, ParameterConstraints], pipeline: str | None) -> None:
    """Raise UserError if cache parameters in constraints (by table name) contradict the job's pipeline."""
    for name, constraint in constraints.items():
        kernels = constraint.compute_kernels
        if constraint.cache_params is not None and (not kernels or PREFETCHED.intersection(kernels)):
            check_cache(f"constraints of table {name!r}", constraint.cache_params, pipeline)


def check_cache(where: str, cache: CacheParams, pipeline: str | None) -> None:
    """Raise UserError if cache parameters contradict the job's pipeline, or if FBGEMM does not support the parameters.
    `where` says where the cache parameters are set, such as "constraints of table 't1'"; the error has this text.
    """
    flag = cache.prefetch_pipeline
    if flag is not None and pipeline is not None and flag is not (pipeline == PREFETCH):
        remedy = f"set pipeline={PREFETCH!r}, if the job runs PrefetchTrainPipelineSparseDist"
        if pipeline == PREFETCH:
            remedy = "set pipeline= to another pipeline, if the job does not run PrefetchTrainPipelineSparseDist"
        raise UserError(
            "cache-prefetch-contradicts-pipeline",
            f"cache_params.prefetch_pipeline={flag} contradicts pipeline={pipeline!r}",
            where=where,
            remedy=f"Do one of these: remove prefetch_pipeline from cache_params; or {remedy}",
        )
    prefetches = flag or pipeline == PREFETCH
    if prefetches and cache.algorithm not in (None, CacheAlgorithm.LRU):
        raise UserError(
            "cache-algorithm-without-prefetch",
            f"cache_params.algorithm={cache.algorithm.name} is set for a cache that prefetches",
            where=where,
            limit="FBGEMM can prefetch only into LRU caches",
            remedy="Remove the algorithm from cache_params, or choose a pipeline that does not prefetch",
        )
    if cache.multipass_prefetch_config is not None and not prefetches:
        raise UserError(
            "cache-multipass-without-prefetch",
            "cache_params.multipass_prefetch_config is set, but the job does not prefetch",
            where=where,
            remedy=f"Set pipeline={PREFETCH!r}, or remove multipass_prefetch_config from cache_params",
        )


def flagged(sharding_plan: ShardingPlan, pipeline: str | None, where: str) -> ShardingPlan:
    """Return a new plan with the prefetching flag set for every cached table; a prefetching pipeline needs this flag.

    With any other pipeline, return the plan itself. `where` names the plan in errors.

    Raises:
        UserError: the cache of a table is set up not to prefetch.
    """
    if pipeline != PREFETCH:
        return sharding_plan
    modules: dict[str, ModuleShardingPlan] = {}
    for path, module in sharding_plan.plan.items():
        modules[path] = module
        if isinstance(module, EmbeddingModuleShardingPlan):
            shardings = {name: _flagged(sharding, f"{where}: table {name!r}") for name, sharding in module.items()}
            modules[path] = EmbeddingModuleShardingPlan(shardings)
    return ShardingPlan(modules)


def _flagged(sharding: ParameterSharding, where: str) -> ParameterSharding:
    """Return a copy of the sharding of a table, in which the prefetching flag of the cache is set.
    If the table has no cache, return the sharding unchanged.
    """
    if sharding.compute_kernel not in PREFETCHED:
        return sharding
    cache = sharding.cache_params or CacheParams()
    check_cache(where, cache, PREFETCH)
    return replace(sharding, cache_params=replace(cache, prefetch_pipeline=True))


def flagged_constraint(constraint: ParameterConstraints | None) -> ParameterConstraints:
    """Return a copy of the constraint of a table, in which the prefetching flag of the cache is set.
    A pipeline that fetches rows into caches in advance needs this flag. If `constraint` is None, return a new
    constraint that sets only the flag.
    """
    constraint = constraint or ParameterConstraints()
    return replace(constraint, cache_params=replace(constraint.cache_params or CacheParams(), prefetch_pipeline=True))
