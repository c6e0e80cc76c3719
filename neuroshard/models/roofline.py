"""Analytic (roofline) models: arithmetic on datasheets and measurements, for machines that we can't measure.

A kernel takes the time of its bytes at the memory's bandwidth, times a published factor for rows of that width, plus
the time of its threads, which was measured on one H100. An exchange takes the published time for its bytes and devices
(`neuroshard/models/published_points.py`). docs/results/roofline_errors.md compares predicted with published and
measured times.
"""

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

import numpy as np
from msgspec import Meta

from neuroshard.cost.loads import Loads, Traffic
from neuroshard.layouts import are
from neuroshard.models.host_tiers import (
    SECTOR_BYTES,
    HostLink,
    cached_miss_bytes,
    in_sectors,
    managed_lookups,
    moved_row_bytes,
    passes,
)
from neuroshard.models.interface import CommModel, ComputeModel, Coverage, NarrowCalls, ReluHead, SumModel
from neuroshard.models.kernels import KernelModels
from neuroshard.models.network import LARGEST_BYTES, MOST_HOSTS, Links, Network, Speed
from neuroshard.models.published_points import EVEN, Curves, KernelPoint, Widths
from neuroshard.models.stored import Held, Stored
from neuroshard.plumbing.arrays import BoolArray, Float32Array, FloatArray
from neuroshard.plumbing.schema import Devices
from neuroshard.tables.misses import touched_rows
from neuroshard.tables.reuse import BOTTOMS
from neuroshard.tasks.memory import STATE_FLOATS
from neuroshard.words.collective import ELEMENT_BYTES, IN_STEP, Collective
from neuroshard.words.form import CALLS, IN_COLUMNS, ON_DEVICE_CALLS, Call
from neuroshard.words.placement import TIERS, Tier
from neuroshard.words.topology import Topology

_BYTES_PER_MS = 1e6  # of 1 GB/s
_NS = 1e-6  # of a ms

# Shares of the bandwidth: of rows that are read and written one by one, because Adam's backward takes 1.7 times as long
# as SGD's (recsys-examples, H100); and of a memory copy within a device, measured on an H100.
_UPDATE_SHARE, _COPY_SHARE = 0.5, 0.9
# recsys-examples, H100 SXM and PCIe, shares of PCIe 5's 64 GB/s: lookups without a cache 69 to 72 GB/s; unique rows and
# states read and written 79 to 87 together; rows that a cache fetches 52 to 56, as memory copies do.
_LOOKED_UP, _UPDATED, _FETCHED = 72 / 64, 84 / 64, 54 / 64
_HOT = BOTTOMS >= 32  # bins of rows that are looked up more often
_UNIT_MS = 1 / 64  # of costs in sums: about what a small table costs
_CACHE_BACKWARD_MS = 0.06  # a call's fixed time backward behind a cache: recsys-examples, 0.234 ms for 65,536 lookups
_MOST_ROUNDS = 100
_PAIR = 2  # devices that an NVLink bridge joins

_NCCL = {
    Collective.ALL_TO_ALL: "alltoall",
    Collective.REDUCE_SCATTER: "reduce_scatter",
    Collective.HOST_REDUCE_SCATTER: "reduce_scatter",
    Collective.HOST_ALL_TO_ALL: "alltoall",
    Collective.ALL_REDUCE: "all_reduce",
}


# Time of the threads of FBGEMM's kernels, in addition to moving bytes, assumed to be the same on all GPUs. Fitted to
# 2,030 calls of pooled column-wise tables on one H100.
FORWARD_CALL_MS = 0.022  # FBGEMM PR #5749, B200, 640 lookups
BACKWARD_CALL_MS = 0.087  # with its update
BAG_NS = 0.24  # of a bag of lookups
_LOOKUP_NS, _ROW_NS = 0.071, 0.134  # of a lookup, which backward sorts; of a row that a batch looks up
_HOT_ROW_NS = 11.7  # additional, of a row that it looks up more than 32 times: such rows get a block of threads each
_NARROW = NarrowCalls((32, 64, 128), np.array([0.194, 0.279, 0.168], dtype=np.float32))
# Factors of the time of pooled tables alone, fitted to 298 other calls. Up to 32 columns FBGEMM has another kernel.
_NARROW_SEQUENCES, _SEQUENCES = 1.96, 1.13


