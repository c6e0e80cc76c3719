"""Stashed weights: tables that TorchRec copies from GPUs to host memory while the dense network runs."""

import logging
from collections.abc import Sequence
from copy import deepcopy

from torchrec.distributed.planner.types import Storage
from torchrec.distributed.planner.types import Topology as TorchRecTopology

from neuroshard.plumbing.schema import readable_bytes
from neuroshard.torchrec.parameters import Parameter

_log = logging.getLogger(__name__)


def without_stashed(topology: TorchRecTopology, parameters: Sequence[Parameter]) -> TorchRecTopology:
    """Subtract the copies of stashed weights from the host memory that GPUs have left; warn if they do not fit.

    A host has a copy of the stashed weights of its GPUs. As no plan is known, that is counted as all stashed weights,
    or as the memory of its GPUs if they are smaller. GPUs hold these weights in the lookup, so that their memory counts
    as before.
    """
    weights = [parameter.weights for parameter in parameters if parameter.is_stashed]
    if not weights or topology.compute_device != "cuda":
        return topology
    total, left, short = sum(its.numel() * its.element_size() for its in weights), deepcopy(topology), 0
    for device in left.devices:
        copied = min(-(-total // int(topology.local_world_size)), device.storage.hbm)
        short = max(short, copied - device.storage.ddr)
        device.storage = Storage(device.storage.hbm, max(device.storage.ddr - copied, 0), device.storage.ssd)
    if short > 0:
        _log.warning(
            "%d table(s) have stash_weights=True, for which hosts lack up to %s of memory; stash fewer tables, or give "
            "the topology more ddr_cap",
            len(weights),
            readable_bytes(short * int(topology.local_world_size)),
        )
    return left
