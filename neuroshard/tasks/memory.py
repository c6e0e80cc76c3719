"""Bytes that a table takes of device and host memory: weights and, where asked for, optimizer state and buffers."""

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

# Of a cache's own lists, by FBGEMM: of every row that there is room for, which row it is, and when it was used; of
# every row of the table, which table's it is.
_CACHED_ROW_BYTES, _KNOWN_ROW_BYTES = 16, 4

# Of tables in host memory by NVIDIA's SOK, which keeps them in hash tables (HKV): a slot has a key, a score and a
# digest on the device, and a vector there or on the host.
_SLOT_BYTES = 8 + 8 + 1
LEAST_SLOTS = 1024  # some of HKV's buckets of 128
HOST_TABLES = ("fbgemm", "hkv")

# Floats of optimizer state: for every element of the weights, and for every row of a shard.
# The least comes first.
STATE_FLOATS = {
    "sgd": (0, 0),
    "rowwise_adagrad": (0, 1),
    "adagrad": (1, 0),
    "partial_rowwise_adam": (1, 1),
    "adam": (2, 0),
}


class InFlight(NamedTuple):
    """How many batches' buffers are in device memory at once, by what they hold.

    Attributes:
        loaded: indices and offsets as they are loaded: a device's own samples.
        permuted: those that are sorted by shards, before the exchange and after it: all lookups of every shard.
        outputs: embeddings and their gradients.
        prefetched: lists as long as the indices, of tables behind caches, while their rows are fetched ahead.
    """

    loaded: int
    permuted: int
    outputs: int
    prefetched: int = 0


# By TorchRec's training pipelines. Of a batch whose exchange has begun there are two permuted lists, what is sent and
# what is received; semi-synchronous training has looked up the next batch before the last one's gradients are applied.
# What fetching ahead takes is TorchRec's own estimate.
PIPELINES = {
    "none": InFlight(1, 2, 1),
    "sparse_dist": InFlight(3, 4, 1),
    "prefetch": InFlight(3, 6, 1, 7),
    "semi_sync": InFlight(3, 6, 2),
}


