"""The kernel of columns and rows: FBGEMM's table-batched embedding, forward and backward with the update fused in.

Of sequence tables it is the one without pooling.
"""

from functools import partial
from typing import Any

import fbgemm_gpu  # noqa: F401  # registers the operators
import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import CacheAlgorithm, EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    PoolingMode,
    SplitTableBatchedEmbeddingBagsCodegen,
)

from neuroshard.hardware.arena import Arena
from neuroshard.hardware.host_memory import host_run
from neuroshard.hardware.inputs import (
    LEARNING_RATE,
    PRECISIONS,
    Inputs,
    Prepared,
    common_precision,
    draw_inputs,
    table_of_feature,
)
from neuroshard.hardware.specs import EmbeddingSettings, check_tiers
from neuroshard.records.samples import ComputeSample
from neuroshard.words.home import ON_DEVICE, Home, Tier

_OPTIMIZERS = {"sgd": EmbOptimType.EXACT_SGD, "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD}
_ON_CUDA = {
    Tier.DEVICE: EmbeddingLocation.DEVICE,
    Tier.CACHED: EmbeddingLocation.MANAGED_CACHING,
    Tier.HOST: EmbeddingLocation.MANAGED,
}


class Arenas:
    """The weights' memory, by precision."""

    def __init__(self) -> None:
        self._by_bytes = {size: Arena(dtype) for size, (_, dtype) in PRECISIONS.items()}

    def __getitem__(self, bytes_per_element: int) -> Arena:
        return self._by_bytes[bytes_per_element]


def fused_run(
    sample: ComputeSample,
    settings: EmbeddingSettings,
    device: torch.device,
    arenas: Arenas,
    rng: np.random.Generator,
) -> Prepared:
    """A fused forward and backward call over what the device holds of the sample's tables.

    Raises:
        RuntimeError, MemoryError: the device has no room.
        UserError: the tables mix precisions, which one fused call can't; or the device has no such tier of memory.
    """
    operator = build_operator(sample, settings, device, arenas, rng)
    train = partial(_forward_backward, operator)
    if sample.home != ON_DEVICE:
        return host_run(train, operator, sample, device, rng)
    inputs = draw_inputs(sample, device, rng)
    return Prepared(partial(train, inputs), inputs.seen)


def _forward_backward(operator: SplitTableBatchedEmbeddingBagsCodegen, inputs: Inputs) -> None:
    operator(inputs.indices, inputs.offsets).backward(inputs.gradient)


def build_operator(
    sample: ComputeSample,
    settings: EmbeddingSettings,
    device: torch.device,
    arenas: Arenas,
    rng: np.random.Generator,
) -> SplitTableBatchedEmbeddingBagsCodegen:
    """The fused operator over all of the sample's tables; on CPU its weights lie in the arena.

    Rows are fetched into a cache when the operator is called, not before: its cost is that of the call.
    """
    check_tiers(device.type, [sample.home.tier])
    on_cpu = device.type == "cpu"
    bytes_per_element = common_precision(sample)
    place = (EmbeddingLocation.HOST, ComputeDevice.CPU) if on_cpu else (_ON_CUDA[sample.home.tier], ComputeDevice.CUDA)
    elements = sample.size_bytes // bytes_per_element
    # Releases of FBGEMM before 1.8 don't know the argument; on CUDA, where they are used, there is no arena.
    weights = (
        {"preallocated_host_buffers": {"weights": arenas[bytes_per_element].view(elements, rng)}} if on_cpu else {}
    )
    return SplitTableBatchedEmbeddingBagsCodegen(
        embedding_specs=[(table.rows, table.dim, *place) for table in sample.held],
        feature_table_map=table_of_feature(sample),
        pooling_mode=PoolingMode.SUM if sample.call.pooled else PoolingMode.NONE,
        optimizer=_OPTIMIZERS[settings.optimizer],
        learning_rate=LEARNING_RATE,
        weights_precision=PRECISIONS[bytes_per_element][0],
        device=device,
        **weights,
        **_cache(sample.home),
    )


def _cache(home: Home) -> dict[str, Any]:
    """The operator's arguments for its cache, if it has one: for so large a share of all tables' rows."""
    if home.tier is not Tier.CACHED:
        return {}
    return {"cache_algorithm": CacheAlgorithm.LRU, "cache_load_factor": home.cached_share}
