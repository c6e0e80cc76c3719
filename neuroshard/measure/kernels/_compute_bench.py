"""Time kernel calls on one device, with the kernels that TorchRec calls for each sharding type.

Column-wise and row-wise tables use FBGEMM's table-batched embedding: forward, and backward with the fused update;
sequence tables use the embedding without pooling. Data-parallel tables use FBGEMM's dense embedding and an update of
every row: the backward pass returns a gradient of all rows, with zeros for rows without lookups, and devices sum these
gradients. Then the dense optimizer, which does not know about lookups, reads and writes the whole table.
"""

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import fbgemm_gpu  # noqa: F401  # registers the operators
import numpy as np
import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import CacheAlgorithm, EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    DenseTableBatchedEmbeddingBagsCodegen,
    PoolingMode,
    SplitTableBatchedEmbeddingBagsCodegen,
)

from neuroshard.layouts import LAYOUTS
from neuroshard.measure._arena import Arena, check_room
from neuroshard.measure._workers.runs import Outcome, Report, Run, Timed, run_batch
from neuroshard.measure.device import Device
from neuroshard.measure.kernels._inputs import (
    FUSED,
    LEARNING_RATE,
    PRECISIONS,
    Inputs,
    Prepared,
    common_precision,
    draw_inputs,
    host_run,
    table_of_feature,
)
from neuroshard.measure.specs import EmbeddingSettings, check_tiers
from neuroshard.measure.store.samples import BlockLookups, ComputeSample
from neuroshard.plumbing.timing import TimingProtocol
from neuroshard.words.placement import ON_DEVICE, Tier

_ON_CUDA = {
    Tier.DEVICE: EmbeddingLocation.DEVICE,
    Tier.UVM_CACHING: EmbeddingLocation.MANAGED_CACHING,
    Tier.UVM: EmbeddingLocation.MANAGED,
}
_EPSILON = 1e-8
_SPREAD = 0.1  # maximum absolute value of initial weights
_LIVE_BYTES = 2  # live bytes per byte of weights: gradients have the same size
DENSE_WARNING = "fbgemm::dense_embedding"  # the first words of torch's warning at every call of the CPU kernel
Update = Callable[[torch.Tensor], object]


def make_arenas() -> dict[int, Arena]:
    """Return a dict with an empty arena (a buffer in CPU memory that can grow) for each data type of weights.
    The keys are the bytes per element.
    """
    return {size: Arena(dtype) for size, (_, dtype) in PRECISIONS.items()}


def fused_run(
    sample: ComputeSample,
    settings: EmbeddingSettings,
    device: torch.device,
    arenas: dict[int, Arena],
    rng: np.random.Generator,
) -> Prepared:
    """Prepare a kernel call of FBGEMM's fused kernel on the sample's tables, and return the call ready to be timed.
    The call runs the forward pass, and the backward pass with the optimizer update. In a row-wise table, the call looks
    up and updates only the rows on the sample's device.

    Raises:
        RuntimeError, MemoryError: the device does not have enough memory.
        UserError: the tables have several precisions, which a fused call does not support; or the device lacks the tier
            of the tables.
    """
    operator = build_operator(sample, settings, device, arenas, rng)
    train = partial(_forward_backward, operator)
    if sample.tier_assignment != ON_DEVICE:
        return host_run(train, operator, sample, device, rng)
    inputs = draw_inputs(sample, device, rng)
    return Prepared(partial(train, inputs), inputs.seen)


def _forward_backward(operator: SplitTableBatchedEmbeddingBagsCodegen, inputs: Inputs) -> None:
    operator(inputs.indices, inputs.offsets).backward(inputs.gradient)


