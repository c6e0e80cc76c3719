"""The benchmark runs real FBGEMM kernels, fused and dense, that compute correct outputs and updates."""

import inspect
from dataclasses import replace

import numpy as np
import pytest
import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import CacheAlgorithm, EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen

from neuroshard import Tier, TierAssignment
from neuroshard.measure.device import CpuDevice
from neuroshard.measure.kernels import _compute_bench as compute_bench
from neuroshard.measure.kernels._compute_bench import DENSE_WARNING, ComputeBench, build_operator, dense_run, fused_run
from neuroshard.measure.kernels._inputs import Prepared, draw_inputs, inputs_of
from neuroshard.measure.specs import EmbeddingSettings
from neuroshard.measure.store.samples import ComputeSample, RowBlock
from neuroshard.plumbing.timing import TimingProtocol
from neuroshard.testing import toy_tables
from neuroshard.words.form import Form
from tests.kit.messages import refused
from tests.kit.plain_torch import plain_torch
from tests.kit.plans import table

pytestmark = pytest.mark.filterwarnings(f"ignore:{DENSE_WARNING}")
CPU = torch.device("cpu")
RATE = 1e-3
FEATURES = [(1, 1, 1), (2, 1, 3)]
OPTIMIZERS = ["sgd", "rowwise_adagrad"]


def _tables(features, **fields):
    return tuple(
        replace(one, features=f, **fields) for one, f in zip(toy_tables(3, max_rows=50), features, strict=True)
    )


def _built(sample, arenas=None, device=CPU):
    arenas = arenas or compute_bench.make_arenas()
    return build_operator(sample, EmbeddingSettings(), device, arenas, np.random.default_rng(0))


def _fused(sample, optimizer="sgd"):
    return fused_run(sample, EmbeddingSettings(optimizer), CPU, compute_bench.make_arenas(), np.random.default_rng(0))


def _dense(sample, optimizer="sgd"):
    return dense_run(sample, EmbeddingSettings(optimizer), CPU, np.random.default_rng(0))


@pytest.mark.parametrize("features", FEATURES)
def test_fused_kernel_forward_and_update_agree_with_plain_torch(features):
    sample, rng = ComputeSample(_tables(features), 16), np.random.default_rng(1)
    operator, drawn = _built(sample), []
    before = [weight.clone() for weight in operator.split_embedding_weights()]
    for one in sample.tables:
        lengths = torch.from_numpy(rng.integers(0, 4, size=one.features * 16))
        drawn.append((torch.from_numpy(rng.integers(one.rows, size=int(lengths.sum()))), lengths))
    inputs = inputs_of(sample, drawn, torch.Generator().manual_seed(0))
    _check_beside_plain_torch(sample, operator, before, inputs, operator(inputs.indices, inputs.offsets), 1e-5)


def _check_beside_plain_torch(sample, operator, before, inputs, output, output_atol):
    plain, gradients = plain_torch(sample, before, inputs)
    assert torch.allclose(output, plain, atol=output_atol)
    output.backward(inputs.gradient)
    for now, weight, gradient in zip(operator.split_embedding_weights(), before, gradients, strict=True):
        assert torch.allclose(now, weight - RATE * gradient, atol=1e-5)


@pytest.mark.parametrize("features", FEATURES)
def test_sequence_tables_have_an_output_for_every_lookup(features):
    sample = ComputeSample(_tables(features, dim=16, pooled=False), 16)
    operator = _built(sample)
    before = [weight.clone() for weight in operator.split_embedding_weights()]
    inputs = draw_inputs(sample, CPU, np.random.default_rng(1))
    output = operator(inputs.indices, inputs.offsets)
    assert output.shape == inputs.gradient.shape == (len(inputs.indices), 16)
    ends = inputs.offsets[16 * np.cumsum([0, *features])]
    assert np.diff(ends).tolist() == [round(16 * one.pooling_factor) for one in sample.tables]
    _check_beside_plain_torch(sample, operator, before, inputs, output, 1e-8)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("rows", [500, 1])
def test_kernels_of_row_wise_sequence_tables_train_with_and_without_lookups(rows, optimizer):
    tables = (table(rows=1000, dim=8, pooling_factor=0.1, pooled=False),)
    prepared = _fused(ComputeSample(tables, 16, Form.ROW_WISE, (RowBlock(0, rows),)), optimizer)
    prepared.run()
    assert prepared.run.args[1].gradient.shape == (prepared.seen[0].count, 8)


@pytest.mark.parametrize("features", [1, 4])
def test_kernel_run_returns_an_output_for_every_sample_and_feature(features):
    tables = _tables([features] * 3)
    prepared = _fused(ComputeSample(tables, 64))
    operator, inputs = prepared.run.args
    assert operator(inputs.indices, inputs.offsets).shape == inputs.gradient.shape
    assert inputs.gradient.shape == (64, features * sum(one.dim for one in tables))
    assert len(inputs.offsets) == 64 * 3 * features + 1
    prepared.run()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("bytes_per_element", [2, 4])
def test_every_optimizer_and_precision_runs_and_trains(optimizer, bytes_per_element):
    prepared = _fused(ComputeSample(_tables([1] * 3, bytes_per_element=bytes_per_element), 64), optimizer)
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
        self.arguments, self.filled = arguments, None

    def init_embedding_weights_uniform(self, *span):
        self.filled = span


