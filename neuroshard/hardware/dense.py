"""The kernel of copies: FBGEMM's dense embedding, as TorchRec calls it for data_parallel, and an update of every row.

Backward gives a gradient of all rows, zeros for those that nobody looked up: it is what devices add up between them.
Then the optimizer, which knows nothing of embeddings, reads and writes the whole table.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_training import DenseTableBatchedEmbeddingBagsCodegen

from neuroshard.hardware.arena import check_room
from neuroshard.hardware.inputs import (
    LEARNING_RATE,
    PRECISIONS,
    Inputs,
    Prepared,
    common_precision,
    draw_inputs,
    table_of_feature,
)
from neuroshard.hardware.specs import EmbeddingSettings
from neuroshard.records.samples import ComputeSample

_EPSILON = 1e-8
_LIVE_BYTES = 2  # times the weights: gradients are as large

WARNING = "fbgemm::dense_embedding"  # how what torch says of the CPU kernel begins, at every call

Update = Callable[[torch.Tensor], None]


def dense_run(
    sample: ComputeSample, settings: EmbeddingSettings, device: torch.device, rng: np.random.Generator
) -> Prepared:
    """A dense forward and backward call over all of the sample's tables, and the update of all their rows.

    Raises:
        RuntimeError, MemoryError: the device has no room.
        UserError: the tables mix precisions, which one call can't.
    """
    precision, _ = PRECISIONS[common_precision(sample)]
    on_cpu = device.type == "cpu"
    if on_cpu:
        check_room(_LIVE_BYTES * sample.size_bytes)
    specs = [(table.rows, table.dim) for table in sample.tables]
    operator = DenseTableBatchedEmbeddingBagsCodegen(
        specs, table_of_feature(sample), weights_precision=precision, use_cpu=on_cpu
    )
    update = _UPDATES[settings.optimizer](operator.weights, specs)
    return Prepared(partial(_train, operator, update, draw_inputs(sample, device, rng)), ())


def _train(operator: DenseTableBatchedEmbeddingBagsCodegen, update: Update, inputs: Inputs) -> None:
    operator(inputs.indices, inputs.offsets).backward(inputs.gradient)
    with torch.no_grad():
        update(operator.weights.grad)
    operator.weights.grad = None


@dataclass(frozen=True, eq=False)
class _Sgd:
    """Plain gradient descent on all weights at once."""

    weights: torch.Tensor

    def __call__(self, gradient: torch.Tensor) -> None:
        self.weights.add_(gradient, alpha=-LEARNING_RATE)


@dataclass(frozen=True, eq=False)
class _RowwiseAdagrad:
    """Row-wise Adagrad, table by table: `tables` are pairs of weights (rows, dim) and sums of squares (rows, 1)."""

    tables: tuple[tuple[torch.Tensor, torch.Tensor], ...]

    def __call__(self, gradient: torch.Tensor) -> None:
        parts = torch.split(gradient, [weights.numel() for weights, _ in self.tables])
        for (weights, sums), part in zip(self.tables, parts, strict=True):
            own = part.view_as(weights)
            sums.add_(own.square().mean(1, keepdim=True))
            weights.addcdiv_(own, sums.sqrt() + _EPSILON, value=-LEARNING_RATE)


def _sgd(weights: torch.Tensor, _specs: list[tuple[int, int]]) -> Update:
    return _Sgd(weights)


def _rowwise_adagrad(weights: torch.Tensor, specs: list[tuple[int, int]]) -> Update:
    parts = torch.split(weights.detach(), [rows * dim for rows, dim in specs])
    tables = [part.view(rows, dim) for part, (rows, dim) in zip(parts, specs, strict=True)]
    return _RowwiseAdagrad(tuple((table, torch.zeros_like(table[:, :1])) for table in tables))


_UPDATES = {"sgd": _sgd, "rowwise_adagrad": _rowwise_adagrad}
