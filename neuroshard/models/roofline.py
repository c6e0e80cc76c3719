"""Cost models that are arithmetic on published bandwidths, not measurements: for scales that nobody here can measure.

A kernel takes as long as its bytes take at the memory's full bandwidth; an exchange as long as its bytes take at the
links' full bandwidth. Real ones take longer.
"""

from dataclasses import dataclass

import numpy as np

from neuroshard.arrays import Float32Array, FloatArray
from neuroshard.loads import Loads
from neuroshard.models.cost_models import CostModels
from neuroshard.models.interface import NUM_WAITS, CommModel, OneDevice, Outline, ReluHead, SumModel
from neuroshard.tables.reuse import MEAN_COUNTS
from neuroshard.traffic import Traffic

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

    def embed(self, loads: Loads) -> Float32Array:
        """(n, 1) ms of each load's bytes."""
        unique = np.minimum(loads.lookups / (loads.reuse @ MEAN_COUNTS), loads.rows)
        row_bytes = loads.dim * loads.bytes_per_element
        gradient_bytes = loads.dim * _OUTPUT_BYTES
        moved = loads.lookups * (2 * _INDEX_BYTES + row_bytes + gradient_bytes)
        moved = moved + 2 * unique * row_bytes + loads.outputs * gradient_bytes
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

    def transfer_ms(self, traffic: Traffic, wait_ms: FloatArray) -> FloatArray:
        """(B, D) ms, the same for all devices."""
        devices, given = traffic.num_devices, traffic.size_bytes.sum(axis=-1)
        busiest = np.maximum(given, given.mean(axis=1, keepdims=True)).max(axis=1, keepdims=True)
        return np.broadcast_to(self._busiest_ms(busiest, devices), wait_ms.shape)

    def least_outline(self, known: OneDevice) -> Outline:
        """As the widest device's, the same for all."""
        parts = self._busiest_ms(known.widest_least_bytes, known.num_devices)[:, None, None]
        return Outline(parts, np.ones(1), np.zeros((1, NUM_WAITS)))

    def _busiest_ms(self, busiest: FloatArray, devices: int) -> FloatArray:
        """(...,) ms, from the bytes of the busiest device (...,)."""
        sent = busiest / devices  # to each device
        local = min(devices, self.devices_per_host)
        inside = sent * (local - 1) / (self.link_gb_per_s * _BYTES_PER_MS)
        outside = sent * (devices - local) / (self.network_gb_per_s * _BYTES_PER_MS)
        cost: FloatArray = np.maximum(inside, outside) + self.latency_ms
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
