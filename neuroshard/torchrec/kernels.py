"""TorchRec's words for where a table lies and how it is computed: compute kernels and cache parameters."""

from dataclasses import replace

from fbgemm_gpu.split_table_batched_embeddings_ops_common import CacheAlgorithm
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.types import CacheParams

from neuroshard.layouts import Layout
from neuroshard.plumbing.errors import UserError
from neuroshard.words.placement import DEFAULT_CACHED, ON_DEVICE, Home, Tier

KERNELS: dict[Tier, str] = {
    Tier.DEVICE: EmbeddingComputeKernel.FUSED.value,
    Tier.CACHED: EmbeddingComputeKernel.FUSED_UVM_CACHING.value,
    Tier.HOST: EmbeddingComputeKernel.FUSED_UVM.value,
}
DENSE: str = EmbeddingComputeKernel.DENSE.value
KEY_VALUE: tuple[str, ...] = (
    EmbeddingComputeKernel.KEY_VALUE.value,
    EmbeddingComputeKernel.SSD_VIRTUAL_TABLE.value,
    EmbeddingComputeKernel.DRAM_VIRTUAL_TABLE.value,
    EmbeddingComputeKernel.DRAM_SSD_VIRTUAL_TABLE.value,
)
_TIERS = {kernel: tier for tier, kernel in KERNELS.items()}


def kernel_of(layout: Layout, home: Home) -> str:
    """The compute kernel of a table that lies so."""
    return DENSE if layout.dense else KERNELS[home.tier]


def cache_params(home: Home, cache: CacheParams | None = None) -> CacheParams | None:
    """The parameters of a table's cache: `cache`, an LRU cache if there is none, with room for the share of its rows.

    None of tables without a cache.
    """
    if home.cached is None:
        return None
    return replace(cache or CacheParams(algorithm=CacheAlgorithm.LRU), load_factor=home.cached)


def home_of(table: str, kernel: str, cache: CacheParams | None) -> Home:
    """The memory that a table of that name lies in.

    Raises:
        UserError: the kernel is none of those that tables are planned for.
    """
    if kernel == DENSE:
        return ON_DEVICE
    if kernel not in _TIERS:
        raise UserError(f"table {table!r} has compute kernel {kernel!r}; known are {', '.join([*_TIERS, DENSE])}")
    tier = _TIERS[kernel]
    share = None if cache is None else cache.load_factor
    return Home(tier, (share or DEFAULT_CACHED) if tier is Tier.CACHED else None)