@dataclass(frozen=True)
class RooflineCompute(SumModel):
    """Bytes over memory bandwidth, times a published factor, plus the time of threads; a fixed time for every call.

    Column-wise and row-wise tables have fused calls, data-parallel tables a dense call. Calls of pooled tables are
    faster if no table of the call is wide. Rows of tables in host memory go over the link to the host.

    Attributes:
        memory_gb_per_s: memory bandwidth by the datasheet.
        host: the link and the work of caches; None: calls of tables in host memory are not known.
        optimizer: sgd | rowwise_adagrad | adam: optimizer whose states are read and written, too.
        widths: factors of the time of a forward lookup's bytes, by width.
        published: True if kernel times were published for this GPU; else an H100's utilisation stands in.
        tier: tier of the tables, which decides the fixed time of a call.
    """

    memory_gb_per_s: float
    host: HostLink | None = None
    optimizer: str = "sgd"
    widths: Widths = EVEN
    published: bool = True
    tier: Tier = Tier.DEVICE

    @property
    def head(self) -> ReluHead:
        """The head that adds the call's fixed time to the sum of the loads' times, less what narrow calls save."""
        call_ms = self.forward_call_ms + self.backward_call_ms
        cost = ReluHead(np.zeros(1, np.float32), np.ones(1, np.float32), call_ms / _UNIT_MS, _UNIT_MS)
        return _NARROW.less_saved(cost)

    @property
    def forward_call_ms(self) -> float:
        """A call's fixed time forward."""
        return FORWARD_CALL_MS + (0 if self.host is None else self.host.call_ms(self.tier))

    @property
    def backward_call_ms(self) -> float:
        """A call's fixed time backward, with its update."""
        return BACKWARD_CALL_MS + (_CACHE_BACKWARD_MS if self.tier is Tier.UVM_CACHING else 0)

    @property
    def arithmetic(self) -> frozenset[Call]:
        """The kernel calls that the model knows: each cost is arithmetic on a datasheet."""
        return self.calls

    @property
    def of_calls(self) -> KernelModels:
        """The models of all kernel calls; without a link to the host, of those of tables in device memory."""
        of_tiers: dict[Tier, SumModel] = {tier: replace(self, tier=tier) for tier in TIERS}
        return KernelModels({call: of_tiers[call.tier] for call in (ON_DEVICE_CALLS if self.host is None else CALLS)})

    def embed(self, loads: Loads) -> Float32Array:
        """Embed each load as its cost in calls with wide tables, both passes, and its savings, (n, 1 + W)."""
        kernels_ms = (self._lookups_ms(loads) + self._rows_ms(loads)) * _beside_wide(loads)
        rest_ms = self._fetched_ms(loads) + self._whole_ms(loads) + self._written_ms(loads)
        saved = _NARROW.saved_of((kernels_ms / _UNIT_MS).astype(np.float32), loads.dim)
        saved *= loads.pooled[:, None]  # kernels of sequences are as they are
        return np.column_stack([(kernels_ms + rest_ms) / _UNIT_MS, saved]).astype(np.float32)

    def point_ms(self, point: KernelPoint) -> float:
        """Predict the ms of a call whose time was published, with its own optimizer."""
        its, loads = replace(self, optimizer=point.optimizer, tier=point.tier_assignment.tier), point.loads
        if point.backward:
            return its.backward_call_ms + float(its.backward_ms(loads).sum())
        return its.forward_call_ms + float(its.forward_ms(loads).sum())

    def forward_ms(self, loads: Loads) -> FloatArray:
        """Predict the ms of each load's lookups, (n,), in a call without wider tables."""
        return self._lookups_ms(loads) * _alone(loads) + self._fetched_ms(loads)

    def backward_ms(self, loads: Loads) -> FloatArray:
        """Predict the ms of each load's gradients and update, (n,), in a call without wider tables."""
        return self._rows_ms(loads) * _alone(loads) + self._whole_ms(loads) + self._written_ms(loads)

    def _lookups_ms(self, loads: Loads) -> FloatArray:
        """Predict the ms of lookups by a pooled call's threads, from the device's memory, (n,)."""
        looked_up, outputs = passes(loads)[:2]
        row_bytes = moved_row_bytes(loads)
        return self._memory_ms(looked_up * self.widths(row_bytes) + outputs) + loads.bags * BAG_NS * _NS

    def _rows_ms(self, loads: Loads) -> FloatArray:
        """Predict the ms of a pooled call's gradients, sorted lookups, and rows updated one by one, (n,)."""
        _, outputs, _, update, _ = passes(loads)  # of an output's gradient all lookups but the first are in a cache
        unique = touched_rows(loads.rows, loads.lookups, loads.reuse)
        one_by_one = update + np.where(_copied(loads), 0, _at(loads, Tier.DEVICE) * self._states(loads))
        one_by_one += 2 * unique * STATE_FLOATS[self.optimizer][1] * SECTOR_BYTES
        hot_ns = _HOT_ROW_NS * loads.reuse[:, _HOT].sum(axis=1)
        ns = loads.lookups * _LOOKUP_NS + unique * (_ROW_NS + hot_ns)
        ms: FloatArray = self._memory_ms(outputs + one_by_one / _UPDATE_SHARE) + ns * _NS
        return ms

    def _whole_ms(self, loads: Loads) -> FloatArray:
        """Predict the ms of updates of whole tables, which data-parallel tables need, (n,)."""
        states = _copied(loads) * 2 * STATE_FLOATS[self.optimizer][0] * loads.rows * loads.dim * ELEMENT_BYTES
        ms: FloatArray = self._memory_ms((passes(loads)[4] + states) / _COPY_SHARE)
        return ms

    def _fetched_ms(self, loads: Loads) -> FloatArray:
        """Predict the ms of rows that lookups fetch over the link to the host, and of the cache's work, (n,)."""
        if self.host is None:
            return np.zeros(len(loads))
        rows = _at(loads, Tier.UVM) * loads.lookups * moved_row_bytes(loads) / _LOOKED_UP
        ms = self._link_ms(rows + cached_miss_bytes(loads) / _FETCHED)
        return ms + managed_lookups(loads) * self.host.cache_lookup_ns * _NS

    def _written_ms(self, loads: Loads) -> FloatArray:
        """Predict the ms of updates over the link to the host, (n,); no cache holds optimizer states."""
        if self.host is None:
            return np.zeros(len(loads))
        unique = touched_rows(loads.rows, loads.lookups, loads.reuse)
        rows = _at(loads, Tier.UVM) * 2 * unique * moved_row_bytes(loads)
        return self._link_ms((rows + ~_at(loads, Tier.DEVICE) * self._states(loads)) / _UPDATED)

    def _states(self, loads: Loads) -> FloatArray:
        """Count the bytes of optimizer states of the rows of a batch, read and written, (n,)."""
        unique, floats = touched_rows(loads.rows, loads.lookups, loads.reuse), STATE_FLOATS[self.optimizer][0]
        return 2 * unique * floats * in_sectors(loads.dim * ELEMENT_BYTES)

    def _memory_ms(self, size_bytes: FloatArray) -> FloatArray:
        return size_bytes / (self.memory_gb_per_s * _BYTES_PER_MS)

    def _link_ms(self, size_bytes: FloatArray) -> FloatArray:
        assert self.host is not None
        return size_bytes / (self.host.link_gb_per_s * _BYTES_PER_MS)

    def coverage(self, loads: Loads) -> Coverage:
        """Return how near published points are to these loads."""
        known = self.widths.holds(loads.dim) & (loads.bytes_per_element == ELEMENT_BYTES)
        return Coverage.COVERED if self.published and known.all() else Coverage.EXTRAPOLATED


