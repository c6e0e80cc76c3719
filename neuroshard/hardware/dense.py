"""The kernel of copies: FBGEMM's dense embedding, as TorchRec calls it for data_parallel, and an update of every row.

Backward gives a gradient of all rows, zeros for those that nobody looked up: it is what devices add up between them.
Then the optimizer, which knows nothing of embeddings, reads and writes the whole table.
"""

from collections.abc import Callable
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

Update = Callable[[torch.Tensor], object]


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


def _sgd(weights: torch.Tensor, _specs: list[tuple[int, int]]) -> Update:
    """Plain gradient descent on all weights at once."""
    return lambda gradient: weights.add_(gradient, alpha=-LEARNING_RATE)


def _rowwise_adagrad(weights: torch.Tensor, specs: list[tuple[int, int]]) -> Update:
    """Row-wise Adagrad, table by table, of (rows, dim)."""
    sizes = [rows * dim for rows, dim in specs]
    tables = [part.view(shape) for part, shape in zip(torch.split(weights.detach(), sizes), specs, strict=True)]
    sums = [torch.zeros_like(table[:, :1]) for table in tables]  # of squares, (rows, 1)

    def update(gradient: torch.Tensor) -> None:
        for table, its_sums, part in zip(tables, sums, torch.split(gradient, sizes), strict=True):
            own = part.view_as(table)
            its_sums.add_(own.square().mean(1, keepdim=True))
            table.addcdiv_(own, its_sums.sqrt() + _EPSILON, value=-LEARNING_RATE)

    return update


_UPDATES = {"sgd": _sgd, "rowwise_adagrad": _rowwise_adagrad}
