"""Bytes of device and host memory that tables need: weights and, depending on settings, optimizer state and buffers."""

from dataclasses import dataclass, replace
from math import ceil
from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta

from neuroshard.cost.loads import Loads, LoadSets
from neuroshard.layouts import are
from neuroshard.plumbing.arrays import FloatArray, IntArray
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError, check_name, unknown_name
from neuroshard.plumbing.messages import number_of
from neuroshard.plumbing.schema import MAX_BYTES
from neuroshard.words.placement import TIERS, Tier

_FLOAT_BYTES = 4  # optimizer state, pooled embeddings and gradients are fp32
_INDEX_BYTES = 8

# FBGEMM's caches have lists in device memory. Every row of the cache has the index of the cached row and the time of
# its last use; every row of the table has the number of the table.
_CACHED_ROW_BYTES, _KNOWN_ROW_BYTES = 16, 4

# NVIDIA's SOK keeps tables in host memory in hash tables (HKV). A slot has a key, a score and a digest on the device,
# and a vector on the device or on the host.
_SLOT_BYTES = 8 + 8 + 1
LEAST_SLOTS = 1024  # minimum number of slots: eight of HKV's buckets of 128 slots
HOST_TABLES = ("fbgemm", "hkv")

# Floats of optimizer state: (per element of the weights, per row of a shard). The optimizer with the least state is
# first.
STATE_FLOATS = {
    "sgd": (0, 0),
    "rowwise_adagrad": (0, 1),
    "adagrad": (1, 0),
    "partial_rowwise_adam": (1, 1),
    "adam": (2, 0),
}


class InFlight(NamedTuple):
    """The numbers of batches whose buffers are in device memory at the same time, one number for each kind of buffer.

    Attributes:
        loaded: indices and offsets as the data loader gives them, of a device's own samples.
        permuted: indices and offsets sorted by shard, before and after the input dist, of all lookups of every shard.
        outputs: embeddings and their gradients.
        prefetched: lists with one entry per index of cached tables, needed while the rows are prefetched.
    """

    loaded: int
    permuted: int
    outputs: int
    prefetched: int = 0


# Buffers by TorchRec's training pipeline. A batch in the input dist has two permuted lists: the sent and the received
# indices. Semi-synchronous training looks up the next batch before the gradients of the last batch are applied, so it
# has two outputs. The numbers for prefetching are TorchRec's own estimate.
PIPELINES = {
    "none": InFlight(1, 2, 1),
    "sparse_dist": InFlight(3, 4, 1),
    "prefetch": InFlight(3, 6, 1, 7),
    "semi_sync": InFlight(3, 6, 2),
}


