"""Cost models that are arithmetic on published bandwidths, not measurements: for scales that nobody here can measure.

A kernel takes as long as its bytes take at the memory's full bandwidth; an exchange as long as its bytes take at the
links' full bandwidth. Real ones take longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from neuroshard.cost.loads import Loads, LoadSets
from neuroshard.cost.traffic import Traffic
from neuroshard.models.by_form import ComputeByForm
from neuroshard.models.cost_models import CostModels
from neuroshard.models.host_tiers import HostLink, HostTiers
from neuroshard.models.interface import NUM_WAITS, CommModel, OneDevice, Outline, PartModel, ReluHead, SumModel
from neuroshard.models.kernel_bytes import memory_bytes
from neuroshard.plumbing.arrays import Float32Array, FloatArray
from neuroshard.plumbing.errors import UserError
from neuroshard.words.collective import IN_STEP, Collective
from neuroshard.words.form import CALLS, ON_DEVICE_CALLS, Call
from neuroshard.words.home import Tier

_BYTES_PER_MS = 1e6  # of 1 GB/s
_MS_OF_GB_PER_S = 1e3  # that 10^9 bytes take


@dataclass(frozen=True)
class RooflineCompute(SumModel):
    """Bytes moved over memory bandwidth (`memory_bytes`), plus a fixed time for every call: the fused one of column
    shards, the fused one of row blocks, and the dense one of copies.

    With a link to the host it knows calls of tables in host memory too (`HostTiers`), each one's rows over the link.
    """

    memory_gb_per_s: float
    launch_ms: float
    host: HostLink | None = None

    @property
    def head(self) -> ReluHead:
        """Of tables in device memory: the sum of the times, plus the launch."""
        return ReluHead.of_cost(self.launch_ms)

    @property
    def calls(self) -> frozenset[Call]:
        """All, or all of tables in device memory."""
        return frozenset(ON_DEVICE_CALLS if self.host is None else CALLS)

    @property
    def arithmetic(self) -> frozenset[Call]:
        """Return all kernel calls: each cost is arithmetic on a datasheet."""
        return self.calls

    def of_call(self, call: Call) -> SumModel:
        """The call's own: itself of tables in device memory."""
        if call.tier is Tier.DEVICE or self.host is None:
            return self
        return HostTiers(
            memory_ms_per_gb=_MS_OF_GB_PER_S / self.memory_gb_per_s,
            link_ms_per_gb=self.host.ms_per_gb,
            cache_lookup_ns=self.host.cache_lookup_ns,
            call_ms=self.launch_ms + self.host.call_ms(call.tier),
        )

    def embed(self, loads: Loads) -> Float32Array:
        """(n, 1) ms of each load's bytes, in device memory; those of other calls are those of `of_call`."""
        cost_ms: Float32Array = (memory_bytes(loads) / (self.memory_gb_per_s * _BYTES_PER_MS))[:, None].astype(
            np.float32
        )
        return cost_ms

    def predict(self, sets: LoadSets) -> FloatArray:
        """(B,) ms of each of the B sets of loads; those of a set are of one call."""
        if not sets.loads.tier.any():
            return super().predict(sets)
        return ComputeByForm({call: self.of_call(call) for call in self.calls}).predict(sets)