@dataclass(frozen=True)
@checked
class MemoryUse:
    """What counts against a device's memory in addition to the weights. Bytes are exact, or refused beyond 2^60.

    Attributes:
        optimizer: sgd | rowwise_adagrad | adagrad | partial_rowwise_adam | adam: optimizer of the tables, whose state
            counts as memory: sgd has none, rowwise_adagrad 1 float per row, adagrad 1 per weight, partial_rowwise_adam
            1 per weight plus 1 per row, adam 2 per weight.
        batches_in_flight: number of batches whose inputs and outputs are in device memory at once, from 0 to 1000; 0
            counts no buffers, 1 is training without prefetching, and prefetching needs more. The papers count no
            buffers.
        pipeline: none | sparse_dist | prefetch | semi_sync: TorchRec's training pipeline, whose buffers count as memory
            in place of batches_in_flight: none (no overlap of batches), TrainPipelineSparseDist,
            PrefetchTrainPipelineSparseDist or TrainPipelineSemiSync; None counts batches_in_flight. With prefetch, each
            width of cached tables has a cache of its own, as in TorchRec.
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
        """Number of batches whose buffers count, by what these hold."""
        if self.pipeline is not None:
            return PIPELINES[self.pipeline]
        return InFlight(loaded=0, permuted=self.batches_in_flight, outputs=self.batches_in_flight)

    def state_bytes(self, loads: Loads) -> IntArray:
        """Compute (n,) bytes of the weights and optimizer state of n loads: what moves when a shard moves."""
        floats = np.array([STATE_FLOATS[name] for name in (self.optimizer, self.dense_optimizer or self.optimizer)])
        per_element, per_row = floats[are(loads, lambda layout: layout.dense).astype(np.int64)].T
        size: IntArray = _weights(loads, per_element) + per_row * _FLOAT_BYTES * _whole(loads.rows)
        return size

    def dense_bytes(self, rows: int, dim: int) -> int:
        """Return the bytes of the gradient and optimizer state of a data-parallel table in training.

        The gradient counts if buffers count.
        """
        per_element, per_row = STATE_FLOATS[self.dense_optimizer or self.optimizer]
        gradients = min(self.in_flight.outputs, 1)
        return _FLOAT_BYTES * rows * (dim * (gradients + per_element) + per_row)

    def host_bytes(self, loads: Loads) -> IntArray:
        """Compute (n,) bytes of host memory that n loads take: weights, and an optimizer's state of every element."""
        per_element, _ = STATE_FLOATS[self.optimizer]
        held = loads if self.host_tables == "fbgemm" else replace(loads, rows=hash_slots(loads.rows).astype(np.float64))
        return np.where(loads.tier == TIERS.index(Tier.DEVICE), 0, _weights(held, per_element))

    @property
    def shares_caches(self) -> bool:
        """Whether cached tables of unequal widths share one cache.

        TorchRec gives every width a cache of its own only if it prefetches, which the pipeline `prefetch` does. SOK
        gives every table one.
        """
        return self.pipeline != "prefetch" and self.host_tables == "fbgemm"

    def bytes_beside(self, sets: LoadSets) -> IntArray:
        """Compute (n,) bytes of device memory of each load, given the other loads of its set: all loads of a device.

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
        """Compute (n,) columns of the cache row of each load; the load's own columns if the load is not cached.

        FBGEMM has one cache for all cached tables of a kernel call, and every row of this cache is as wide as the
        widest of them (`max_D_cache`). A kernel call here has all tables of a sharding type, data type and pooling;
        sequence tables also have one width. TorchRec may make several calls of these, for several modules, or for
        whole tables and column shards. So the result is exact or too wide, and never too narrow.
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
        """Compute (n,) bytes of device memory that n loads take, with their share of the buffers.

        A table in host memory takes device memory for the optimizer state of every row, as in FBGEMM, and for its cache
        and the lists of the cache; in a hash table, for the keys and scores of all slots. The rows of a cache have
        `cache_widths` (n,) columns. None stands for the columns of the load, as if no wider cached table were on its
        device (`bytes_beside` counts wider tables, too).

        The buffers of a batch are in device memory: the indices and offsets of a load (every column shard has all
        indices of its table), its outputs and their gradients. Blocks of rows have pooled embeddings of all samples, as
        column shards have; a data-parallel table has the embeddings of the device's own samples (`received_bytes`). If
        buffers count, the gradient of a data-parallel table counts once: an fp32 number for each of its elements.

        Raises:
            UserError: a load takes more than 2^60 bytes.
        """
        own_samples = are(loads, lambda layout: layout.own_samples)
        outputs = np.where(own_samples, 0, _times(_whole(np.ceil(loads.outputs)), 2 * _FLOAT_BYTES * _whole(loads.dim)))
        # (n,) of a batch, with outputs below 2^61; multiplying by a power of two is exact.
        indices = _whole(np.ceil(_INDEX_BYTES * loads.lookups)) + _whole(np.ceil(_INDEX_BYTES * loads.bags))
        held = self.in_flight
        dense = are(loads, lambda layout: layout.dense)
        gradient = np.where(dense, _FLOAT_BYTES * _whole(loads.rows) * _whole(loads.dim), 0)
        on_device = loads.tier == TIERS.index(Tier.DEVICE)
        widths = loads.dim if cache_widths is None else cache_widths
        size: IntArray = np.where(on_device, self.state_bytes(loads), self._cache_bytes(loads, widths))
        cached = loads.tier == TIERS.index(Tier.UVM_CACHING)
        size = size + _times(indices, held.permuted + held.prefetched * cached) + _times(outputs, held.outputs)
        size = size + gradient * min(held.outputs, 1)
        if (size > MAX_BYTES).any():
            batches = (
                "lower memory.batches_in_flight"
                if self.pipeline is None
                else "set memory.pipeline to a pipeline with fewer batches in flight"
            )
            raise UserError(
                "memory-table-too-large",
                f"a table takes more than 2^60 bytes with optimizer state ({self.optimizer}) and the buffers of "
                f"{number_of(max(held), 'batch', 'batches')} of {number_of(int(loads.samples.max()), 'sample')}",
                where="memory",
                remedy=f"Do one of these: lower batch_size; {batches}; or set a memory.optimizer with less state",
            )
        return size

    def _cache_bytes(self, loads: Loads, widths: FloatArray) -> IntArray:
        """Compute (n,) bytes on the device of tables in host memory: the cache, its lists, and every row's state.

        The cache's rows have `widths` (n,) columns.
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
        """Compute the bytes on every device, whatever the plan, of its own samples: embeddings, gradients, and inputs.

        A sample gets `output_columns` of all tables together, and has so many `inputs`: indices and lengths.
        """
        own_samples, held = -(-batch_size // num_devices), self.in_flight
        outputs = held.outputs * 2 * _FLOAT_BYTES * ceil(own_samples * output_columns)
        return outputs + held.loaded * _INDEX_BYTES * ceil(own_samples * inputs)


def hash_slots(rows: FloatArray | IntArray) -> IntArray:
    """Compute the slots of SOK's hash tables with these rows (n,) on a device: a power of two, at least twice as many.

    That is the load of a half at which HKV drops no row.
    """
    slots: IntArray = 1 << np.ceil(np.log2(2.0 * np.maximum(rows, LEAST_SLOTS // 2))).astype(np.int64)
    return slots


def _weights(loads: Loads, state_floats: int | IntArray) -> IntArray:
    """Return (n,) bytes of all elements with their floats of state, for all or (n,); below 2^60 for every table."""
    element_bytes = _whole(loads.bytes_per_element) + state_floats * _FLOAT_BYTES
    return _whole(loads.rows) * _whole(loads.dim) * element_bytes


def _whole(values: FloatArray) -> IntArray:
    """Convert whole numbers from float64, as tables' rows and dims are, to int64: below 2^53 nothing is lost."""
    return values.astype(np.int64)


def _times(size: IntArray, count: int | IntArray) -> IntArray:
    """Multiply sizes (n,) by a count, for all or (n,); 2^60 + 1 where it is more than 2^60: it must not wrap around."""
    most = np.where(np.equal(count, 0), np.iinfo(np.int64).max, MAX_BYTES // np.maximum(count, 1))
    return np.where(size > most, MAX_BYTES + 1, np.minimum(size, most) * count)
