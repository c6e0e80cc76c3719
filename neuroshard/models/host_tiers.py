"""Kernel times of tables in host memory, with or without a cache on the device, and the bytes that kernels move."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from msgspec import Meta

from neuroshard.cost.loads import Loads, LoadSets
from neuroshard.layouts import are
from neuroshard.models.interface import ReluHead, SumModel
from neuroshard.models.stored import Stored
from neuroshard.plumbing.arrays import Float32Array, FloatArray
from neuroshard.tables.misses import cache_misses, touched_rows
from neuroshard.words.collective import ELEMENT_BYTES, INDEX_BYTES
from neuroshard.words.placement import TIERS, Tier

SECTOR_BYTES = 32  # memory moves whole sectors, so a narrower row takes as long
_GB = 1e9  # bytes
_MS_OF_GB_PER_S = 1e3  # ms for 10^9 bytes at 1 GB/s
_MILLION = 1e6  # 10^6 lookups of 1 ns take 1 ms
_Figure = Annotated[float, Meta(ge=0, le=1e9)]


def memory_bytes(loads: Loads) -> FloatArray:
    """Return the bytes that kernels move in device memory for each of n shards (`loads`), (n,).
    Rows are rounded up to sectors of 32 bytes.

    The forward pass reads the index and the row of every lookup; the backward pass reads the index and the gradient of
    its sample; outputs are written once. The fused update reads and writes every unique row. The dense update writes
    the gradient of every unique row, clears and reads the gradient of the whole table, and reads and writes all
    weights. Rows in tier uvm do not pass through device memory; rows in tier uvm_caching are in the cache when they are
    read.
    """
    total: FloatArray = np.sum(passes(loads), axis=0)
    return total


def passes(loads: Loads) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return the bytes that kernels move in device memory for n shards (`loads`), as five arrays (n,). In order, the
    arrays have the bytes of lookups, of outputs, of reading gradients, of updating rows one by one, and of dense
    updates.

    `memory_bytes` adds up the five arrays.
    """
    unique = touched_rows(loads.rows, loads.lookups, loads.reuse)
    row_bytes = np.where(loads.tier == TIERS.index(Tier.UVM), 0, moved_row_bytes(loads))
    gradient_bytes = in_sectors(loads.dim * ELEMENT_BYTES)
    copied = are(loads, lambda layout: layout.dense)
    dense = unique * gradient_bytes + 2 * loads.rows * loads.dim * (loads.bytes_per_element + ELEMENT_BYTES)
    return (
        loads.lookups * (INDEX_BYTES + row_bytes),
        loads.outputs * gradient_bytes,
        loads.lookups * (INDEX_BYTES + gradient_bytes),
        np.where(copied, 0, 2 * unique * row_bytes),
        np.where(copied, dense, 0),
    )


def link_bytes(loads: Loads) -> FloatArray:
    """Return the bytes that kernels read over the link from host to device for each of n shards (`loads`), (n,).

    Kernels write rows of at most the same number of bytes back to the host at the same time. A cache fetches every row
    that it misses, and writes another row back, which training has changed. Without a cache, the forward pass reads the
    row of every lookup, and the backward pass reads every unique row again and writes the updated rows.
    """
    unique = touched_rows(loads.rows, loads.lookups, loads.reuse)
    rows = np.where(loads.tier == TIERS.index(Tier.UVM), loads.lookups + unique, 0.0)
    return rows * moved_row_bytes(loads) + cached_miss_bytes(loads)


def cached_miss_bytes(loads: Loads) -> FloatArray:
    """Return the bytes of the rows that lookups need and that are missing from the cache, for each of n shards
    (`loads`), (n,).
    """
    missed, behind_cache = np.zeros(len(loads)), np.flatnonzero(loads.tier == TIERS.index(Tier.UVM_CACHING))
    if len(behind_cache):
        cached = loads.take(behind_cache)
        missed[behind_cache] = cache_misses(cached.rows, cached.lookups, cached.reuse, cached.cached)
    return missed * moved_row_bytes(loads)


def managed_lookups(loads: Loads) -> FloatArray:
    """Return the number of lookups that go through a cache in each of n shards (`loads`), (n,). In a shard in tier
    uvm_caching, all lookups go through a cache. For a shard in any other tier, the number is 0.
    """
    return np.where(loads.tier == TIERS.index(Tier.UVM_CACHING), loads.lookups, 0.0)


def moved_row_bytes(loads: Loads) -> FloatArray:
    """Return the bytes that memory moves if a kernel reads one row, for each of n shards (`loads`), (n,). This is the
    size of a row of the shard, rounded up to whole sectors of 32 bytes.
    """
    return in_sectors(loads.dim * loads.bytes_per_element)


def in_sectors(row_bytes: FloatArray) -> FloatArray:
    """Round the bytes of table rows, (n,), up to whole memory sectors of 32 bytes, and return the
    rounded bytes, (n,).
    """
    return np.ceil(row_bytes / SECTOR_BYTES) * SECTOR_BYTES


