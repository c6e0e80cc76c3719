"""Analytic (roofline) models: arithmetic on datasheets and published measurements, for machines that were not measured.

A kernel takes the time of the moved bytes at memory bandwidth, times a published factor for rows of that width, plus
the time of the threads, which was measured on one H100. An exchange takes the published time for its bytes and devices
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
from neuroshard.models.stored import Stored, TensorField
from neuroshard.plumbing.arrays import BoolArray, Float32Array, FloatArray
from neuroshard.plumbing.schema import Devices
from neuroshard.tables.misses import touched_rows
from neuroshard.tables.reuse import BOTTOMS
from neuroshard.tasks.memory import STATE_FLOATS
from neuroshard.words.collective import ELEMENT_BYTES, IN_STEP, Collective
from neuroshard.words.form import CALLS, COLUMN_WISE_CALL, ON_DEVICE_CALLS, Call
from neuroshard.words.placement import TIERS, Tier
from neuroshard.words.topology import Topology

_BYTES_PER_MS = 1e6  # at 1 GB/s
_NS = 1e-6  # ms in a nanosecond

# Shares of the bandwidth that are reached. Rows that are read and written one by one: because the backward pass of Adam
# takes 1.7 times as long as that of SGD (recsys-examples, H100). A memory copy within a device: measured on an H100.
_UPDATE_SHARE, _COPY_SHARE = 0.5, 0.9
# Shares of the 64 GB/s of PCIe 5, from recsys-examples on H100 SXM and PCIe. Lookups without a cache reach 69 to 72
# GB/s; unique rows and states, read and written, together 79 to 87; rows that a cache fetches 52 to 56, like copies.
_LOOKED_UP, _UPDATED, _FETCHED = 72 / 64, 84 / 64, 54 / 64
_HOT = BOTTOMS >= 32  # bins of rows that are looked up 33 times or more
_UNIT_MS = 1 / 64  # unit of costs in sums: about the cost of a small table
_CACHE_BACKWARD_MS = 0.06  # fixed backward time of a call with a cache: recsys-examples, 0.234 ms for 65,536 lookups
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
BACKWARD_CALL_MS = 0.087  # with the update
BAG_NS = 0.24  # per bag of lookups
_LOOKUP_NS, _ROW_NS = 0.071, 0.134  # per lookup, which the backward pass sorts; per unique row
_HOT_ROW_NS = 11.7  # additional, per row with more than 32 lookups: such a row has a block of threads of its own
_NARROW = NarrowCalls((32, 64, 128), np.array([0.194, 0.279, 0.168], dtype=np.float32))
# Factors of the time of pooled tables alone, fitted to 298 other calls. Up to 32 columns FBGEMM has another kernel.
_NARROW_SEQUENCES, _SEQUENCES = 1.96, 1.13


@dataclass(frozen=True)
class RooflineCompute(SumModel):
    """Analytic model of kernel times. The time of a kernel call is a fixed time, plus the time of the moved bytes, plus
    a time for each bag, lookup and unique row. The time of the moved bytes is their number divided by the memory
    bandwidth, multiplied by published factors.

    Column-wise and row-wise tables have fused calls, data-parallel tables a dense call. Calls of pooled tables are
    faster if no table of the call is wide. Rows of tables in host memory move over the link to the host.

    Attributes:
        memory_gb_per_s: memory bandwidth by the datasheet.
        host: the link and the work of caches; None: calls of tables in host memory are not known.
        optimizer: sgd | rowwise_adagrad | adam: optimizer whose states the update reads and writes.
        widths: factors of the time of a forward lookup's bytes, by width.
        published: True if kernel times were published for this GPU; False assumes the utilisation of an H100.
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
        """The head that computes the time of a kernel call from the sum of the vectors of the shards (`embed`). The
        time is the sum of the shards' times, plus the fixed time of the call. If all tables in the call are narrow,
        the call takes less time than this sum, and the difference is subtracted.
        """
        call_ms = self.forward_call_ms + self.backward_call_ms
        cost = ReluHead(np.zeros(1, np.float32), np.ones(1, np.float32), call_ms / _UNIT_MS, _UNIT_MS)
        return _NARROW.less_saved(cost)

    @property
    def forward_call_ms(self) -> float:
        """The fixed time of the forward pass of a kernel call, in ms."""
        return FORWARD_CALL_MS + (0 if self.host is None else self.host.call_ms(self.tier))

    @property
    def backward_call_ms(self) -> float:
        """The fixed time of the backward pass and update of a kernel call, in ms."""
        return BACKWARD_CALL_MS + (_CACHE_BACKWARD_MS if self.tier is Tier.UVM_CACHING else 0)

    @property
    def arithmetic(self) -> frozenset[Call]:
        """The types of kernel calls whose times this model computes from a datasheet. The model computes all times in
        this way, so these are all types of calls that the model can predict.
        """
        return self.calls

    @property
    def of_calls(self) -> KernelModels:
        """This model converted to `KernelModels`, which predict all types of kernel calls. If the speed of the link to
        the host is unknown, the `KernelModels` predict only calls of tables in device memory.
        """
        of_tiers: dict[Tier, SumModel] = {tier: replace(self, tier=tier) for tier in TIERS}
        return KernelModels({call: of_tiers[call.tier] for call in (ON_DEVICE_CALLS if self.host is None else CALLS)})

    def embed(self, loads: Loads) -> Float32Array:
        """Return a vector for each of n shards (`loads`), (n, 1 + W), in units of 1/64 ms. The first element is the
        forward and backward time of the shard in a kernel call that also has wide tables. The other W elements are
        savings, one for each limit of the table width (32, 64 and 128 columns): the time that the shard saves if no
        table in the call is wider than the limit.

        The savings of several limits add up. If the shard itself is wider than a limit, the saving is a large negative
        number, so that the call saves nothing for this limit. Shards of sequence tables save 0.
        """
        kernels_ms = (self._lookups_ms(loads) + self._rows_ms(loads)) * _beside_wide(loads)
        rest_ms = self._fetched_ms(loads) + self._whole_ms(loads) + self._written_ms(loads)
        saved = _NARROW.saved_of((kernels_ms / _UNIT_MS).astype(np.float32), loads.dim)
        saved *= loads.pooled[:, None]  # kernels of sequence tables do not save
        return np.column_stack([(kernels_ms + rest_ms) / _UNIT_MS, saved]).astype(np.float32)

    def point_ms(self, point: KernelPoint) -> float:
        """Predict the ms of `point`, a kernel call whose measured time was published.
        The prediction is for the optimizer and the memory tier of the published call; the attributes `optimizer` and
        `tier` of this model are ignored.
        """
        model, loads = replace(self, optimizer=point.optimizer, tier=point.tier_assignment.tier), point.loads
        if point.backward:
            return model.backward_call_ms + float(model.backward_ms(loads).sum())
        return model.forward_call_ms + float(model.forward_ms(loads).sum())

    def forward_ms(self, loads: Loads) -> FloatArray:
        """Predict the forward time of each of n shards (`loads`), (n,) ms, in a kernel call in which no other shard is
        wider.
        The fixed time of the call is not included.
        """
        return self._lookups_ms(loads) * _alone(loads) + self._fetched_ms(loads)

    def backward_ms(self, loads: Loads) -> FloatArray:
        """Predict the backward time of each of n shards (`loads`), (n,) ms, in a kernel call in which no other shard is
        wider. The backward time includes the updates of rows, but not the fixed time of the call.
        """
        return self._rows_ms(loads) * _alone(loads) + self._whole_ms(loads) + self._written_ms(loads)

    def _lookups_ms(self, loads: Loads) -> FloatArray:
        """Predict the ms of lookups in device memory for each of n shards (`loads`), (n,), in a pooled call."""
        looked_up, outputs = passes(loads)[:2]
        row_bytes = moved_row_bytes(loads)
        return self._memory_ms(looked_up * self.widths(row_bytes) + outputs) + loads.bags * BAG_NS * _NS

    def _rows_ms(self, loads: Loads) -> FloatArray:
        """Predict the ms of reading gradients, sorting lookups and updating single rows for each of n shards (`loads`),
        (n,), in a pooled call.
        """
        _, outputs, _, update, _ = passes(
            loads
        )  # the first lookup reads a gradient from memory, all others from a cache
        unique = touched_rows(loads.rows, loads.lookups, loads.reuse)
        one_by_one = update + np.where(_copied(loads), 0, _at(loads, Tier.DEVICE) * self._states(loads))
        one_by_one += 2 * unique * STATE_FLOATS[self.optimizer][1] * SECTOR_BYTES
        hot_ns = _HOT_ROW_NS * loads.reuse[:, _HOT].sum(axis=1)
        ns = loads.lookups * _LOOKUP_NS + unique * (_ROW_NS + hot_ns)
        ms: FloatArray = self._memory_ms(outputs + one_by_one / _UPDATE_SHARE) + ns * _NS
        return ms

    def _whole_ms(self, loads: Loads) -> FloatArray:
        """Predict the ms of updating every row of the table for each of n shards (`loads`), (n,).
        Only data-parallel tables need such updates; the ms of other tables are 0.
        """
        states = _copied(loads) * 2 * STATE_FLOATS[self.optimizer][0] * loads.rows * loads.dim * ELEMENT_BYTES
        ms: FloatArray = self._memory_ms((passes(loads)[4] + states) / _COPY_SHARE)
        return ms

    def _fetched_ms(self, loads: Loads) -> FloatArray:
        """Predict the ms of fetching looked-up rows over the link to the host, and of the work of the cache, for each
        of n shards (`loads`), (n,).
        """
        if self.host is None:
            return np.zeros(len(loads))
        rows = _at(loads, Tier.UVM) * loads.lookups * moved_row_bytes(loads) / _LOOKED_UP
        ms = self._link_ms(rows + cached_miss_bytes(loads) / _FETCHED)
        return ms + managed_lookups(loads) * self.host.cache_lookup_ns * _NS

    def _written_ms(self, loads: Loads) -> FloatArray:
        """Predict the ms that the transfers of the update over the link to the host take, for each of n shards
        (`loads`), (n,). Without a cache, the update reads and writes rows and optimizer states. With a cache, the
        update reads and writes only optimizer states over the link, because optimizer states are never in the cache.
        For tables in device memory, the ms are 0.
        """
        if self.host is None:
            return np.zeros(len(loads))
        unique = touched_rows(loads.rows, loads.lookups, loads.reuse)
        rows = _at(loads, Tier.UVM) * 2 * unique * moved_row_bytes(loads)
        return self._link_ms((rows + ~_at(loads, Tier.DEVICE) * self._states(loads)) / _UPDATED)

    def _states(self, loads: Loads) -> FloatArray:
        """Return the bytes of optimizer states that the update in a batch reads and writes, for each of n shards
        (`loads`), (n,).
        """
        unique, floats = touched_rows(loads.rows, loads.lookups, loads.reuse), STATE_FLOATS[self.optimizer][0]
        return 2 * unique * floats * in_sectors(loads.dim * ELEMENT_BYTES)

    def _memory_ms(self, size_bytes: FloatArray) -> FloatArray:
        return size_bytes / (self.memory_gb_per_s * _BYTES_PER_MS)

    def _link_ms(self, size_bytes: FloatArray) -> FloatArray:
        assert self.host is not None
        return size_bytes / (self.host.link_gb_per_s * _BYTES_PER_MS)

    def coverage(self, loads: Loads) -> Coverage:
        """Return `COVERED` if kernel times were published for this type of GPU, all shards in `loads` have fp32
        weights, and the width of each shard is inside the range of the published widths. Otherwise return
        `EXTRAPOLATED`.
        """
        known = self.widths.holds(loads.dim) & (loads.bytes_per_element == ELEMENT_BYTES)
        return Coverage.COVERED if self.published and known.all() else Coverage.EXTRAPOLATED


