"""The real dense kernel of copies does what it is timed for."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from neuroshard.hardware.compute_bench import DENSE_WARNING, dense_run
from neuroshard.hardware.inputs import LEARNING_RATE
from neuroshard.hardware.specs import EmbeddingSettings
from neuroshard.plumbing.errors import UserError
from neuroshard.records.samples import ComputeSample
from neuroshard.testing import toy_tables
from neuroshard.words.form import Form

pytestmark = pytest.mark.filterwarnings(f"ignore:{DENSE_WARNING}")
CPU = torch.device("cpu")


def _parts(flat, tables):
    pieces = flat.detach().split([table.rows * table.dim for table in tables])
    return [piece.view(table.rows, table.dim).clone() for piece, table in zip(pieces, tables, strict=True)]


def _plain_gradients(tables, weights, inputs, batch_size):
    """What plain torch says that each table's gradient is."""
    column, found = 0, [weight.clone().requires_grad_() for weight in weights]
    pairs = [pair for pair in zip(tables, found, strict=True) for _ in range(pair[0].features)]
    for i, (table, its) in enumerate(pairs):
        offsets = inputs.offsets[batch_size * i : batch_size * (i + 1) + 1]
        indices = inputs.indices[offsets[0] : offsets[-1]]
        pooled = torch.nn.functional.embedding_bag(indices, its, offsets[:-1] - offsets[0], mode="sum")
        pooled.backward(inputs.gradient[:, column : column + table.dim])
        column += table.dim
    return [its.grad for its in found]


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
def test_every_row_gets_the_gradient_that_plain_torch_computes(optimizer):
    tables = tuple(replace(table, features=1 + i) for i, table in enumerate(toy_tables(3, max_rows=50)))
    sample = ComputeSample(tables, 16, Form.COPIES)
    prepared = dense_run(sample, EmbeddingSettings(optimizer), CPU, np.random.default_rng(0))
    operator, _, inputs = prepared.run.args
    given = dense_run(sample, EmbeddingSettings(optimizer), CPU, np.random.default_rng(0)).run.args[2]
    assert torch.equal(inputs.indices, given.indices)
    before = _parts(operator.weights, tables)
    gradients = _plain_gradients(tables, before, inputs, 16)
    prepared.run()
    after = _parts(operator.weights, tables)
    for weight, gradient, now in zip(before, gradients, after, strict=True):
        scale = gradient.square().mean(1, keepdim=True).sqrt() + 1e-8 if optimizer != "sgd" else 1.0
        assert torch.allclose(now, weight - LEARNING_RATE * gradient / scale, atol=1e-6)
    assert operator.weights.grad is None


def test_copies_of_half_precision_train():
    tables = tuple(replace(table, bytes_per_element=2) for table in toy_tables(2))
    prepared = dense_run(ComputeSample(tables, 64, Form.COPIES), EmbeddingSettings(), CPU, np.random.default_rng(0))
    weights = prepared.run.args[0].weights
    before = weights.detach().clone()
    prepared.run()
    assert weights.dtype == torch.float16
    assert not torch.equal(before, weights)
    assert torch.isfinite(weights).all()


def test_copies_that_mix_precisions_or_have_no_room_are_refused():
    first, second = toy_tables(2)
    with pytest.raises(UserError, match="mix"):
        mixed = ComputeSample((first, replace(second, bytes_per_element=2)), 16, Form.COPIES)
        dense_run(mixed, EmbeddingSettings(), CPU, np.random.default_rng(0))
    with pytest.raises(MemoryError, match="GiB available"):
        huge = ComputeSample((replace(first, rows=1 << 38),), 16, Form.COPIES)
        dense_run(huge, EmbeddingSettings(), CPU, np.random.default_rng(0))