@dataclass(frozen=True)
@checked
class MemoryUse:
    """Settings for memory use: the optimizer states and buffers that count in addition to the weights of tables.

    Bytes are exact; sizes above 2^60 are refused.

    Attributes:
        optimizer: sgd | rowwise_adagrad | adagrad | partial_rowwise_adam | adam: optimizer of the tables, whose state
            counts as memory: sgd has none, rowwise_adagrad 1 float per row, adagrad 1 per weight, partial_rowwise_adam
            1 per weight plus 1 per row, adam 2 per weight.
        batches_in_flight: number of batches whose inputs and outputs are in device memory at once, from 0 to 1000; 0
            counts no buffers, 1 is training without prefetching, and prefetching needs more. The papers count no
            buffers.
        pipeline: none | sparse_dist | prefetch | semi_sync: TorchRec's training pipeline, whose buffers count as memory
            in place of batches_in_flight: none (no overlap of batches), TrainPipelineSparseDist,
            PrefetchTrainPipelineSparseDist or TrainPipelineSemiSync; None counts batches_in_flight. With prefetch,
            cached tables of different widths have separate caches, as in TorchRec.
        dense_optimizer: sgd | rowwise_adagrad | adagrad | partial_rowwise_adam | adam: optimizer of data-parallel
            tables, whose state counts as memory; None means the same optimizer as for other tables.
        host_tables: fbgemm | hkv: system that keeps tables in host memory: FBGEMM with its caches, or the hash tables
            (HKV) of NVIDIA's SOK, which keep keys and scores in device memory; `search target=sok` sets hkv.
    """

    optimizer: str = "sgd"
    batches_in_flight: Annotated[int, Meta(ge=0, le=1000)] = 0
    pipeline: str | None = None
    dense_optimizer: str | None = None
    host_tables: str = "fbgemm"

    def __post_init__(self) -> None:
        check_name("host_tables", self.host_tables, HOST_TABLES)
        check_name("optimizer", self.optimizer, STATE_FLOATS)
        check_name("dense_optimizer", self.dense_optimizer or self.optimizer, STATE_FLOATS)
        if self.pipeline is not None and self.pipeline not in PIPELINES:
            raise unknown_name("pipeline", self.pipeline, PIPELINES)

    def __str__(self) -> str:
        state = f"optimizer state ({self.optimizer})" if STATE_FLOATS[self.optimizer] != (0, 0) else ""
        buffers = "buffers" if any(self.in_flight) else ""
        *first, last = filter(None, ("weights", state, buffers))
        return f"{', '.join(first)} and {last}" if first else last

    @property
    def in_flight(self) -> InFlight:
        """The number of batches that have buffers in device memory at the same time, one number for each kind of buffer
        (such as the outputs). If `pipeline` is set, the numbers come from the entry of this training pipeline in
        `PIPELINES`. If `pipeline` is None, the numbers are computed from `batches_in_flight`.
        """
        if self.pipeline is not None:
            return PIPELINES[self.pipeline]
        return InFlight(loaded=0, permuted=self.batches_in_flight, outputs=self.batches_in_flight)

    def state_bytes(self, loads: Loads) -> IntArray:
        """Return the bytes of the weights and the optimizer state of each of n shards (`loads`), (n,).
        These are the bytes that must be copied when a shard moves to another device.
        """
        floats = np.array([STATE_FLOATS[name] for name in (self.optimizer, self.dense_optimizer or self.optimizer)])
        per_element, per_row = floats[are(loads, lambda layout: layout.dense).astype(np.int64)].T
        size: IntArray = _weights(loads, per_element) + per_row * _FLOAT_BYTES * _whole(loads.rows)
        return size

    def dense_bytes(self, rows: int, dim: int) -> int:
        """Return the bytes that the training of one data-parallel table needs in addition to the weights.
        These are the bytes of the gradient and of the optimizer state. The table has `rows` rows and `dim` columns.

        The gradient counts if buffers count.
        """
        per_element, per_row = STATE_FLOATS[self.dense_optimizer or self.optimizer]
        gradients = min(self.in_flight.outputs, 1)
        return _FLOAT_BYTES * rows * (dim * (gradients + per_element) + per_row)

    def host_bytes(self, loads: Loads) -> IntArray:
        """Return the bytes of host memory that each of n shards (`loads`) needs, (n,). The bytes are for the weights,
        and for optimizer state with a value for each weight, as in Adam. Optimizer state with one value for each row,
        as in row-wise Adagrad, is in device memory.

        Loads in device memory need no host memory.
        """
        per_element, _ = STATE_FLOATS[self.optimizer]
        in_fbgemm = self.host_tables == "fbgemm"
        stored = loads if in_fbgemm else replace(loads, rows=hash_slots(loads.rows).astype(np.float64))
        return np.where(loads.tier == TIERS.index(Tier.DEVICE), 0, _weights(stored, per_element))

    @property
    def shares_caches(self) -> bool:
        """True if cached tables of different widths share one cache.

        TorchRec has separate caches for different widths only if it prefetches, as the pipeline `prefetch` does. SOK
        has a separate cache for every table.
        """
        return self.pipeline != "prefetch" and self.host_tables == "fbgemm"

    def bytes_with_caches(self, sets: LoadSets) -> IntArray:
        """Return the bytes of device memory that each of n shards needs, including the rows in the shard's cache, (n,).
        `sets` has the shards of each device.

        Cached tables on a device can share one cache. Every row of a shared cache is as wide as the widest of these
        tables, and the bytes of each cached shard are computed with the width of the shared cache's rows.

        Raises:
            UserError: a set takes more than 2^60 bytes.
        """
        if not (sets.loads.tier == TIERS.index(Tier.UVM_CACHING)).any():
            return self.device_bytes(sets.loads)
        size = self.device_bytes(sets.loads, self.cache_widths(sets))
        if (sets.totals(size.astype(np.float64)) > MAX_BYTES).any():
            raise UserError(
                "memory-caches-too-large",
                "the tables on one device, with the caches of tables in host memory, take more than 2^60 bytes",
                where="memory",
                remedy="Cache fewer tables, or set a smaller cache_load_factor",
            )
        return size

    def cache_widths(self, sets: LoadSets) -> FloatArray:
        """Return the width of the cache rows of each of n shards, in columns, (n,).
        For a shard without a cache, the result is the width of the shard. `sets` has the shards of each device.

        FBGEMM has one cache for all cached tables of a kernel call, and every row of this cache is as wide as the
        widest of these tables (`max_D_cache`). Here, the cached tables of a device with the same sharding type, data
        type and pooling (and, if they are sequence tables, the same width) count as one kernel call. TorchRec may make
        several calls for them, for several modules, or for whole tables and column shards. So the result is exact or
        too wide, and never too narrow.
        """
        loads = sets.loads
        cached = loads.tier == TIERS.index(Tier.UVM_CACHING)
        if not self.shares_caches:
            return loads.dim
        kernels, kernel = np.unique(loads.kernel, return_inverse=True)
        call = sets.owners * len(kernels) + kernel.reshape(-1)
        widest = np.zeros(len(sets) * len(kernels))
        np.maximum.at(widest, call[cached], loads.dim[cached])
        return np.where(cached, widest[call], loads.dim)

    def device_bytes(self, loads: Loads, cache_widths: FloatArray | None = None) -> IntArray:
        """Return the bytes of device memory that each of n shards (`loads`) needs, (n,), including the buffers for the
        shard.

        A table in host memory needs device memory for the optimizer state of every row, as in FBGEMM, and for its cache
        and the lists of the cache; in a hash table, it needs memory for the keys and scores of all slots. The rows of a
        cache have `cache_widths` (n,) columns. With None they have the columns of the load, as if no wider cached table
        were on the device (`bytes_with_caches` includes wider tables).

        The buffers of a batch are the indices and offsets of a load (every column shard has all indices of its table),
        the outputs, and the gradients of the outputs. Blocks of rows have pooled embeddings of all samples, as column
        shards have. The outputs of a data-parallel table are outputs of the device's own samples, which
        `received_bytes` counts. If buffers count, the gradient of a data-parallel table counts once, as an fp32 number
        for each element of the table.

        Raises:
            UserError: a load takes more than 2^60 bytes.
        """
        own_samples = are(loads, lambda layout: layout.own_samples)
        outputs = np.where(own_samples, 0, _times(_whole(np.ceil(loads.outputs)), 2 * _FLOAT_BYTES * _whole(loads.dim)))
        # (n,) bytes for one batch. Outputs are below 2^61 bytes, and a multiplication by a power of two is exact.
        indices = _whole(np.ceil(_INDEX_BYTES * loads.lookups)) + _whole(np.ceil(_INDEX_BYTES * loads.bags))
        in_flight = self.in_flight
        dense = are(loads, lambda layout: layout.dense)
        gradient = np.where(dense, _FLOAT_BYTES * _whole(loads.rows) * _whole(loads.dim), 0)
        on_device = loads.tier == TIERS.index(Tier.DEVICE)
        widths = loads.dim if cache_widths is None else cache_widths
        size: IntArray = np.where(on_device, self.state_bytes(loads), self._cache_bytes(loads, widths))
        cached = loads.tier == TIERS.index(Tier.UVM_CACHING)
        size = size + _times(indices, in_flight.permuted + in_flight.prefetched * cached)
        size = size + _times(outputs, in_flight.outputs)
        size = size + gradient * min(in_flight.outputs, 1)
        if (size > MAX_BYTES).any():
            batches = (
                "lower memory.batches_in_flight"
                if self.pipeline is None
                else "set memory.pipeline to a pipeline with fewer batches in flight"
            )
            raise UserError(
                "memory-table-too-large",
                f"a table takes more than 2^60 bytes with optimizer state ({self.optimizer}) and the buffers of "
                f"{number_of(max(in_flight), 'batch', 'batches')} of {number_of(int(loads.samples.max()), 'sample')}",
                where="memory",
                remedy=f"Do one of these: lower batch_size; {batches}; or set a memory.optimizer with less state",
            )
        return size

    def _cache_bytes(self, loads: Loads, widths: FloatArray) -> IntArray:
        """Return the bytes of device memory that each of n shards (`loads`) needs, (n,), computed as if the weights of
        every shard were in host memory. The caller uses the result only for shards whose weights are in host memory.

        The bytes are the sum of three parts: rows in a cache, the bookkeeping for the rows (lists of FBGEMM's cache, or
        the slots of a hash table), and optimizer state with one value for each row.

        The rows of the caches have `widths` (n,) columns.
        """
        _, per_row = STATE_FLOATS[self.optimizer]
        rows = _whole(loads.rows)
        room = np.minimum(_whole(np.ceil(loads.rows * loads.cached)), rows)
        listed = room * _CACHED_ROW_BYTES + np.where(
            loads.tier == TIERS.index(Tier.UVM_CACHING), _KNOWN_ROW_BYTES * rows, 0
        )
        if self.host_tables == "hkv":
            listed = _SLOT_BYTES * hash_slots(loads.rows)
        cache = room * _whole(widths) * _whole(loads.bytes_per_element)
        size: IntArray = cache + listed + per_row * _FLOAT_BYTES * rows
        return size

    def received_bytes(self, output_columns: float, batch_size: int, num_devices: int, inputs: float = 0) -> int:
        """Return the bytes of the buffers that each device needs for its own samples: batch_size / num_devices samples,
        rounded up. The buffers have the inputs, the embeddings and the gradients of these samples. The bytes are the
        same for every plan.

        Args:
            output_columns: mean number of output columns per sample, of all tables together.
            batch_size: global batch size.
            num_devices: number of devices that share the samples.
            inputs: mean number of indices and lengths per sample.
        """
        own_samples, in_flight = -(-batch_size // num_devices), self.in_flight
        outputs = in_flight.outputs * 2 * _FLOAT_BYTES * ceil(own_samples * output_columns)
        return outputs + in_flight.loaded * _INDEX_BYTES * ceil(own_samples * inputs)


def hash_slots(rows: FloatArray | IntArray) -> IntArray:
    """Return the number of slots of each of n hash tables, (n,), which store `rows` (n,) rows.
    NVIDIA's SOK, a library that trains embedding tables, stores each embedding table in a hash table (HKV).

    The number is a power of two, at least twice the rows and at least 1,024: half full, HKV drops no row.
    """
    slots: IntArray = 1 << np.ceil(np.log2(2.0 * np.maximum(rows, LEAST_SLOTS // 2))).astype(np.int64)
    return slots


def _weights(loads: Loads, state_floats: int | IntArray) -> IntArray:
    """Return the bytes of the weights of n shards (`loads`), (n,), with the optimizer state that is stored per weight.
    `state_floats` is the number of fp32 values that the optimizer stores per weight, such as 2 for Adam. It is one
    number for all shards, or an array (n,).
    """
    element_bytes = _whole(loads.bytes_per_element) + state_floats * _FLOAT_BYTES
    return _whole(loads.rows) * _whole(loads.dim) * element_bytes


def _whole(values: FloatArray) -> IntArray:
    """Convert whole numbers in float64, such as rows and columns of shards, to int64; numbers below 2^53 are exact."""
    return values.astype(np.int64)


def _times(size: IntArray, count: int | IntArray) -> IntArray:
    """Multiply n sizes in bytes by `count` without overflow: return size * count, (n,).
    `count` is one number or an array (n,). Products above 2^60 are replaced by 2^60 + 1.

    This limit keeps products from wrapping around in 64 bits, and the caller refuses sizes above 2^60.
    """
    most = np.where(np.equal(count, 0), np.iinfo(np.int64).max, MAX_BYTES // np.maximum(count, 1))
    return np.where(size > most, MAX_BYTES + 1, np.minimum(size, most) * count)
