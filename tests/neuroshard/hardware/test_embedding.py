"""The real FBGEMM kernel does what it is timed for."""

import inspect
from dataclasses import replace

import numpy as np
import pytest
import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import CacheAlgorithm, EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen

from neuroshard.hardware import compute_bench
from neuroshard.hardware.compute_bench import Arenas, build_operator, fused_run
from neuroshard.hardware.inputs import draw_inputs
from neuroshard.hardware.specs import EmbeddingSettings
from neuroshard.plumbing.errors import UserError
from neuroshard.records.samples import ComputeSample, RowBlock
from neuroshard.tables import Table
from neuroshard.testing import ONCE, toy_tables
from neuroshard.words.form import Form
from neuroshard.words.placement import Home, Tier

CPU = torch.device("cpu")
RATE = 1e-3


@pytest.mark.parametrize("features", [(1, 1, 1), (2, 1, 3)])
def test_forward_and_update_agree_with_plain_torch(features):
    tables = tuple(replace(table, features=f) for table, f in zip(toy_tables(3), features, strict=True))
    sample = ComputeSample(tables, 16)
    operator = build_operator(sample, EmbeddingSettings(), CPU, Arenas(), np.random.default_rng(0))
    before = [weight.clone() for weight in operator.split_embedding_weights()]
    rng = np.random.default_rng(1)
    lengths = rng.integers(0, 4, size=sum(features) * 16)
    of_feature = [i for i, count in enumerate(features) for _ in range(count)]
    indices = np.concatenate(
        [rng.integers(tables[t].rows, size=lengths[16 * i : 16 * i + 16].sum()) for i, t in enumerate(of_feature)]
    )
    offsets = np.concatenate([[0], lengths.cumsum()])
    output = operator(torch.from_numpy(indices), torch.from_numpy(offsets))
    gradient = torch.randn(output.shape, generator=torch.Generator().manual_seed(0))
    output.backward(gradient)
    weights = [weight.requires_grad_() for weight in before]
    column = 0
    for i, t in enumerate(of_feature):
        first, last = offsets[16 * i], offsets[16 * (i + 1)]
        plain = torch.nn.functional.embedding_bag(
            torch.from_numpy(indices[first:last]),
            weights[t],
            torch.from_numpy(offsets[16 * i : 16 * (i + 1)] - first),
            mode="sum",
        )
        columns = slice(column, column + tables[t].dim)
        assert torch.allclose(output[:, columns], plain, atol=1e-5)
        plain.backward(gradient[:, columns])
        column += tables[t].dim
    for after, weight in zip(operator.split_embedding_weights(), weights, strict=True):
        assert torch.allclose(after, weight - RATE * weight.grad, atol=1e-5)


@pytest.mark.parametrize("features", [(1, 1, 1), (2, 1, 3)])
def test_sequence_tables_have_an_output_for_every_lookup(features):
    shapes = zip(toy_tables(3), features, strict=True)
    tables = tuple(replace(table, dim=16, features=f, pooled=False) for table, f in shapes)
    sample = ComputeSample(tables, 16)
    operator = build_operator(sample, EmbeddingSettings(), CPU, Arenas(), np.random.default_rng(0))
    weights = [weight.clone().requires_grad_() for weight in operator.split_embedding_weights()]
    inputs = draw_inputs(sample, CPU, np.random.default_rng(1))
    output = operator(inputs.indices, inputs.offsets)
    assert output.shape == inputs.gradient.shape == (len(inputs.indices), 16)
    output.backward(inputs.gradient)
    ends = inputs.offsets[16 * np.cumsum([0, *features])]
    for table, weight, first, last in zip(tables, weights, ends[:-1], ends[1:], strict=True):
        rows = weight[inputs.indices[first:last]]
        assert torch.allclose(output[first:last], rows)
        assert int(last - first) == round(16 * table.pooling_factor)
        rows.backward(inputs.gradient[first:last])
    for after, weight in zip(operator.split_embedding_weights(), weights, strict=True):
        assert torch.allclose(after, weight - RATE * weight.grad, atol=1e-5)


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
def test_blocks_of_sequence_tables_train_with_and_without_lookups(optimizer):
    table = Table("t", 1000, 8, 0.1, ONCE, pooled=False)
    for rows in (500, 1):
        sample = ComputeSample((table,), 16, Form.ROWS, (RowBlock(0, rows),))
        prepared = fused_run(sample, EmbeddingSettings(optimizer), CPU, Arenas(), np.random.default_rng(0))
        prepared.run()
        assert prepared.run.args[1].gradient.shape == (prepared.seen[0].count, 8)


