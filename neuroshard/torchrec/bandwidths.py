"""Use the bandwidths of a TorchRec topology in NeuroShard's analytic cost models of exchanges, such as all-to-alls."""

import logging
from dataclasses import replace

from torchrec.distributed.planner.constants import CROSS_NODE_BANDWIDTH, INTRA_NODE_BANDWIDTH
from torchrec.distributed.planner.types import Topology as TorchRecTopology

from neuroshard.bundles import ROOFLINE
from neuroshard.models import CostModels
from neuroshard.models.roofline import RooflineComm
from neuroshard.models.simulator import Simulator
from neuroshard.plumbing.messages import Message

_BYTES_PER_MS_OF_GB_PER_S = 1e6
_BYTES_PER_MS_OF_GIB_PER_S = 1024**3 / 1000  # TorchRec's constants are in GiB/s
# Bandwidth of a device's links within a host, both directions together, in GiB/s, by the name of the datasheet.
_LINKS = {"a100": 600.0, "h100": 900.0, "h100_meta": 900.0, "h200": 900.0, "b200": 1800.0}
_log = logging.getLogger(__name__)


def named_bandwidths(topology: TorchRecTopology) -> dict[str, float]:
    """Return the bandwidths of a topology that differ from TorchRec's defaults, in bytes per ms, by name."""
    comms = topology.comms_bandwidths
    named = {"inter_host_bw": comms.inter_host_bw, "intra_host_bw": comms.intra_host_bw}
    defaults = {"inter_host_bw": CROSS_NODE_BANDWIDTH, "intra_host_bw": INTRA_NODE_BANDWIDTH}
    return {name: float(value) for name, value in named.items() if value != defaults[name]}


def with_bandwidths(simulator: Simulator, topology: TorchRecTopology) -> Simulator:
    """Return a simulator whose analytic exchange models use the bandwidths that are set in a topology.

    `inter_host_bw` is the bandwidth of each device's network card, in one direction. `intra_host_bw` is the bandwidth
    of a device's links within a host, in both directions; it scales the published exchange times of the datasheet.
    Bandwidths that equal TorchRec's defaults have no effect. A warning names the bandwidths that the models cannot use,
    because measured models have the bandwidths of the machine that they were measured on.
    """
    named, models = named_bandwidths(topology), simulator.models
    links = _LINKS.get((models.name or "").removeprefix(ROOFLINE))
    if links is None and (ignored := named.pop("intra_host_bw", None)):
        _warn("intra_host_bw", ignored, models)
    changes = {}
    if "inter_host_bw" in named:
        changes["network_gb_per_s"] = named["inter_host_bw"] / _BYTES_PER_MS_OF_GB_PER_S
    if "intra_host_bw" in named and links is not None:
        changes["speed"] = named["intra_host_bw"] / _BYTES_PER_MS_OF_GIB_PER_S / links
    if not changes:
        return simulator

    def named_links(model: RooflineComm) -> RooflineComm:
        """Return a copy of an analytic cost model of exchanges, with the bandwidths that TorchRec's topology sets."""
        network = changes.get("network_gb_per_s", model.network_gb_per_s)
        return replace(model, network_gb_per_s=network, speed=model.speed * changes.get("speed", 1.0))

    changed = models.with_links(named_links)
    if changed is models:
        for name, value in named.items():
            _warn(name, value, models)
        return simulator
    return Simulator(changed, simulator.count_input)


def _warn(name: str, value: float, models: CostModels) -> None:
    _log.warning(
        Message(
            "topology-bandwidth-unused",
            f"{name}={value:.4g} bytes per ms has no effect",
            where="topology",
            limit=f"the cost models {models.label!r} have bandwidths of their own for exchanges",
            remedy="Pass cost models that were measured on links of this bandwidth, or analytic cost models of your "
            "GPU, such as models='roofline:h100'",
        )
    )
