"""Stashed weights: weights of tables that TorchRec copies from GPUs to host memory while the dense network runs."""

import logging
from collections.abc import Sequence
from copy import deepcopy

from torchrec.distributed.planner.types import Storage
from torchrec.distributed.planner.types import Topology as TorchRecTopology

from neuroshard.plumbing.messages import Message, number_of
from neuroshard.plumbing.schema import readable_bytes
from neuroshard.torchrec.parameters import Parameter

_log = logging.getLogger(__name__)


def without_stashed(topology: TorchRecTopology, parameters: Sequence[Parameter]) -> TorchRecTopology:
    """Return the topology with the host memory that is free after stashed weights are subtracted. Stashed weights are
    weights that TorchRec copies from GPUs to host memory. Warn if these copies do not fit in the host memory.

    Each host has a copy of the stashed weights of its GPUs. No plan is known yet, so all stashed weights count for each
    host, but at most the memory of the host's GPUs. The GPU memory does not change, because GPUs need the stashed
    weights during lookups.
    """
    weights = [parameter.weights for parameter in parameters if parameter.is_stashed]
    if not weights or topology.compute_device != "cuda":
        return topology
    total, left, short = sum(weight.numel() * weight.element_size() for weight in weights), deepcopy(topology), 0
    for device in left.devices:
        copied = min(-(-total // int(topology.local_world_size)), device.storage.hbm)
        short = max(short, copied - device.storage.ddr)
        device.storage = Storage(device.storage.hbm, max(device.storage.ddr - copied, 0), device.storage.ssd)
    if short > 0:
        lacking = readable_bytes(short * int(topology.local_world_size))
        _log.warning(
            Message(
                "stashed-weights-over-memory",
                f"the weights of {number_of(len(weights), 'table')} with stash_weights=True do not fit in host memory",
                limit=f"a host lacks up to {lacking} of memory",
                remedy="Stash fewer tables, or set a larger ddr_cap in the topology",
            )
        )
    return left