def datasheet_of(model: ComputeModel) -> RooflineCompute | None:
    """Return the analytic model of column-wise calls in device memory among models; None if there is none."""
    columns = model.by_call[IN_COLUMNS] if isinstance(model, KernelModels) else model
    return columns if isinstance(columns, RooflineCompute) else None


def _beside_wide(loads: Loads) -> FloatArray:
    """Compute the time of each load in calls with wide tables, relative to a pooled table alone, (n,).

    A load takes longer the fewer of a kernel's threads it keeps busy. This factor rises smoothly with the width: with
    wide tables a table of 36 columns takes longer than a table of 32 columns. Alone the difference is larger, because
    36 columns need the next larger kernel (docs/explanation/roofline.md).
    """
    sequences = np.where(loads.dim <= _NARROW.widths[0], _NARROW_SEQUENCES, _SEQUENCES)
    dim = in_sectors(loads.dim * ELEMENT_BYTES) / ELEMENT_BYTES  # a begun sector takes as long as a whole one
    return np.where(loads.pooled, 1 / _NARROW.smoothly_left_of(dim), sequences)


def _alone(loads: Loads) -> FloatArray:
    """Compute the same of a call without wider tables, (n,)."""
    return _beside_wide(loads) * np.where(loads.pooled, _NARROW.left_of(loads.dim), 1.0)


