"""Cost models of a GPU that are computed from the GPU's datasheet, and comparisons of these models with published
times.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from neuroshard.cost.cost import BACKWARD, FORWARD, INPUT
from neuroshard.models.cost_models import CostModels
from neuroshard.models.host_tiers import HostLink
from neuroshard.models.interface import PartModel, SumModel
from neuroshard.models.kernels import KernelModels
from neuroshard.models.network import Links, errors, pcie_curves, pcie_errors
from neuroshard.models.published_points import Curves, KernelPoint, Widths, curves_of, kernel_points, rising
from neuroshard.models.roofline import BAG_NS, FORWARD_CALL_MS, RooflineComm, RooflineCompute, datasheet_of
from neuroshard.models.trust import Margin
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.errors import UserError, check_name
from neuroshard.plumbing.grouping import grouped
from neuroshard.tasks.memory import STATE_FLOATS
from neuroshard.words.model_choice import INFINIBAND

_PCIE = "pcie"  # value of `exchanges` for GPUs without curves of their own


def roofline(
    source: str,  # noqa: ARG001  # for readers of the config
    memory_gb_per_s: float,
    network_gb_per_s: float,
    host_link_gb_per_s: float,
    exchanges: str,
    network: str = INFINIBAND,
    network_latency_factor: float = 1.0,
    kernels_published: bool = False,
    devices_per_host: int = 8,
    cache_lookup_ns: float = 1.9,
    cache_call_ms: float = 0.12,
    optimizer: str = "sgd",
    more: Sequence[PartModel] = (),
) -> CostModels:
    """Return cost models for one type of GPU, computed from the bandwidths and other figures of the GPU's datasheet.

    Bandwidths are in GB/s (10^9 bytes per second). Bandwidths of links and networks are in one direction.

    Args:
        source: source of the figures, for readers of the file.
        memory_gb_per_s: bandwidth of the GPU's memory, in GB/s.
        network_gb_per_s: bandwidth of the network card of a GPU, in one direction, in GB/s.
        host_link_gb_per_s: bandwidth of PCIe to the host, in one direction, in GB/s by the datasheet.
        exchanges: name of the GPU in `points/nccl.csv`, such as h100, from whose collectives exchange times are
            interpolated; or pcie, for the typical times of GPUs that exchange over PCIe.
        network: infiniband | roce | efa | slingshot | tcp: kind of network between hosts.
        network_latency_factor: fixed times of collectives between hosts, relative to those with H100s.
        kernels_published: True if `points/kernels.csv` has kernel times of this GPU; False takes the memory utilisation
            of an H100.
        devices_per_host: number of GPUs that fast links join, if the topology does not say.
        cache_lookup_ns: additional time of a lookup in a table behind a cache, in ns; measured were 1.4 with one table
            (H100 PCIe) and 2.4 with ten tables (H100 SXM).
        cache_call_ms: additional time of a kernel call with a cache, in ms, for about ten more kernels.
        optimizer: sgd | rowwise_adagrad | adam: optimizer whose states the update reads and writes.
        more: further parts of a step whose costs count.
    """
    check_name("optimizer", optimizer, STATE_FLOATS)
    host = HostLink(host_link_gb_per_s, cache_lookup_ns, cache_call_ms)
    widths = Widths.of(kernel_points(), FORWARD_CALL_MS, BAG_NS)
    compute = RooflineCompute(memory_gb_per_s, host, optimizer, widths, kernels_published)
    over_pcie = exchanges == _PCIE
    forward = RooflineComm(
        pcie_curves(host_link_gb_per_s) if over_pcie else curves_of(exchanges),
        network_gb_per_s,
        devices_per_host,
        links=Links(network, network_latency_factor, typical=over_pcie),
    )
    before = replace(forward, rounds=2)  # one all-to-all for the number of indices, then one for the indices
    return CostModels(compute.of_calls, forward, replace(forward, gathers=True), None, input=before, more=tuple(more))


def with_host_tiers(models: CostModels, sheet: str) -> CostModels:
    """Return a copy of the models that also predicts kernel calls of tables in host memory.
    The speeds of the link to the host and of the cache come from the datasheet `sheet`.

    Calls that the models know already stay as they are.

    Args:
        models: models with a compute model that is a sum over tables.
        sheet: name of a datasheet, such as "roofline:h100".

    Raises:
        UserError: the datasheet does not exist, or the compute model is not a sum over tables.
    """
    figures = datasheet_of(CostModels.load(sheet).compute)
    if figures is None or figures.host is None:
        raise UserError(
            "host-tiers-not-datasheet",
            f"host_tiers is {sheet!r}, which is not an analytic cost model of a GPU",
            remedy="Set host_tiers to an analytic cost model of a GPU, such as roofline:h100",
        )
    known = models.compute
    if not isinstance(known, SumModel):
        raise UserError(
            "host-tiers-not-sum",
            "the compute model is not a sum over tables",
            limit="host_tiers needs a compute model that is a sum over tables",
            remedy="Leave out host_tiers, or choose another compute model",
        )
    return models.wrapped(compute=replace(KernelModels.of(known), host=figures.host))


def exchanges_of(sheet: str) -> tuple[dict[str, RooflineComm], Margin]:
    """Return the exchange models of a datasheet, and the error margin of these models.
    There are models for the forward pass, the backward pass and the input dist, by name. The margin is estimated by
    cross-validation on published times.

    Each published point between two others is predicted from the other points.

    Args:
        sheet: name of the datasheet, such as "roofline:h100".

    Raises:
        UserError: the datasheet does not exist.
    """
    models = CostModels.load(sheet)
    known = {FORWARD: models.forward, BACKWARD: models.backward, INPUT: models.input}
    exchanges = {part: model for part, model in known.items() if isinstance(model, RooflineComm)}
    if len(exchanges) < len(known):
        raise UserError(
            "exchanges-not-datasheet",
            f"exchanges is {sheet!r}, which is not an analytic cost model of a GPU",
            remedy="Set exchanges to an analytic cost model of a GPU, such as roofline:h100",
        )
    curves = exchanges[FORWARD].curves
    published, left_out = np.hstack([(one.published, one.left_out) for one in _of_curves(curves)])
    seen = np.isfinite(left_out)
    return exchanges, Margin.fitted(left_out[seen], np.zeros(seen.sum()), published[seen])


@dataclass(frozen=True, eq=False)
class Check:
    """A group of P published times of kernel calls or exchanges, and the predicted times for the same calls or
    exchanges, in ms.

    Attributes:
        group: name of the group, such as "alltoall, 8 devices".
        what: (P,) description of each point.
        published, predicted: (P,) ms.
        left_out: (P,) ms as predicted from the other points; NaN for the first and last point of a curve, and for a
            point from which a figure of the datasheet was derived.
    """

    group: str
    what: tuple[str, ...]
    published: FloatArray
    predicted: FloatArray
    left_out: FloatArray

    def __str__(self) -> str:
        seen, left_out = (np.abs(ms / self.published - 1) for ms in (self.predicted, self.left_out))
        text = f"{len(self.what)} published, {seen.mean():.1%} error on average, {seen.max():.1%} at most"
        if np.isnan(left_out).all():
            return f"{text}; no test: the datasheet's figures were set by such points"
        return f"{text}; from the other points {np.nanmean(left_out):.1%}, {np.nanmax(left_out):.1%}"


def checks(models: CostModels) -> tuple[Check, ...]:
    """Compare predicted times with published times, and return one `Check` for each group of published times.
    Examples of groups are the backward kernel calls of tables in device memory on the datasheet's GPU, and the
    all-to-alls between 8 devices of one host.
    """
    compute, comm = datasheet_of(models.compute), models.forward
    assert compute is not None
    assert isinstance(comm, RooflineComm)
    assert models.sheet is not None
    inside = () if comm.links.typical else _of_curves(comm.curves)
    return (*_of_kernels(compute, models.sheet), *inside)


def exams(models: CostModels) -> dict[str, str]:
    """Return a dict of texts about the errors of predicted exchange times, which are compared with published times of
    several machines. Each text is about one collective on one machine. A key is, for example, "all_reduce between
    hosts, efa, AWS p5". For exchanges over PCIe, each text is about one number of devices, such as "all_reduce over
    PCIe, RTX 5090, 4 devices".

    Between hosts: every machine with this kind of network. Over PCIe: every machine, with one measured bandwidth of the
    machine. A typical factor is the geometric mean of the factors between predicted and published times.
    """
    comm = models.forward
    assert isinstance(comm, RooflineComm)
    found = {}
    for one in errors(comm.links.network):
        test = "no test: one such machine" if one.left_out is None else f"fitted to other machines {one.left_out:.2f}"
        found[f"{one.collective} between hosts, {comm.links.network}, {one.machine}"] = (
            f"typical factor {one.typical:.2f}; {test}"
        )
    if comm.links.typical:
        for error in pcie_errors():
            found[f"{error.collective} over PCIe, {error.machine}, {error.devices} devices"] = (
                f"typical factor {error.typical:.2f}; with the machine's bandwidth {error.measured:.2f}"
            )
    return found


def _of_kernels(model: RooflineCompute, sheet: str) -> list[Check]:
    points_of_gpu = (point for point in kernel_points() if point.sheet == sheet)
    groups = grouped(
        points_of_gpu,
        lambda point: f"{'backward' if point.backward else 'forward'}, {point.tier_assignment.tier.value}",
    )
    checks = []
    for group, points in groups.items():
        times = [(point.ms, model.point_ms(point), _left_out_ms(model, point)) for point in points]
        what = tuple(f"{point.dim} columns, {point.lookups:,.0f} lookups, {point.optimizer}" for point in points)
        checks.append(Check(group, what, *np.array(times).T))
    return checks


def _left_out_ms(model: RooflineCompute, point: KernelPoint) -> float:
    others = (one for one in kernel_points() if one is not point)
    rest = Widths.of(others, FORWARD_CALL_MS, BAG_NS)
    return replace(model, widths=rest).point_ms(point) if rest != model.widths else float("nan")


def _of_curves(curves: Curves) -> list[Check]:
    checks = []
    for collective, by_count in curves.points.items():
        for count, published in by_count.items():
            left = np.full(len(curves.sizes), np.nan)
            for i in range(1, len(left) - 1):
                without = {collective: {count: rising(np.delete(published, i))}}
                left[i] = Curves(np.delete(curves.sizes, i), without)(collective, count, curves.sizes[i : i + 1])[0]
            what = tuple(f"{size:,.0f} bytes" for size in curves.sizes)
            predicted = curves(collective, count, curves.sizes)
            checks.append(Check(f"{collective}, {count} devices", what, published, predicted, left))
    return checks
