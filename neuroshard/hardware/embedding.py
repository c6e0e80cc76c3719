"""The kernel that is measured: FBGEMM's table-batched embedding, forward and backward with the update fused in."""

from collections.abc import Callable
from functools import partial

import fbgemm_gpu  # noqa: F401  # registers the operators
import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)

from neuroshard.errors import UserError
from neuroshard.hardware.arena import Arena
from neuroshard.hardware.lookups import draw_lookups
from neuroshard.hardware.settings import EmbeddingSettings
from neuroshard.records.samples import ComputeSample

_OPTIMIZERS = {"sgd": EmbOptimType.EXACT_SGD, "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD}
_PRECISIONS = {4: (SparseType.FP32, torch.float32), 2: (SparseType.FP16, torch.float16)}
_LEARNING_RATE = 1e-3


class Arenas:
    """The weights' memory, by precision."""

    def __init__(self) -> None:
        self._by_bytes = {size: Arena(dtype) for size, (_, dtype) in _PRECISIONS.items()}

    def __getitem__(self, bytes_per_element: int) -> Arena:
        return self._by_bytes[bytes_per_element]


def build_run(
    sample: ComputeSample,
    settings: EmbeddingSettings,
    device: torch.device,
    arenas: Arenas,
    rng: np.random.Generator,
) -> Callable[[], None]:
    """A function that looks up and trains all of the sample's tables once: one fused forward and backward call.

    Raises:
        RuntimeError, MemoryError: the device has no room.
        UserError: the tables mix precisions, which one fused call can't.
    """
    operator = build_operator(sample, settings, device, arenas, rng)
    generator = torch.Generator(device).manual_seed(int(rng.integers(1 << 62)))
    drawn = [draw_lookups(table, sample.batch_size, generator) for table in sample.tables]
    indices = torch.cat([indices for indices, _ in drawn])
    lengths = torch.cat([lengths for _, lengths in drawn])
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    columns = sum(table.dim for table in sample.tables)
    gradient = torch.randn(sample.batch_size, columns, generator=generator, device=device)
    return partial(_forward_backward, operator, indices, offsets, gradient)


def _forward_backward(
    operator: SplitTableBatchedEmbeddingBagsCodegen,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    gradient: torch.Tensor,
) -> None:
    operator(indices, offsets).backward(gradient)


def build_operator(
    sample: ComputeSample,
    settings: EmbeddingSettings,
    device: torch.device,
    arenas: Arenas,
    rng: np.random.Generator,
) -> SplitTableBatchedEmbeddingBagsCodegen:
    """The fused operator over all of the sample's tables; on CPU its weights lie in the arena."""
    widths = {table.bytes_per_element for table in sample.tables}
    if len(widths) > 1:
        raise UserError(f"one fused call can't mix bytes_per_element {sorted(widths)}")
    on_cpu = device.type == "cpu"
    bytes_per_element = widths.pop()
    place = (EmbeddingLocation.HOST, ComputeDevice.CPU) if on_cpu else (EmbeddingLocation.DEVICE, ComputeDevice.CUDA)
    elements = sample.size_bytes // bytes_per_element
    # Releases of FBGEMM before 1.8 don't know the argument; on CUDA, where they are used, there is no arena.
    weights = (
        {"preallocated_host_buffers": {"weights": arenas[bytes_per_element].view(elements, rng)}} if on_cpu else {}
    )
    return SplitTableBatchedEmbeddingBagsCodegen(
        embedding_specs=[(table.rows, table.dim, *place) for table in sample.tables],
        optimizer=_OPTIMIZERS[settings.optimizer],
        learning_rate=_LEARNING_RATE,
        weights_precision=_PRECISIONS[bytes_per_element][0],
        device=device,
        **weights,
    )
