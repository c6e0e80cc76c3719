"""Datasheets by their figures: cost models of one kind of GPU, corrected by what a user measured."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from neuroshard.models.by_form import ComputeByForm
from neuroshard.models.calibration import Calibration, with_exchanges, with_kernels
from neuroshard.models.cost_models import CostModels
from neuroshard.models.host_tiers import HostLink
from neuroshard.models.interface import PartModel, SumModel
from neuroshard.models.published_points import Widths, curves_of, kernel_points
from neuroshard.models.roofline import FORWARD_CALL_MS, RooflineComm, RooflineCompute
from neuroshard.plumbing.errors import UserError, unknown_name
from neuroshard.tasks.memory import STATE_FLOATS


def roofline(
    source: str,  # noqa: ARG001  # for readers of the config
    memory_gb_per_s: float,
    network_gb_per_s: float,
    host_link_gb_per_s: float,
    exchanges: str,
    exchange_speed: float = 1.0,
    kernels_published: bool = False,
    devices_per_host: int = 8,
    cache_lookup_ns: float = 2.2,
    cache_call_ms: float = 0.12,
    optimizer: str = "sgd",
    calibration: str | None = None,
    more: Sequence[PartModel] = (),
) -> CostModels:
    """The models of one kind of device; bandwidths in GB/s (10^9 bytes), links and network in one direction.

    Args:
        source: where the figures stand.
        memory_gb_per_s: from the device's memory.
        network_gb_per_s: one network card for each GPU.
        host_link_gb_per_s: PCIe to the host, by the datasheet.
        exchanges: the GPU in `points/nccl.csv` whose collectives these are.
        exchange_speed: of the links, beside that GPU's; other than 1 is a guess.
        kernels_published: whether `points/kernels.csv` has this GPU's; else an H100's utilisation stands in.
        devices_per_host: that fast links join where the topology doesn't say.
        cache_lookup_ns: of a lookup behind a cache: 1.8 with one table (H100 PCIe), 2.7 with ten (SXM).
        cache_call_ms: of a call behind a cache: some ten kernels more than without one.
        optimizer: sgd | rowwise_adagrad | adam: whose states the update reads and writes.
        calibration: a directory that `neuroshard calibrate` wrote, whose points correct all this.
        more: other parts of a step.
    """
    if optimizer not in STATE_FLOATS:
        raise unknown_name("optimizer", optimizer, STATE_FLOATS)
    host = HostLink(host_link_gb_per_s, cache_lookup_ns, cache_call_ms)
    widths = Widths.of(kernel_points(), FORWARD_CALL_MS)
    compute = RooflineCompute(memory_gb_per_s, host, optimizer, widths, kernels_published)
    forward = RooflineComm(curves_of(exchanges), network_gb_per_s, devices_per_host, speed=exchange_speed)
    if calibration is not None:
        measured = Calibration.load(Path(calibration))
        compute, forward = with_kernels(compute, measured.kernels), with_exchanges(forward, measured.exchanges)
    before = replace(forward, rounds=2)  # the number of indices, then the indices
    return CostModels(compute, forward, replace(forward, gathers=True), None, input=before, more=tuple(more))


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
