"""Translates sharding types, compute kernels and cache parameters between NeuroShard's and TorchRec's names."""

from dataclasses import replace

from fbgemm_gpu.split_table_batched_embeddings_ops_common import CacheAlgorithm
from torch.distributed._shard.metadata import ShardMetadata
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.types import CacheParams, ParameterSharding, ShardingType

from neuroshard.layouts import Layout
from neuroshard.plumbing.errors import UserError
from neuroshard.words.placement import DEFAULT_CACHED, ON_DEVICE, Tier, TierAssignment

SHARDING_TYPES = tuple(sharding_type.value for sharding_type in ShardingType)
WHOLE, SPLIT = ShardingType.TABLE_WISE.value, ShardingType.COLUMN_WISE.value
IN_ROWS = frozenset(
    kind.value for kind in (ShardingType.ROW_WISE, ShardingType.TABLE_ROW_WISE, ShardingType.GRID_SHARD)
)
COPIED = frozenset({ShardingType.DATA_PARALLEL.value})
KERNELS: dict[Tier, str] = {
    Tier.DEVICE: EmbeddingComputeKernel.FUSED.value,
    Tier.UVM_CACHING: EmbeddingComputeKernel.FUSED_UVM_CACHING.value,
    Tier.UVM: EmbeddingComputeKernel.FUSED_UVM.value,
}
DENSE: str = EmbeddingComputeKernel.DENSE.value
KEY_VALUE: tuple[str, ...] = tuple(  # each release of TorchRec has a different subset
    kernel.value
    for kernel in EmbeddingComputeKernel
    if kernel is EmbeddingComputeKernel.KEY_VALUE or kernel.name.endswith("_VIRTUAL_TABLE")
)
PREFETCH = "prefetch"  # the pipeline in `MemoryUse` that fetches rows into caches before a batch reads them
PREFETCHED = frozenset({KERNELS[Tier.UVM_CACHING], *KEY_VALUE})  # the kernels whose caches that pipeline fills
_TIERS = {kernel: tier for tier, kernel in KERNELS.items()}


def shards_of(sharding: ParameterSharding) -> list[ShardMetadata]:
    """Return the shards of a parameter, in the order of the ranks in `sharding.ranks`.
    The result is empty if the parameter is data-parallel.
    """
    return [] if sharding.sharding_spec is None else sharding.sharding_spec.shards


def widest_shard(sharding: ParameterSharding, dim: int) -> int:
    """Return the number of columns of the widest shard of a table with `dim` columns.
    A data-parallel table counts as one shard.
    """
    return max((int(shard.shard_sizes[1]) for shard in shards_of(sharding)), default=dim)


def cut_widths(sharding: ParameterSharding) -> list[int]:
    """Return the number of columns of each shard of a column-wise table; empty for tables of other sharding types."""
    return [shard.shard_sizes[1] for shard in shards_of(sharding)] if sharding.sharding_type == SPLIT else []


def kernel_of(layout: Layout, assignment: TierAssignment) -> str:
    """Return the name of TorchRec's compute kernel for a table, such as "fused_uvm_caching" or "dense".
    The kernel depends on the family of sharding types (`layout`) and on the memory tier (`assignment`).
    """
    return DENSE if layout.dense else KERNELS[assignment.tier]


def cache_params(assignment: TierAssignment, cache: CacheParams | None = None) -> CacheParams | None:
    """Return the cache parameters of a table, with the load factor of the table's tier assignment.
    The result is None if the table has no cache.

    The other parameters come from `cache`; if that is None, the cache is an LRU cache with FBGEMM's settings.
    """
    if assignment.cache_load_factor is None:
        return None
    return replace(cache or CacheParams(algorithm=CacheAlgorithm.LRU), load_factor=assignment.cache_load_factor)


def tier_assignment_of(table: str, kernel: str, cache: CacheParams | None) -> TierAssignment:
    """Return the tier assignment of a table that has the given compute kernel and cache.
    Raise UserError if NeuroShard's plans do not support the kernel.
    """
    if kernel == DENSE:
        return ON_DEVICE
    if kernel not in _TIERS:
        raise UserError(
            "table-kernel-unsupported",
            f"table {table!r} has the compute kernel {kernel!r}",
            limit=f"the supported kernels are {', '.join([*_TIERS, DENSE])}",
            remedy="Plan the table with one of these kernels",
        )
    tier = _TIERS[kernel]
    share = None if cache is None else cache.load_factor
    return TierAssignment(tier, (share or DEFAULT_CACHED) if tier is Tier.UVM_CACHING else None)