@pytest.mark.parametrize("features", [1, 4])
def test_a_run_gets_an_output_for_every_sample_and_feature(features):
    tables = tuple(replace(table, features=features) for table in toy_tables(3))
    prepared = fused_run(ComputeSample(tables, 64), EmbeddingSettings(), CPU, Arenas(), np.random.default_rng(0))
    operator, inputs = prepared.run.args
    assert operator(inputs.indices, inputs.offsets).shape == inputs.gradient.shape
    assert inputs.gradient.shape == (64, features * sum(table.dim for table in tables))
    assert len(inputs.offsets) == 64 * 3 * features + 1
    prepared.run()


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
@pytest.mark.parametrize("bytes_per_element", [2, 4])
def test_every_optimizer_and_precision_runs_and_trains(optimizer, bytes_per_element):
    tables = tuple(type(t)(t.name, t.rows, t.dim, t.pooling_factor, t.reuse, bytes_per_element) for t in toy_tables(2))
    arenas = Arenas()
    prepared = fused_run(ComputeSample(tables, 64), EmbeddingSettings(optimizer), CPU, arenas, np.random.default_rng(0))
    operator = prepared.run.args[0]
    before = [weight.clone() for weight in operator.split_embedding_weights()]
    assert before[0].element_size() == bytes_per_element
    prepared.run()
    prepared.run()
    after = operator.split_embedding_weights()
    assert all(not torch.equal(b, a) and torch.isfinite(a).all() for b, a in zip(before, after, strict=True))


class _Operator:
    """Takes what FBGEMM's operator takes on a GPU, and keeps it."""

    def __init__(self, **arguments):
        self.arguments = arguments


@pytest.mark.parametrize(
    ("home", "place", "cache"),
    [
        (Home(), EmbeddingLocation.DEVICE, {}),
        (Home(Tier.HOST), EmbeddingLocation.MANAGED, {}),
        (
            Home(Tier.CACHED, 0.25),
            EmbeddingLocation.MANAGED_CACHING,
            {"cache_algorithm": CacheAlgorithm.LRU, "cache_load_factor": 0.25},
        ),
    ],
)
def test_on_a_gpu_weights_lie_in_the_memory_that_the_sample_says(monkeypatch, home, place, cache):
    monkeypatch.setattr(compute_bench, "SplitTableBatchedEmbeddingBagsCodegen", _Operator)
    sample = ComputeSample(toy_tables(2), 16, home=home)
    device, rng = torch.device("cuda", 0), np.random.default_rng(0)
    given = build_operator(sample, EmbeddingSettings(), device, Arenas(), rng).arguments
    known = inspect.signature(SplitTableBatchedEmbeddingBagsCodegen.__init__).parameters
    assert given.keys() <= known.keys()
    assert {spec[2:] for spec in given["embedding_specs"]} == {(place, ComputeDevice.CUDA)}
    assert {name: value for name, value in given.items() if name.startswith("cache")} == cache
    assert "preallocated_host_buffers" not in given


@pytest.mark.parametrize("home", [Home(Tier.CACHED, 0.25), Home(Tier.HOST)])
def test_a_cpu_has_no_second_tier(home):
    sample = ComputeSample(toy_tables(2), 16, home=home)
    with pytest.raises(UserError, match="hardware=cpu has no second tier of memory"):
        fused_run(sample, EmbeddingSettings(), CPU, Arenas(), np.random.default_rng(0))


def test_mixed_precisions_are_refused():
    first, second = toy_tables(2)
    mixed = (first, type(second)(second.name, second.rows, second.dim, 1.0, second.reuse, 2))
    with pytest.raises(UserError, match="mix"):
        build_operator(ComputeSample(mixed, 16), EmbeddingSettings(), CPU, Arenas(), np.random.default_rng(0))


def test_operators_share_the_arena():
    arenas = Arenas()
    sample = ComputeSample(toy_tables(2), 16)
    arenas[4].reserve(sample.size_bytes // 4)
    operators = [build_operator(sample, EmbeddingSettings(), CPU, arenas, np.random.default_rng(i)) for i in range(2)]
    first, second = (operator.weights_host.untyped_storage().data_ptr() for operator in operators)
    assert first == second


def test_more_weights_than_memory_is_an_error_not_a_crash():
    with pytest.raises(MemoryError, match="GiB available"):
        Arenas()[4].reserve(1 << 45)