def datasheet_of(model: ComputeModel) -> RooflineCompute | None:
    """Return the analytic model that predicts pooled column-wise kernel calls in device memory. Return None if no
    analytic model predicts these calls. A `KernelModels` has a model for each type of call, and may have an analytic
    model for these calls. Any other `model` is returned itself if it is analytic.
    """
    columns = model.by_call[COLUMN_WISE_CALL] if isinstance(model, KernelModels) else model
    return columns if isinstance(columns, RooflineCompute) else None


def _beside_wide(loads: Loads) -> FloatArray:
    """Return the factor by which the kernel time of each of n shards must be multiplied, (n,), if wide tables are in
    the same kernel call. The kernel time is the time that `_lookups_ms` or `_rows_ms` predicts; both methods assume
    pooled tables.

    A load takes longer the fewer of a kernel's threads it keeps busy. This factor rises smoothly with the width: with
    wide tables a table of 36 columns takes longer than a table of 32 columns. Alone the difference is larger, because
    36 columns need the next larger kernel (docs/explanation/roofline.md).
    """
    sequences = np.where(loads.dim <= _NARROW.widths[0], _NARROW_SEQUENCES, _SEQUENCES)
    dim = in_sectors(loads.dim * ELEMENT_BYTES) / ELEMENT_BYTES  # a partly used sector takes as long as a whole sector
    return np.where(loads.pooled, 1 / _NARROW.smoothly_left_of(dim), sequences)