def build_operator(
    sample: ComputeSample,
    settings: EmbeddingSettings,
    device: torch.device,
    arenas: dict[int, Arena],
    rng: np.random.Generator,
) -> SplitTableBatchedEmbeddingBagsCodegen:
    """Return FBGEMM's fused operator for all tables of the sample.
    On CPUs, the operator's weights are in one of the buffers in `arenas`. The keys of `arenas` are the bytes per
    weight: 4 for fp32 and 2 for fp16.

    Rows are fetched into a cache during the call, not before, so the time of the call includes the fetches.
    """
    check_tiers(device.type, [sample.tier_assignment.tier])
    on_cpu = device.type == "cpu"
    bytes_per_element = common_precision(sample)
    place = (
        (EmbeddingLocation.HOST, ComputeDevice.CPU)
        if on_cpu
        else (_ON_CUDA[sample.tier_assignment.tier], ComputeDevice.CUDA)
    )
    elements = sample.size_bytes // bytes_per_element
    # FBGEMM before 1.8 lacks this argument; such releases are used only on CUDA, where there is no arena.
    weights = (
        {"preallocated_host_buffers": {"weights": arenas[bytes_per_element].view(elements, rng)}} if on_cpu else {}
    )
    cache: dict[str, Any] = {}
    if sample.tier_assignment.tier is Tier.UVM_CACHING:  # one cache for this share of all rows
        cache = {"cache_algorithm": CacheAlgorithm.LRU, "cache_load_factor": sample.tier_assignment.cached_share}
    operator = SplitTableBatchedEmbeddingBagsCodegen(
        embedding_specs=[(table.rows, table.dim, *place) for table in sample.held],
        feature_table_map=table_of_feature(sample),
        pooling_mode=PoolingMode.SUM if sample.call.pooled else PoolingMode.NONE,
        optimizer=FUSED[settings.optimizer],
        learning_rate=LEARNING_RATE,
        weights_precision=PRECISIONS[bytes_per_element][0],
        device=device,
        **weights,
        **cache,
    )
    if not on_cpu and sample.tier_assignment.tier is Tier.DEVICE:
        operator.init_embedding_weights_uniform(-_SPREAD, _SPREAD)
    return operator


def dense_run(
    sample: ComputeSample, settings: EmbeddingSettings, device: torch.device, rng: np.random.Generator
) -> Prepared:
    """Prepare a kernel call on data-parallel tables, and return the call ready to be timed.
    The call runs FBGEMM's dense kernel forward and backward, and then an optimizer update of all rows of the tables.

    Raises:
        RuntimeError, MemoryError: the device does not have enough memory.
        UserError: the tables have several precisions, which one call does not support.
    """
    precision, _ = PRECISIONS[common_precision(sample)]
    on_cpu = device.type == "cpu"
    if on_cpu:
        check_room(_LIVE_BYTES * sample.size_bytes)
    specs = [(table.rows, table.dim) for table in sample.held]
    operator = DenseTableBatchedEmbeddingBagsCodegen(
        specs, table_of_feature(sample), weights_precision=precision, use_cpu=on_cpu
    )
    update = _UPDATES[settings.optimizer](operator.weights, specs)
    inputs = draw_inputs(sample, device, rng)
    return Prepared(partial(_train, operator, update, inputs), inputs.seen)


def _train(operator: DenseTableBatchedEmbeddingBagsCodegen, update: Update, inputs: Inputs) -> None:
    operator(inputs.indices, inputs.offsets).backward(inputs.gradient)
    with torch.no_grad():
        update(operator.weights.grad)
    operator.weights.grad = None


def _sgd(weights: torch.Tensor, _specs: list[tuple[int, int]]) -> Update:
    """Return a function that updates all weights at once by plain gradient descent."""
    return lambda gradient: weights.add_(gradient, alpha=-LEARNING_RATE)


