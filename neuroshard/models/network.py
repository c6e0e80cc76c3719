"""Formulas for the times of collectives between hosts and over PCIe, fitted to published measurements.

A collective takes L + T + k sqrt(L T): L is a fixed time that grows with the number of ranks, T the time of the bytes
over the busiest link, and the last term the loss of messages of medium size, which are long enough to be sent in chunks
and too short to keep the link busy. L and the share of the link's bandwidth that T reaches were fitted for each kind of
network; how L grows, and k, are the same on all networks.

The points are in `points/between_hosts.csv` and `points/pcie.csv`; docs/results/roofline_errors.md has the errors.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta

from neuroshard.models.published_points import Curves, curves_of, point_rows
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.checked import checked
from neuroshard.words.model_choice import EFA, INFINIBAND, NETWORKS, ROCE, SLINGSHOT, TCP

_US = 1e-3  # ms
Speed = Annotated[float, Meta(ge=1e-6, le=1e9)]
_BYTES_PER_MS = 1e6  # at 1 GB/s
_MANY_RANKS, _FEW_HOSTS = 16, 2  # number of ranks, and of hosts, for which `Fit.latency_us` is the fixed time
OLDER_GPU = 1.4  # fixed times with A100s, relative to those with newer GPUs; fitted by hand
MOST_HOSTS: Mapping[str, int] = {
    INFINIBAND: 10,
    ROCE: 10,
    EFA: 4,
    SLINGSHOT: 256,
    TCP: 2,
}  # largest number of hosts that was measured
LARGEST_BYTES = float(1 << 30)  # largest buffer between hosts that was measured


class Growth(NamedTuple):
    """Parameters of one kind of collective: how the time grows with the number of ranks and with the bytes.
    The parameters are the same on all networks.

    Attributes:
        power: exponent p: the fixed time L is proportional to ranks^p (for an all-reduce, to hosts^p).
        between: the factor k of sqrt(L T).
    """

    power: float
    between: float


class Fit(NamedTuple):
    """Fitted parameters of one kind of collective on one kind of network: the fixed time, and the share of the
    bandwidth that large messages reach.

    Attributes:
        latency_us: fixed time of 16 ranks; of an all-reduce, of 2 hosts.
        share: fraction of the bandwidth of the network cards that large messages reach.
    """

    latency_us: float
    share: float


Fits = Mapping[str, Mapping[str, Fit]]  # by network and kind of collective

_ALL_TO_ALL, _RING, _ALL_REDUCE = "alltoall", "ring", "all_reduce"
GROWTH = {_ALL_TO_ALL: Growth(1.0, 0.5), _RING: Growth(1.3, 0.5), _ALL_REDUCE: Growth(0.45, 2.5)}
# The result of `fitted` with all points. Only some collectives were published for EFA and TCP: the others are assumed
# to be slower than on InfiniBand by the same factor.
_IN_COMMON = {"alltoall": Fit(42.6, 0.9), "ring": Fit(47.1, 1.0), "all_reduce": Fit(30.1, 1.0)}  # InfiniBand and RoCE
FITS: Fits = {
    INFINIBAND: _IN_COMMON,
    ROCE: _IN_COMMON,
    EFA: {"alltoall": Fit(147.8, 0.9), "ring": Fit(163.4, 1.0), "all_reduce": Fit(104.4, 1.0)},
    SLINGSHOT: {"alltoall": Fit(77.5, 0.45), "ring": Fit(47.1, 0.7), "all_reduce": Fit(31.6, 0.5)},
    TCP: {"alltoall": Fit(127.3, 0.9), "ring": Fit(94.5, 1.0), "all_reduce": Fit(133.9, 0.9)},
}
_LATENCIES_US = np.round(np.geomspace(15, 400, 67), 1)
_SHARES = np.round(np.arange(0.35, 1.001, 0.05), 2)
_CURVES = ("a100", "h100", "h200", "b200")
# Fitted to an RTX PRO 6000 Server (PCIe 5), whose typical error is 1.11: fixed time, k, shares with 8 devices.
_PCIE_LATENCY_US, _PCIE_BETWEEN = 2.9, 0.94
BRIDGE_GB_PER_S = 116.0  # bus bandwidth of two H100 PCIe with NVLink bridges (nccl #1161)
_PCIE_SHARES = {"alltoall": 0.30, "reduce_scatter": 0.33, "all_gather": 0.35, "all_reduce": 0.40}


@dataclass(frozen=True)
@checked
class Links:
    """Properties of the links between devices, in addition to the bandwidths on the datasheet: for example, the kind of
    network between hosts, measured bus bandwidths, and NVLink bridges.

    Attributes:
        network: kind of the network between hosts (`NETWORKS`).
        latency_factor: fixed times between hosts relative to those with an H100.
        network_busbw_gb_per_s: bus bandwidth of an all-reduce of 1 GiB over all devices of several hosts, as
            `all_reduce_perf` of nccl-tests prints it; None if it was not measured.
        host_busbw_gb_per_s: the same for an all-reduce over the devices of one host.
        bridge_gb_per_s: bus bandwidth between two devices with an NVLink bridge, if bridges join pairs; else None.
        typical: True if the curves are of a typical server, from which other servers with this GPU differ widely.
        hierarchical: True if all-to-alls and reduce-scatters first exchange within hosts, then between the devices with
            the same place on their hosts.
    """

    network: Annotated[str, Meta(pattern=f"^({'|'.join(NETWORKS)})$")] = INFINIBAND
    latency_factor: Speed = 1.0
    network_busbw_gb_per_s: Speed | None = None
    host_busbw_gb_per_s: Speed | None = None
    bridge_gb_per_s: Speed | None = None
    typical: bool = False
    hierarchical: bool = False


@dataclass(frozen=True)
class Network:
    """The network between hosts, with a formula for the times of collectives over this network.

    Attributes:
        kind: one of `NETWORKS`.
        card_gb_per_s: bandwidth of the network cards of a device, in one direction, GB/s.
        latency_factor: fixed times relative to those of the fits.
    """

    kind: str
    card_gb_per_s: float
    latency_factor: float = 1.0

    def ms(
        self, collective: str, size_bytes: FloatArray, ranks: int, hosts: int, fits: Fits | None = None
    ) -> FloatArray:
        """Predict the time in ms of a collective for each buffer size in `size_bytes`. The result has the same shape as
        `size_bytes`. `collective` is the name that NCCL has for the collective, such as "all_reduce". Buffer sizes are
        counted as in nccl-tests.

        `fits` replaces `FITS`.
        """
        growth, latency_ms, share = self._figures(collective, ranks, hosts, FITS if fits is None else fits)
        carried = size_bytes * carried_share(collective, ranks, hosts)
        return _with_losses(latency_ms, carried / (share * self.card_gb_per_s * _BYTES_PER_MS), growth.between)

    def measured(self, busbw_gb_per_s: float, ranks: int, hosts: int) -> "Network":
        """Return a copy of the network with the bandwidth that explains a measurement. The measurement is an all-reduce
        of 1 GiB with the bus bandwidth `busbw_gb_per_s`, which `all_reduce_perf` prints in GB/s. The all-reduce was
        between `ranks` devices on `hosts` hosts.
        """
        growth, latency_ms, share = self._figures(_ALL_REDUCE, ranks, hosts, FITS)
        taken_ms = LARGEST_BYTES * 2 * (ranks - 1) / ranks / (busbw_gb_per_s * _BYTES_PER_MS)
        bytes_ms = _bytes_ms(latency_ms, taken_ms, growth.between)
        carried = LARGEST_BYTES * carried_share(_ALL_REDUCE, ranks, hosts)
        return replace(self, card_gb_per_s=carried / (share * bytes_ms * _BYTES_PER_MS))

    def _figures(self, collective: str, ranks: int, hosts: int, fits: Fits) -> tuple[Growth, float, float]:
        """Return the parameters of the formula for a collective: the `Growth`, the fixed time in ms, and the share of
        the network bandwidth that large messages reach.
        """
        which = _family(collective)
        growth, fit = GROWTH[which], fits[self.kind][which]
        return (
            growth,
            fit.latency_us * _US * self.latency_factor * _size(which, ranks, hosts) ** growth.power,
            fit.share,
        )


def carried_share(collective: str, ranks: int, hosts: int) -> float:
    """Return a ratio for a collective: the bytes that pass the network card of a device, divided by the bytes in the
    buffer of the device. For example, the ratio of an all-to-all over 2 hosts is 0.5, because half of the buffer goes
    to the other host.

    A ring crosses each border between two hosts once, and an all-reduce is two rings; between two hosts NCCL's
    all-reduce takes trees instead.
    """
    if collective == _ALL_TO_ALL:
        return (hosts - 1) / hosts
    if collective == _ALL_REDUCE and hosts == _FEW_HOSTS:
        return hosts / ranks
    return (2 if collective == _ALL_REDUCE else 1) * (ranks - 1) / ranks * hosts / ranks


def _size(which: str, ranks: int, hosts: int) -> float:
    return hosts / _FEW_HOSTS if which == _ALL_REDUCE else ranks / _MANY_RANKS


def _with_losses(latency_ms: float, bytes_ms: FloatArray, between: float) -> FloatArray:
    total: FloatArray = latency_ms + bytes_ms + between * np.sqrt(latency_ms * bytes_ms)
    return total


def _bytes_ms(latency_ms: float, taken_ms: float, between: float) -> float:
    """Return the ms that the bytes of a collective take on the link, without the fixed time and without the loss of
    medium-sized messages. The collective takes `taken_ms` in total, and the fixed time is `latency_ms`. `between` is
    the factor k of the loss in the formula of this module. The result is at least 1 ns.

    This is the inverse of `_with_losses`. With L the latency and k the factor `between`, the result T solves
    L + T + k sqrt(L T) = taken_ms.
    """
    half = between * np.sqrt(latency_ms) / 2
    root = max(np.sqrt(half**2 + max(taken_ms - latency_ms, 0.0)) - half, 1e-3)
    return float(root**2)


class Point(NamedTuple):
    """A published time of a collective between hosts; sizes and names are as in nccl-tests."""

    machine: str
    network: str
    gpu: str
    collective: str
    ranks: int
    hosts: int
    card_gb_per_s: float
    size_bytes: float
    ms: float

    @property
    def latency_factor(self) -> float:
        """The fixed time of collectives with the GPU of this point, divided by the fixed time with newer GPUs. The
        result is 1.4 for an A100 and 1 for all other GPUs.
        """
        return OLDER_GPU if self.gpu.startswith("A100") else 1.0

    @property
    def inside_ms(self) -> float:
        """The predicted time in ms of the part of this collective that stays within one host. The time is interpolated
        between published times of the GPU. If no times are published for the GPU, published times of an H100 are used.
        """
        name = self.gpu.split()[0].lower()
        local = self.ranks // self.hosts
        size = self.size_bytes / (self.hosts if self.collective == _ALL_TO_ALL else 1)
        return float(curves_of(name if name in _CURVES else "h100")(self.collective, local, np.array([size]))[0])

    def predicted_ms(self, fits: Fits) -> float:
        """Predict the ms of this collective, with the fitted parameters in `fits` for the network that the collective
        used.
        """
        network = Network(self.network, self.card_gb_per_s, self.latency_factor)
        outside = network.ms(self.collective, np.array([self.size_bytes]), self.ranks, self.hosts, fits)
        return max(self.inside_ms, float(outside[0]))


@cache
def points() -> tuple[Point, ...]:
    """Return all published times of collectives between hosts, read from a file."""
    return tuple(
        Point(
            row["machine"],
            row["network"],
            row["gpu"],
            row["collective"],
            int(row["gpus_per_host"]) * int(row["hosts"]),
            int(row["hosts"]),
            float(row["card_gb_per_s"]),
            float(row["bytes"]),
            float(row["us"]) * _US,
        )
        for row in point_rows("between_hosts.csv")
    )


def fitted(known: Sequence[Point]) -> Fits:
    """Fit the formulas for the times of collectives to the published times in `known`. Return the fitted latency and
    share of the bandwidth (`Fit`) by kind of network and then by kind of collective, as a dict of dicts.

    Each fit minimises the mean error over machines. InfiniBand and RoCE share one fit. If a collective was not
    published for a network, the collective is assumed to be slower than on InfiniBand by the mean factor of the other
    collectives on that network.
    """
    fits: dict[tuple[str, str], Fit] = {}
    for which in GROWTH:
        for kind in NETWORKS:
            own = [one for one in known if _kind(one.network) == _kind(kind) and _family(one.collective) == which]
            if own:
                fits[kind, which] = _fit(which, own)
    for kind in NETWORKS:
        there = [which for which in GROWTH if (kind, which) in fits]
        factor = np.exp(
            np.mean([np.log(fits[kind, one].latency_us / fits[INFINIBAND, one].latency_us) for one in there])
        )
        for which in GROWTH.keys() - there:
            usual = fits[INFINIBAND, which]
            fits[kind, which] = Fit(round(usual.latency_us * float(factor), 1), usual.share)
    return {kind: {which: fits[kind, which] for which in GROWTH} for kind in NETWORKS}


def _kind(network: str) -> str:
    return INFINIBAND if network == ROCE else network


def _family(collective: str) -> str:
    return collective if collective in GROWTH else _RING


def _fit(which: str, known: Sequence[Point]) -> Fit:
    """Return the latency and the share of the bandwidth with which predictions are nearest to the published times of
    one kind of collective. Nearest means that the mean |ln(predicted / published)| is smallest, with equal weight for
    every machine.
    """
    latency_us, share = (grid.ravel() for grid in np.meshgrid(_LATENCIES_US, _SHARES, indexing="ij"))
    sizes = np.array([_size(which, one.ranks, one.hosts) for one in known])
    factor = np.array([one.latency_factor for one in known])
    carried = np.array([one.size_bytes * carried_share(one.collective, one.ranks, one.hosts) for one in known])
    card = np.array([one.card_gb_per_s for one in known]) * _BYTES_PER_MS
    inside, ms = np.array([one.inside_ms for one in known]), np.array([one.ms for one in known])
    latency_ms = latency_us[:, None] * _US * factor * sizes ** GROWTH[which].power
    outside = _with_losses(latency_ms, carried / (share[:, None] * card), GROWTH[which].between)
    error = np.abs(np.log(np.maximum(outside, inside) / ms))  # (fits, points)
    machines = np.array([one.machine for one in known])
    by_machine = [error[:, machines == machine].mean(axis=1) for machine in dict.fromkeys(machines)]
    best = int(np.mean(by_machine, axis=0).argmin())
    return Fit(float(latency_us[best]), float(share[best]))


class MachineError(NamedTuple):
    """The prediction error for one collective between hosts on one machine with published times, such as AWS p5. The
    error is a typical factor: 1.2 means that predicted times are typically too large or too small by this factor.

    A typical factor is e to the mean of |ln(predicted / published)|.

    Attributes:
        machine, collective: names.
        typical: typical factor between predicted and published times.
        left_out: the same if the fit is to the other machines only; None if no other machine has this collective.
    """

    machine: str
    collective: str
    typical: float
    left_out: float | None


def errors(network: str) -> Iterator[MachineError]:
    """Yield the prediction errors of each collective on each published machine that has this kind of network."""
    own = [one for one in points() if _kind(one.network) == _kind(network)]
    for machine, collective in dict.fromkeys((one.machine, one.collective) for one in own):
        which = _family(collective)
        on_machine = [one for one in own if (one.machine, one.collective) == (machine, collective)]
        others = [one for one in own if one.machine != machine and _family(one.collective) == which]
        left_out = {kind: {which: _fit(which, others)} for kind in NETWORKS} if others else None
        typical = [None if fits is None else _typical_of(on_machine, fits) for fits in (FITS, left_out)]
        assert typical[0] is not None
        yield MachineError(machine, collective, typical[0], typical[1])


def _typical_of(points: Sequence[Point], fits: Fits) -> float:
    return typical_factor([point.predicted_ms(fits) for point in points], [point.ms for point in points])


def typical_factor(predicted: Sequence[float] | FloatArray, published: Sequence[float] | FloatArray) -> float:
    """Return exp(mean |ln(predicted / published)|): the typical factor by which predictions are too
    large or too small.
    """
    return float(np.exp(np.abs(np.log(predicted) - np.log(published)).mean()))


class PcieError(NamedTuple):
    """The prediction error for one collective over PCIe, with one number of devices, on one machine with published
    times, such as RTX 5090. The error is a typical factor: 1.2 means that predicted times are typically too large or
    too small by this factor.

    Attributes:
        machine, collective: names.
        devices: number of devices.
        typical: typical factor between predicted and published times, with the datasheet's bandwidth of the links.
        measured: the same with the bandwidth that the machine reached with the largest messages.
    """

    machine: str
    collective: str
    devices: int
    typical: float
    measured: float


def pcie_errors() -> Iterator[PcieError]:
    """Yield the prediction errors of each collective, with each number of devices, on each published PCIe machine
    without NVLink bridges.
    """
    rows = [row for row in point_rows("pcie.csv") if row["bridges"] != "yes"]
    groups = dict.fromkeys((row["machine"], row["collective"], row["gpus"], row["link_gb_per_s"]) for row in rows)
    for machine, collective, gpus, link in groups:
        on_machine = [
            row for row in rows if (row["machine"], row["collective"], row["gpus"]) == (machine, collective, gpus)
        ]
        size_bytes, ms = (np.array([float(row[name]) for row in on_machine]) for name in ("bytes", "us"))
        ms, devices = ms * _US, int(gpus)
        usual, largest = float(link), int(size_bytes.argmax())
        own = pcie_link(collective, float(size_bytes[largest]), float(ms[largest]), devices)
        each = (typical_factor(pcie_ms(collective, size_bytes, devices, one), ms) for one in (usual, own))
        yield PcieError(machine, collective, devices, *each)


def pcie_link(collective: str, size_bytes: float, ms: float, devices: int) -> float:
    """Return the bandwidth of the PCIe link of a device, in GB/s, that explains a time of a collective: with this
    bandwidth, `pcie_ms` predicts the time `ms`.
    """
    latency_ms, bytes_ms = _pcie_times(collective, size_bytes, devices, 1.0)
    return float(bytes_ms) / _bytes_ms(latency_ms, ms, _PCIE_BETWEEN)


def pcie_curves(link_gb_per_s: float) -> Curves:
    """Return the predicted times of collectives over PCIe as `Curves`, for links of `link_gb_per_s` GB/s.
    The formula was fitted to an RTX PRO 6000 Server.
    """
    sizes = np.array([512.0 * 2**power for power in range(21)])
    names = "alltoall", "all_reduce", "reduce_scatter", "all_gather"
    return Curves(
        sizes, {name: {count: pcie_ms(name, sizes, count, link_gb_per_s) for count in (2, 4, 8)} for name in names}
    )


def pcie_ms(collective: str, size_bytes: FloatArray, devices: int, link_gb_per_s: float) -> FloatArray:
    """Predict the ms of a collective over PCIe, from `link_gb_per_s`, the bandwidth of a device's PCIe link in GB/s."""
    return _with_losses(*_pcie_times(collective, size_bytes, devices, link_gb_per_s), _PCIE_BETWEEN)


def _pcie_times(
    collective: str, size_bytes: FloatArray | float, devices: int, link_gb_per_s: float
) -> tuple[float, FloatArray]:
    """Return two terms of the predicted time of a collective over PCIe: the fixed time in ms, and the ms that the bytes
    take on the link. The second term has the same shape as `size_bytes`.
    """
    times = 2 if collective == _ALL_REDUCE else 1
    latency_ms = times * _PCIE_LATENCY_US * _US * devices**0.7
    rate = _PCIE_SHARES[collective] * (devices / 8) ** -0.3 * link_gb_per_s * _BYTES_PER_MS
    return latency_ms, np.asarray(times * size_bytes * (devices - 1) / devices / rate)