def _alone(loads: Loads) -> FloatArray:
    """Return the factor by which the kernel time of each of n shards must be multiplied, (n,), if no other shard in the
    same kernel call is wider. The kernel time is the time that `_lookups_ms` or `_rows_ms` predicts; both methods
    assume pooled tables. If widths are rounded up to multiples of 8 columns, the factor is 1 for pooled tables of at
    most 32, exactly 64, exactly 128, or at least 256 columns. For all other tables, the factor is above 1.
    """
    return _beside_wide(loads) * np.where(loads.pooled, _NARROW.left_of(loads.dim), 1.0)


def _copied(loads: Loads) -> BoolArray:
    return are(loads, lambda layout: layout.dense)


def _at(loads: Loads, tier: Tier) -> BoolArray:
    where: BoolArray = loads.tier == TIERS.index(tier)
    return where


@dataclass(frozen=True)
class RooflineComm(Stored, CommModel):
    """Analytic model of the times of exchanges. The time of a collective is interpolated between published times, by
    the number of devices and the bytes of the device that sends the most.

    The times begin when the straggler starts, and all devices end together.

    Fast links join the devices of a domain, as many as in the topology, or else `devices_per_host`. Bytes that leave a
    domain go over the network at the same time (`neuroshard/models/network.py`). Collectives run one after the other;
    host collectives stay within domains or go between them.

    Attributes:
        curves: published times of the collectives of one host.
        network_gb_per_s: bandwidth of a device's network cards, in one direction.
        devices_per_host: number of devices that fast links join, if the topology does not say.
        gathers: True if an all-gather takes the place of each reduce-scatter, as in the backward pass.
        rounds: number of all-to-alls that a step does for each all-to-all with bytes; all others are empty.
        speed: speed of the links relative to the links of the curves.
        links: the network between hosts, and measured bandwidths.
    """

    kind: ClassVar[str] = "published"
    arithmetic: ClassVar[bool] = True

    curves: Annotated[Curves, TensorField("curves")]
    network_gb_per_s: Speed
    devices_per_host: Devices
    gathers: bool = False
    rounds: Annotated[int, Meta(ge=1, le=_MOST_ROUNDS)] = 1
    speed: Speed = 1.0
    links: Links = field(default_factory=Links)

    num_devices = None  # it serves any number
    collectives = IN_STEP

    def transfer_ms(self, traffic: Traffic, wait_ms: FloatArray) -> FloatArray:
        """Predict the ms of each of B exchanges for each of D devices, (B, D). The ms are the sum over all collectives,
        except the input dist. All devices of an exchange get the same ms. The waits, `wait_ms` (B, D), do not affect
        the ms.
        """
        taken_ms = self._taken_ms(traffic.size_bytes, traffic.num_devices, traffic.host_size)
        return np.broadcast_to(taken_ms, wait_ms.shape)

    def even_ms(self, given: FloatArray, batch_size: int, topology: Topology) -> FloatArray:
        """Predict the ms of each of B exchanges, (B,), if all devices send equal bytes. The ms are the sum over all
        collectives, except the input dist. `given` (B, C) has the bytes that each device sends into each of C
        collectives.
        """
        return self._taken_ms(given[:, None], topology.num_devices, topology.fast_links)[:, 0]

    def _taken_ms(self, size_bytes: FloatArray, devices: int, fast_links: int | None) -> FloatArray:
        """Predict the ms of each of B exchanges, (B, 1). The ms are the sum over all collectives, except the input
        dist. `size_bytes` (B, D, C) has the bytes that each of D devices sends into each of C collectives. If all
        devices send equal bytes, D can be 1.

        `devices` is the number of devices in the exchange. `fast_links` is the number of devices in a domain of fast
        links; None means `devices_per_host`.
        """
        taken_ms = np.zeros((len(size_bytes), 1))
        for one in tuple(Collective)[: size_bytes.shape[2]]:
            if one is not Collective.INPUT and (given := size_bytes[..., one]).any():
                taken_ms = taken_ms + self._collective_ms(given, one, devices, fast_links)
        return taken_ms

    def coverage(self, traffic: Traffic) -> Coverage:
        """Return a `Coverage`, which says how the predicted times of the exchanges in `traffic` follow from published
        measurements. For example, `SCALED` means that published times are scaled to links of another speed. The result
        depends on the links between devices, the number of devices, and the most bytes that a device sends into a
        collective.
        """
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
        """Predict the ms of one collective in each of B exchanges, (B, 1). `given` (B, D) has the bytes that each of D
        devices sends into the collective. If all devices send equal bytes, D can be 1.

        `devices` is the number of devices in the exchange. `fast_links` is the number of devices in a domain of fast
        links; None means `devices_per_host`.
        """
        busiest, local = given.max(axis=1, keepdims=True), min(devices, fast_links or self.devices_per_host)
        hosts = -(-devices // local)
        if collective is Collective.HOST_REDUCE_SCATTER:
            cost = self._inside_ms(collective, fast_links or devices, busiest)
        elif collective is Collective.HOST_ALL_TO_ALL:
            cost = self._outside_ms(collective, busiest, hosts, hosts)
        elif collective is not Collective.ALL_REDUCE and self.links.hierarchical and hosts > 1:
            leaves = busiest / (
                local if collective is Collective.REDUCE_SCATTER else 1
            )  # after a host has summed up, or all bytes
            outside = self._outside_ms(Collective.HOST_ALL_TO_ALL, leaves, hosts, hosts)
            cost = self._inside_ms(collective, local, busiest) + outside
        else:
            stays = local / devices if collective is Collective.ALL_TO_ALL else 1.0
            inside = self._inside_ms(collective, local, busiest * stays)
            cost = np.maximum(inside, self._outside_ms(collective, busiest, devices, hosts))
        counted: FloatArray = cost * (busiest >= 1)  # fewer bytes than 1 are rounding errors
        return counted

    def _inside_ms(self, collective: Collective, devices: int, size_bytes: FloatArray) -> FloatArray:
        """Predict the ms of a collective between `devices` devices that fast links join, (B, 1), such as the devices of
        a host. `size_bytes` (B, 1) has the size of a device's buffer in each of B exchanges.
        """
        name = self._nccl(collective)
        if self.links.bridge_gb_per_s is not None and devices > 1:
            if devices == _PAIR:
                times = 1.0 if name == "all_reduce" else 0.5
                bytes_ms = times * size_bytes / (self.links.bridge_gb_per_s * _BYTES_PER_MS)
                return self.rounds * self.curves(name, devices, 0 * size_bytes) + bytes_ms
            if name == "alltoall":  # bytes to the other device of the pair take the bridge
                size_bytes = size_bytes * (devices - _PAIR) / (devices - 1)
        size_bytes = size_bytes / self._speed(devices)
        ms = self.curves(name, devices, size_bytes)
        return ms if self.rounds == 1 else ms + (self.rounds - 1) * self.curves(name, devices, np.zeros(1))

    def _speed(self, devices: int) -> float:
        """Return how many times as fast the links within a host are as the links of the machine with published times
        (`curves`). The factor is computed from the measured bus bandwidth within a host. If no bandwidth was measured,
        or if there is only one device, return the attribute `speed`.
        """
        if self.links.host_busbw_gb_per_s is None or devices == 1:
            return self.speed
        largest = self.curves.sizes[-1:]
        usual_ms = float(self.curves("all_reduce", devices, largest)[0])
        usual = 2 * (devices - 1) / devices * float(largest[0]) / usual_ms / _BYTES_PER_MS
        return self.links.host_busbw_gb_per_s / usual

    def _outside_ms(self, collective: Collective, size_bytes: FloatArray, ranks: int, hosts: int) -> FloatArray:
        """Predict the ms of a collective over the network between hosts, (B, 1). The collective has `ranks` ranks on
        `hosts` hosts. `size_bytes` (B, 1) has the size of a rank's buffer in each of B exchanges.
        """
        if hosts == 1:
            return np.zeros_like(size_bytes)
        name, links = self._nccl(collective), self.links
        network = Network(links.network, self.network_gb_per_s, links.latency_factor)
        if links.network_busbw_gb_per_s is not None:
            network = network.measured(links.network_busbw_gb_per_s, ranks, hosts)
        ms = network.ms(name, size_bytes, ranks, hosts)
        return ms + (self.rounds - 1) * network.ms(name, np.zeros(1), ranks, hosts)

    def _nccl(self, collective: Collective) -> str:
        """Return NCCL's name for a collective, such as "all_reduce". If `gathers` is True, as in a model of the
        backward pass, the name for each reduce-scatter is "all_gather".
        """
        name = _NCCL[collective]
        return "all_gather" if self.gathers and name == "reduce_scatter" else name