@pytest.mark.parametrize(
    ("home", "place", "cache"),
    [
        (TierAssignment(), EmbeddingLocation.DEVICE, {}),
        (TierAssignment(Tier.UVM), EmbeddingLocation.MANAGED, {}),
        (
            TierAssignment(Tier.UVM_CACHING, 0.25),
            EmbeddingLocation.MANAGED_CACHING,
            {"cache_algorithm": CacheAlgorithm.LRU, "cache_load_factor": 0.25},
        ),
    ],
)
def test_fused_kernel_weights_are_in_the_tier_of_the_sample_and_cpus_refuse_host_tiers(monkeypatch, home, place, cache):
    """On a GPU; a CPU has no second tier."""
    sample = ComputeSample(toy_tables(2), 16, tier_assignment=home)
    if home.tier is not Tier.DEVICE:
        with refused("hardware-cpu-lacks-tier", names=[f"'{home.tier.value}'", "hardware=cpu", "hardware=cuda"]):
            _fused(sample)
    monkeypatch.setattr(compute_bench, "SplitTableBatchedEmbeddingBagsCodegen", _Operator)
    operator = _built(sample, device=torch.device("cuda", 0))
    given = operator.arguments
    assert (operator.filled is not None) == (home.tier is Tier.DEVICE)  # never timed on zeros
    known = inspect.signature(SplitTableBatchedEmbeddingBagsCodegen.__init__).parameters
    assert given.keys() <= known.keys()
    assert {spec[2:] for spec in given["embedding_specs"]} == {(place, ComputeDevice.CUDA)}
    assert {name: value for name, value in given.items() if name.startswith("cache")} == cache
    assert "preallocated_host_buffers" not in given


@pytest.mark.parametrize(("run", "form"), [(_built, Form.COLUMN_WISE), (_dense, Form.DATA_PARALLEL)])
def test_kernel_call_of_tables_with_mixed_precisions_is_refused(run, form):
    first, second = toy_tables(2)
    with refused("kernel-call-mixed-precisions", names=["bytes_per_element", [2, 4]]):
        run(ComputeSample((first, replace(second, bytes_per_element=2)), 16, form))


def test_operators_built_from_one_arena_share_the_memory_of_their_weights():
    arenas, sample = compute_bench.make_arenas(), ComputeSample(toy_tables(2), 16)
    arenas[4].reserve(sample.size_bytes // 4)
    first, second = (_built(sample, arenas).weights_host.untyped_storage().data_ptr() for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    "reserve",
    [
        lambda: compute_bench.make_arenas()[4].reserve(1 << 45),
        lambda: _dense(ComputeSample((replace(toy_tables(1)[0], rows=1 << 38),), 16, Form.DATA_PARALLEL)),
    ],
    ids=["arena", "data-parallel"],
)
def test_reserving_more_weights_than_memory_raises_memory_error(reserve):
    with pytest.raises(MemoryError, match=r"[\d.]+ GiB.*[\d.]+ GiB"):
        reserve()


def _parts(flat, tables):
    pieces = flat.detach().split([one.rows * one.dim for one in tables])
    return [piece.view(one.rows, one.dim).clone() for piece, one in zip(pieces, tables, strict=True)]


def test_sample_without_room_next_to_other_samples_is_measured_alone(monkeypatch):
    samples, together = [ComputeSample(toy_tables(2), 16), ComputeSample(toy_tables(3), 16)], []

    def prepare(self, sample, rng):
        together.append(sample)
        if sample is samples[1] and len(together) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return Prepared(lambda: None, ())

    monkeypatch.setattr(ComputeBench, "_prepare", prepare)
    reported = []
    bench = ComputeBench(CpuDevice(pin=False), EmbeddingSettings(), TimingProtocol(rounds=2, flush_bytes=0))
    first, second = bench.measure(samples, [0, 1], reported.append)
    assert (first.error, second.error) == (None, None)
    assert together == [*samples, samples[1]]
    assert second.repeats.times_ms.shape == (2,)
    assert reported[-1] == 1


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_row_of_a_copy_gets_the_gradient_that_plain_torch_computes(optimizer):
    sample = ComputeSample(_tables([1, 2, 3]), 16, Form.DATA_PARALLEL)
    prepared = _dense(sample, optimizer)
    operator, _, inputs = prepared.run.args
    assert torch.equal(inputs.indices, _dense(sample, optimizer).run.args[2].indices)
    before = _parts(operator.weights, sample.tables)
    _, gradients = plain_torch(sample, before, inputs)
    prepared.run()
    for weight, gradient, now in zip(before, gradients, _parts(operator.weights, sample.tables), strict=True):
        scale = gradient.square().mean(1, keepdim=True).sqrt() + 1e-8 if optimizer != "sgd" else 1.0
        assert torch.allclose(now, weight - RATE * gradient / scale, atol=1e-6)
    assert operator.weights.grad is None


def test_dense_kernel_of_a_row_block_has_weights_for_the_rows_of_the_block_only():
    whole = replace(toy_tables(1)[0], rows=100, dim=8, pooling_factor=4.0)
    prepared = _dense(ComputeSample((whole,), 64, Form.ROW_WISE, (RowBlock(50, 50),)))
    operator, _, inputs = prepared.run.args
    prepared.run()
    assert operator.weights.numel() == 50 * 8
    assert [block.count for block in prepared.seen] == [len(inputs.indices)]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_data_parallel_tables_of_half_precision_train(optimizer):
    prepared = _dense(ComputeSample(_tables([1] * 3, bytes_per_element=2), 4, Form.DATA_PARALLEL), optimizer)
    weights = prepared.run.args[0].weights
    before = weights.detach().clone()
    prepared.run()
    assert weights.dtype == torch.float16
    assert not torch.equal(before, weights)
    assert torch.isfinite(weights).all()