def _copied(loads: Loads) -> BoolArray:
    return are(loads, lambda layout: layout.dense)


def _at(loads: Loads, tier: Tier) -> BoolArray:
    where: BoolArray = loads.tier == TIERS.index(tier)
    return where


@dataclass(frozen=True)
class RooflineComm(Stored, CommModel):
    """Published times for as many bytes and devices, from the start of the straggler; all wait for the busiest device.

    Fast links join the devices of a domain: as many as the topology says, else `devices_per_host`. Bytes that leave a
    domain go over the network at the same time (`neuroshard/models/network.py`). Collectives run one after the other;
    host collectives stay within domains or go between them.

    Attributes:
        curves: published times of the collectives of one host.
        network_gb_per_s: bandwidth of a device's network cards, in one direction.
        devices_per_host: number of devices that fast links join, if the topology doesn't say.
        gathers: True if a reduce-scatter is an all-gather here, as in the backward pass.
        rounds: number of all-to-alls for each all-to-all of a step; all but one are empty.
        speed: speed of the links relative to the links of the curves.
        links: the network between hosts, and what was measured of the links.
    """

    kind: ClassVar[str] = "published"
    arithmetic: ClassVar[bool] = True

    curves: Annotated[Curves, Held("curves")]
    network_gb_per_s: Speed
    devices_per_host: Devices
    gathers: bool = False
    rounds: Annotated[int, Meta(ge=1, le=_MOST_ROUNDS)] = 1
    speed: Speed = 1.0
    links: Links = field(default_factory=Links)

    num_devices = None  # it serves any number
    collectives = IN_STEP

    def transfer_ms(self, traffic: Traffic, wait_ms: FloatArray) -> FloatArray:
        """Predict the ms of all collectives, (B, D), the same for all devices."""
        taken_ms = self._taken_ms(traffic.size_bytes, traffic.num_devices, traffic.host_size)
        return np.broadcast_to(taken_ms, wait_ms.shape)

    def even_ms(self, given: FloatArray, batch_size: int, topology: Topology) -> FloatArray:
        """Predict the ms, (B,), of devices that put as much each into collectives, (B, C): each is the busiest."""
        return self._taken_ms(given[:, None], topology.num_devices, topology.fast_links)[:, 0]

    def _taken_ms(self, size_bytes: FloatArray, devices: int, fast_links: int | None) -> FloatArray:
        """Predict the ms of all collectives, (B, 1), by what the busiest of some devices puts in, (B, D, C)."""
        taken_ms = np.zeros((len(size_bytes), 1))
        for one in tuple(Collective)[: size_bytes.shape[2]]:
            if one is not Collective.INPUT and (given := size_bytes[..., one]).any():
                taken_ms = taken_ms + self._collective_ms(given, one, devices, fast_links)
        return taken_ms

    def coverage(self, traffic: Traffic) -> Coverage:
        """Return how near published points are to this traffic."""
        joined = min(self.devices_per_host, traffic.host_size or self.devices_per_host)
        if self.links.host_busbw_gb_per_s is None and self.links.typical:
            return Coverage.TYPICAL
        if self.links.host_busbw_gb_per_s is None and self.speed != 1:
            return Coverage.SCALED
        if traffic.num_devices <= joined:
            return Coverage.COVERED if traffic.size_bytes.max() <= self.curves.sizes[-1] else Coverage.EXTRAPOLATED
        near = (
            traffic.num_devices <= joined * MOST_HOSTS[self.links.network] and traffic.size_bytes.max() <= LARGEST_BYTES
        )
        return Coverage.COVERED if near else Coverage.EXTRAPOLATED

    def _collective_ms(
        self, given: FloatArray, collective: Collective, devices: int, fast_links: int | None
    ) -> FloatArray:
        """Predict ms, (B, 1), of what devices put in, (B, D); fast links join so many, None: a usual host's."""
        busiest, local = given.max(axis=1, keepdims=True), min(devices, fast_links or self.devices_per_host)
        hosts = -(-devices // local)
        if collective is Collective.HOST_REDUCE_SCATTER:
            cost = self._inside_ms(collective, fast_links or devices, busiest)
        elif collective is Collective.HOST_ALL_TO_ALL:
            cost = self._outside_ms(collective, busiest, hosts, hosts)
        elif collective is not Collective.ALL_REDUCE and self.links.hierarchical and hosts > 1:
            leaves = busiest / (local if collective is Collective.REDUCE_SCATTER else 1)  # sums of the host, or all
            outside = self._outside_ms(Collective.HOST_ALL_TO_ALL, leaves, hosts, hosts)
            cost = self._inside_ms(collective, local, busiest) + outside
        else:
            stays = local / devices if collective is Collective.ALL_TO_ALL else 1.0
            inside = self._inside_ms(collective, local, busiest * stays)
            cost = np.maximum(inside, self._outside_ms(collective, busiest, devices, hosts))
        counted: FloatArray = cost * (busiest >= 1)  # less than a byte is rounding
        return counted

    def _inside_ms(self, collective: Collective, devices: int, size_bytes: FloatArray) -> FloatArray:
        """Predict the ms over the links of a host, (B, 1)."""
        name = self._nccl(collective)
        if self.links.bridge_gb_per_s is not None and devices > 1:
            if devices == _PAIR:
                times = 1.0 if name == "all_reduce" else 0.5
                bytes_ms = times * size_bytes / (self.links.bridge_gb_per_s * _BYTES_PER_MS)
                return self.rounds * self.curves(name, devices, 0 * size_bytes) + bytes_ms
            if name == "alltoall":  # what goes to the other device of the pair takes the bridge
                size_bytes = size_bytes * (devices - _PAIR) / (devices - 1)
        size_bytes = size_bytes / self._speed(devices)
        ms = self.curves(name, devices, size_bytes)
        return ms if self.rounds == 1 else ms + (self.rounds - 1) * self.curves(name, devices, np.zeros(1))

    def _speed(self, devices: int) -> float:
        """Return the speed of a host's links relative to the links of the curves, by a measured bandwidth if given."""
        if self.links.host_busbw_gb_per_s is None or devices == 1:
            return self.speed
        largest = self.curves.sizes[-1:]
        usual_ms = float(self.curves("all_reduce", devices, largest)[0])
        usual = 2 * (devices - 1) / devices * float(largest[0]) / usual_ms / _BYTES_PER_MS
        return self.links.host_busbw_gb_per_s / usual

    def _outside_ms(self, collective: Collective, size_bytes: FloatArray, ranks: int, hosts: int) -> FloatArray:
        """Predict the ms over the network between hosts, (B, 1), of buffers of so many bytes."""
        if hosts == 1:
            return np.zeros_like(size_bytes)
        name, links = self._nccl(collective), self.links
        network = Network(links.network, self.network_gb_per_s, links.latency_factor)
        if links.network_busbw_gb_per_s is not None:
            network = network.measured(links.network_busbw_gb_per_s, ranks, hosts)
        ms = network.ms(name, size_bytes, ranks, hosts)
        return ms + (self.rounds - 1) * network.ms(name, np.zeros(1), ranks, hosts)

    def _nccl(self, collective: Collective) -> str:
        """Return NCCL's name of a collective."""
        name = _NCCL[collective]
        return "all_gather" if self.gathers and name == "reduce_scatter" else name
