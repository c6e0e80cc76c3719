"""Cost models that are arithmetic on published bandwidths, not measurements: for scales that nobody here can measure.

A kernel takes as long as its bytes take at the memory's full bandwidth; an exchange as long as its bytes take at the
links' full bandwidth. Real ones take longer.
"""

from dataclasses import dataclass

import numpy as np

from neuroshard.arrays import Float32Array, FloatArray
from neuroshard.models.cost_models import CostModels
from neuroshard.models.interface import CommModel, ReluHead, SumModel
from neuroshard.tables.columns import TableColumns
from neuroshard.tables.reuse import MEAN_COUNTS

_INDEX_BYTES = 8
_OUTPUT_BYTES = 4  # pooled embeddings and their gradients are fp32
_BYTES_PER_MS = 1e6  # of 1 GB/s


@dataclass(frozen=True)
class RooflineCompute(SumModel):
    """Bytes moved over memory bandwidth, plus a fixed time for the fused call.

    Bytes of a table in a batch: every lookup's index and row are read going forward, its index and its sample's
    gradient going backward; every unique row is read and written by the update; outputs are written once.
    """

    memory_gb_per_s: float
    launch_ms: float

    @property
    def head(self) -> ReluHead:
        """The sum of the times, plus the launch."""
        return ReluHead.of_cost(self.launch_ms)

    def embed(self, tables: TableColumns, batch_size: int) -> Float32Array:
        """(n, 1) ms of each table's bytes."""
        lookups = batch_size * tables.pooling_factor
        unique = np.minimum(lookups / (tables.reuse @ MEAN_COUNTS), tables.rows)
        row_bytes = tables.dim * tables.bytes_per_element
        gradient_bytes = tables.dim * _OUTPUT_BYTES
        moved = lookups * (2 * _INDEX_BYTES + row_bytes + gradient_bytes)
        moved = moved + 2 * unique * row_bytes + batch_size * gradient_bytes
        cost_ms: Float32Array = (moved / (self.memory_gb_per_s * _BYTES_PER_MS))[:, None].astype(np.float32)
        return cost_ms


@dataclass(frozen=True)
class RooflineComm(CommModel):
    """Bytes over link bandwidth, after the last device has started; the busiest device holds all others up.

    Up to `devices_per_host` devices talk over the fast links. With more hosts, the share of the bytes that leaves a
    host goes over the network. Bandwidths are of one device, in one direction.
    """

    link_gb_per_s: float
    network_gb_per_s: float
    devices_per_host: int
    latency_ms: float

    @property
    def num_devices(self) -> None:
        """Any number."""
        return

    def predict(self, dims: FloatArray, start_ms: FloatArray, batch_size: int) -> FloatArray:
        """(B, D) ms."""
        devices = dims.shape[1]
        busiest = np.maximum(dims, dims.mean(axis=1, keepdims=True)).max(axis=1, keepdims=True)
        sent = busiest * batch_size * _OUTPUT_BYTES / devices  # to each device
        local = min(devices, self.devices_per_host)
        inside = sent * (local - 1) / (self.link_gb_per_s * _BYTES_PER_MS)
        outside = sent * (devices - local) / (self.network_gb_per_s * _BYTES_PER_MS)
        wait = start_ms.max(axis=1, keepdims=True) - start_ms
        cost: FloatArray = wait + np.maximum(inside, outside) + self.latency_ms
        return cost


def roofline(
    memory_gb_per_s: float,
    link_gb_per_s: float,
    network_gb_per_s: float,
    devices_per_host: int,
    launch_ms: float,
    latency_ms: float,
    source: str,  # noqa: ARG001  # where the figures stand; for readers of the config
) -> CostModels:
    """The three models of one kind of device; bandwidths in GB/s (10^9 bytes), links and network in one direction."""
    comm = RooflineComm(link_gb_per_s, network_gb_per_s, devices_per_host, latency_ms)
    return CostModels(RooflineCompute(memory_gb_per_s, launch_ms), comm, comm, None)