@dataclass(frozen=True)
class RooflineComm(CommModel):
    """Bytes over link bandwidth, once the last device has started; all devices wait for the straggler, the busiest one.

    Up to `devices_per_host` devices talk over the fast links. With more hosts, the share of the bytes that leaves a
    host goes over the network, at the same time. Bandwidths are of one device, in one direction. Sums are made on each
    host first, so that a device sends over the network what it has summed up; an all-reduce is a reduce-scatter and an
    all-gather. One collective runs after the other; those of a task's hosts stay on them or go between them.
    """

    link_gb_per_s: float
    network_gb_per_s: float
    devices_per_host: int
    latency_ms: float

    @property
    def is_arithmetic(self) -> bool:
        """Return True: each cost is arithmetic on a datasheet."""
        return True

    @property
    def num_devices(self) -> None:
        """Return None: it serves any number of devices."""
        return

    @property
    def collectives(self) -> frozenset[Collective]:
        """Return all collectives of a step."""
        return IN_STEP

    def transfer_ms(self, traffic: Traffic, wait_ms: FloatArray) -> FloatArray:
        """(B, D) ms, the same for all devices."""
        devices, host = traffic.num_devices, traffic.host_size or traffic.num_devices
        local = min(devices, self.devices_per_host)
        scattered = (local - 1) / local, (1 - local / devices) / local  # of what a device puts in: inside, outside
        shares = {
            Collective.ALL_TO_ALL: self._all_to_all(devices),
            Collective.REDUCE_SCATTER: scattered,
            Collective.HOST_REDUCE_SCATTER: ((host - 1) / host, 0.0),
            Collective.HOST_ALL_TO_ALL: (0.0, 1 - host / devices),
            Collective.ALL_REDUCE: (2 * scattered[0], 2 * scattered[1]),
        }
        parts = [self._collective_ms(traffic.given(which), *shares[which]) for which in traffic.held if which in shares]
        return np.broadcast_to(np.sum(parts, axis=0), wait_ms.shape)

    def least_outline(self, known: OneDevice) -> Outline:
        """As the widest device's, the same for all."""
        given = known.widest_least_bytes[:, None]
        parts = self._collective_ms(given, *self._all_to_all(known.num_devices))[..., None]
        return Outline(parts, np.ones(1), np.zeros((1, NUM_WAITS)))

    def _all_to_all(self, devices: int) -> tuple[float, float]:
        """The shares of what a device gives out that stay inside its host, and that don't."""
        local = min(devices, self.devices_per_host)
        return (local - 1) / devices, (devices - local) / devices

    def _collective_ms(self, given: FloatArray, inside: float, outside: float) -> FloatArray:
        """(B, 1) ms, of what each device puts in, (B, D), and the shares of it that go over links and network."""
        busiest = np.maximum(given, given.mean(axis=1, keepdims=True)).max(axis=1, keepdims=True)
        slower = max(inside / self.link_gb_per_s, outside / self.network_gb_per_s) / _BYTES_PER_MS
        cost: FloatArray = busiest * slower + self.latency_ms * (busiest >= 1)  # less than a byte is rounding
        return cost


def roofline(
    source: str,  # noqa: ARG001  # for readers of the config
    memory_gb_per_s: float,
    link_gb_per_s: float,
    network_gb_per_s: float,
    host_link_gb_per_s: float,
    devices_per_host: int = 8,
    launch_ms: float = 0.02,
    latency_ms: float = 0.02,
    cache_lookup_ns: float = 3.0,
    cache_call_ms: float = 0.1,
    more: Sequence[PartModel] = (),
) -> CostModels:
    """The models of one kind of device; bandwidths in GB/s (10^9 bytes), links and network in one direction.

    Args:
        source: where the figures stand.
        memory_gb_per_s: from the device's memory.
        link_gb_per_s: NVLink.
        network_gb_per_s: one network card for each GPU.
        host_link_gb_per_s: PCIe to the host, by the datasheet.
        devices_per_host: that talk over the fast links.
        launch_ms: of the fused call.
        latency_ms: of an exchange.
        cache_lookup_ns: of a lookup behind a cache: calibrated on one published figure of an H100, docs/tiers.md.
        cache_call_ms: of a call behind a cache: some ten kernels more than without one; assumed.
        more: other parts of a step.
    """
    comm = RooflineComm(link_gb_per_s, network_gb_per_s, devices_per_host, latency_ms)
    before = replace(comm, latency_ms=2 * latency_ms)  # the number of indices, then the indices
    host = HostLink(host_link_gb_per_s, cache_lookup_ns, cache_call_ms)
    compute = RooflineCompute(memory_gb_per_s, launch_ms, host)
    return CostModels(compute, comm, comm, None, input=before, more=tuple(more))


def with_host_tiers(models: CostModels, sheet: str) -> CostModels:
    """The models, and for calls of tables in host memory that they don't know, a datasheet's link and cache besides.

    Args:
        models: whose compute model is a sum over tables.
        sheet: a datasheet's name, such as "roofline:h100".

    Raises:
        UserError: there is no such datasheet, or the compute model isn't a sum over tables.
    """
    figures = CostModels.load(sheet).compute
    if not isinstance(figures, RooflineCompute) or figures.host is None:
        raise UserError(f"host_tiers={sheet} is no datasheet; take one, such as roofline:h100")
    known = models.compute
    if not isinstance(known, SumModel):
        raise UserError("tables in host memory can be added to compute models only that are sums over tables")
    by_call = known.by_call if isinstance(known, ComputeByForm) else {call: known.of_call(call) for call in known.calls}
    return replace(models, compute=ComputeByForm(by_call, figures.host))