@dataclass(frozen=True)
class HostLink:
    """Additional costs of kernel calls if the tables are in host memory: the time of the link between device and host,
    and the work of the cache.

    Attributes:
        link_gb_per_s: bandwidth for rows that are fetched, one way; other rows are written back at the same time.
        cache_lookup_ns: time of every lookup in a cache: to find out if the cache has the row, and to keep order.
        cache_call_ms: time of the cache's own kernels per call, in addition to the launch of the call.
    """

    link_gb_per_s: Annotated[float, Meta(gt=0, le=1e9)]
    cache_lookup_ns: _Figure
    cache_call_ms: _Figure

    def call_ms(self, tier: Tier) -> float:
        """Return the additional fixed time, in ms, of a kernel call of tables in the memory tier `tier`. With a cache
        (tier uvm_caching), this is the time of the cache's own kernels. In other tiers it is 0.
        """
        return self.cache_call_ms if tier is Tier.UVM_CACHING else 0.0


@dataclass(frozen=True)
class HostTiers(Stored, SumModel):
    """Model of kernel calls of tables in host memory: a fixed time per call, plus the time of moved bytes and cache
    lookups, summed over the tables.

    A larger cache load factor therefore never costs more.

    Attributes:
        memory_ms_per_gb: ms for 10^9 bytes through the device's memory.
        link_ms_per_gb: ms for 10^9 bytes over the link to the host, one way.
        cache_lookup_ns: ns of a lookup in a cache.
        call_ms: fixed ms of a call.
    """

    kind: ClassVar[str] = "host_tiers"

    memory_ms_per_gb: _Figure
    link_ms_per_gb: _Figure
    cache_lookup_ns: _Figure
    call_ms: _Figure

    @property
    def head(self) -> ReluHead:
        """The head that adds the fixed time of a kernel call to the sum of the times of its shards."""
        return ReluHead.of_cost(self.call_ms)

    def embed(self, loads: Loads) -> Float32Array:
        """Return the kernel time of each of n shards (`loads`) in ms, as vectors with one element, (n, 1)."""
        each = np.array([self.memory_ms_per_gb, self.link_ms_per_gb, self.cache_lookup_ns])
        cost_ms: Float32Array = (host_amounts(loads) @ each)[:, None].astype(np.float32)
        return cost_ms

    def scaled(self, factor: float) -> "HostTiers":
        """Return the model with all predicted costs multiplied by `factor`."""
        return HostTiers(**{name: figure * factor for name, figure in self.settings().items()})


@dataclass(frozen=True)
class BehindLink(SumModel):
    """Model of kernel calls of tables in host memory: the time of the same call in device memory, plus the time of the
    link to the host and of the cache.

    Attributes:
        base: model of the same call in device memory.
        host: additional times of the link and of the cache.
        tier: tier of all tables.
    """

    base: SumModel
    host: HostLink
    tier: Tier

    @property
    def head(self) -> ReluHead:
        """The last layer of this model, which returns the time of a kernel call in ms. The input is the sum of the
        vectors that `embed` returns for the shards in the call. The layer adds up three times. The first is the time of
        the same call in device memory, which the head of `base` computes. The second is the fixed time of the cache.
        The third is the last element of the input: the time of the link to the host and of the lookups in the cache.
        """
        return self.base.head.with_added_ms(self.host.call_ms(self.tier))

    def embed(self, loads: Loads) -> Float32Array:
        """Return a vector of H + 1 numbers for each of n shards (`loads`) in host memory, (n, H + 1). The first H
        numbers are the vector that `base.embed` returns for the same shard in device memory. The last number is the
        additional time in ms: the time of the link to the host, plus the time of the lookups in the cache.
        """
        each = np.array([_MS_OF_GB_PER_S / self.host.link_gb_per_s, self.host.cache_lookup_ns])
        more_ms = host_amounts(loads)[:, 1:] @ each
        return np.column_stack([self.base.embed(loads.on_device()), more_ms]).astype(np.float32)

    def spread_ms(self, sets: LoadSets) -> FloatArray:
        """Return the standard deviation of an ensemble's predictions for each of B kernel calls, (B,) ms. The result is
        the standard deviation that `base` has for the same calls in device memory. The additional time for the link to
        the host and the cache does not change the result, because this time is the same in all models of the ensemble.
        """
        return self.base.spread_ms(LoadSets(sets.loads.on_device(), sets.counts))


def host_amounts(loads: Loads) -> FloatArray:
    """Return three amounts for each of n shards (`loads`), (n, 3): the GB that kernels move in device memory, the GB
    over the link to the host, and the millions of lookups through a cache. The kernel time of tables in host memory is
    computed from these amounts.
    """
    return np.stack([memory_bytes(loads) / _GB, link_bytes(loads) / _GB, managed_lookups(loads) / _MILLION], axis=1)
