"""The kernel of columns and rows: FBGEMM's table-batched embedding, forward and backward with the update fused in.

Of sequence tables it is the one without pooling.
"""

from functools import partial

import fbgemm_gpu  # noqa: F401  # registers the operators
import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    PoolingMode,
    SplitTableBatchedEmbeddingBagsCodegen,
)

from neuroshard.hardware.arena import Arena
from neuroshard.hardware.inputs import (
    LEARNING_RATE,
    PRECISIONS,
    Inputs,
    Prepared,
    common_precision,
    draw_inputs,
    table_of_feature,
)
from neuroshard.hardware.settings import EmbeddingSettings
from neuroshard.records.samples import ComputeSample

_OPTIMIZERS = {"sgd": EmbOptimType.EXACT_SGD, "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD}


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
        UserError: the tables mix precisions, which one fused call can't.
    """
    operator = build_operator(sample, settings, device, arenas, rng)
    inputs = draw_inputs(sample, device, rng)
    return Prepared(partial(_forward_backward, operator, inputs), inputs.seen)


def _forward_backward(operator: SplitTableBatchedEmbeddingBagsCodegen, inputs: Inputs) -> None:
    operator(inputs.indices, inputs.offsets).backward(inputs.gradient)


def build_operator(
    sample: ComputeSample,
    settings: EmbeddingSettings,
    device: torch.device,
    arenas: Arenas,
    rng: np.random.Generator,
) -> SplitTableBatchedEmbeddingBagsCodegen:
    """The fused operator over all of the sample's tables; on CPU its weights lie in the arena."""
    on_cpu = device.type == "cpu"
    bytes_per_element = common_precision(sample)
    place = (EmbeddingLocation.HOST, ComputeDevice.CPU) if on_cpu else (EmbeddingLocation.DEVICE, ComputeDevice.CUDA)
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
    )