def _rowwise_adagrad(weights: torch.Tensor, specs: list[tuple[int, int]]) -> Update:
    """Return a function that updates the weights in place by row-wise Adagrad, from a gradient of all weights.
    `weights` is a flat tensor with all tables, one after another; `specs` has the shape (rows, dim) of each table.
    """
    # 1e-8 is 0 in fp16, and rows without lookups would become NaN.
    epsilon = max(_EPSILON, torch.finfo(weights.dtype).tiny)
    sizes = [rows * dim for rows, dim in specs]
    tables = [flat.view(shape) for flat, shape in zip(torch.split(weights.detach(), sizes), specs, strict=True)]
    sums = [torch.zeros_like(table[:, :1]) for table in tables]  # sums of squares, (rows, 1)

    def update(gradient: torch.Tensor) -> None:
        """Update all N weights in place; `gradient` (N,) has the gradients of all tables, one table after another."""
        for table, sums_of_table, flat in zip(tables, sums, torch.split(gradient, sizes), strict=True):
            own = flat.view_as(table)
            sums_of_table.add_(own.square().mean(1, keepdim=True))
            table.addcdiv_(own, sums_of_table.sqrt() + epsilon, value=-LEARNING_RATE)

    return update


_UPDATES = {"sgd": _sgd, "rowwise_adagrad": _rowwise_adagrad}


class ComputeBench:
    """Measures kernel calls in batches on a prepared device; the memory of the weights is kept between batches."""

    def __init__(self, device: Device, settings: EmbeddingSettings, protocol: TimingProtocol) -> None:
        self._device = device
        self._settings = settings
        self._protocol = protocol
        self._arenas = make_arenas()

    def measure(self, samples: Sequence[ComputeSample], seeds: Sequence[int], report: Report) -> list[Outcome]:
        """Measure the kernel calls in `samples`, and return an outcome for each call, with repeats (R,) in ms.
        A sample that runs out of memory in the batch is measured again alone.
        """
        outcomes = self._together(samples, seeds, report)
        for index, outcome in enumerate(outcomes):
            if len(samples) > 1 and (outcome.error or "").startswith(torch.OutOfMemoryError.__name__):
                gc.collect()  # operators contain reference cycles
                report(index)
                (outcomes[index],) = self._together([samples[index]], [seeds[index]], lambda _: None)
        return outcomes

    def _together(self, samples: Sequence[ComputeSample], seeds: Sequence[int], report: Report) -> list[Outcome]:
        """Measure all samples in one batch, with all samples in memory at once."""
        self._reserve(samples)
        seen: dict[int, tuple[BlockLookups, ...]] = {}

        def build(index: int) -> Run:
            """Prepare the sample with the number `index`, and return a function that times one run of the sample.
            Also store statistics of the sample's row blocks in `seen[index]`: the number of lookups and the reuse
            histogram of each block. After the runs, `_together` adds these statistics to the outcome of the sample.
            """
            prepared = self._prepare(samples[index], np.random.default_rng(seeds[index]))
            seen[index] = prepared.seen
            return partial(self._time, prepared)

        builds = [partial(build, index) for index in range(len(samples))]
        outcomes = run_batch(builds, self._protocol, np.random.default_rng(seeds), report)
        return [replace(outcome, seen=seen.get(index, ())) for index, outcome in enumerate(outcomes)]

    def _prepare(self, sample: ComputeSample, rng: np.random.Generator) -> Prepared:
        if LAYOUTS[sample.form].dense:
            return dense_run(sample, self._settings, self._device.torch_device, rng)
        return fused_run(sample, self._settings, self._device.torch_device, self._arenas, rng)

    def _time(self, prepared: Prepared) -> Timed:
        ms = self._device.time_ms(prepared.next_run())
        return Timed(np.array(ms), ms / 1e3)

    def _reserve(self, samples: Sequence[ComputeSample]) -> None:
        """Grow the buffers for weights in CPU memory, so that the largest sample of each data type fits.
        The buffers are filled with numbers, so all pages are in memory before any sample is timed. Data-parallel
        samples, and samples that are too large for the memory, are skipped. If the device is not a CPU, nothing is
        reserved.
        """
        if self._device.torch_device.type != "cpu":
            return
        fused = [sample for sample in samples if not LAYOUTS[sample.form].dense]
        for sample in sorted(fused, key=lambda sample: -sample.size_bytes):
            bytes_per_element = sample.tables[0].bytes_per_element
            try:
                self._arenas[bytes_per_element].reserve(sample.size_bytes // bytes_per_element)
            except MemoryError:
                continue  # building this sample raises the error again, and records it
