"""The input of the published search: all shards, the devices, and the predicted costs."""

from collections.abc import Callable
from dataclasses import dataclass

from neuroshard.plumbing.arrays import FloatArray, IntArray
from neuroshard.stages.search.published.shard_table import ComputeHead, ShardTable

# The predicted costs of n plans, (n,) ms, from the compute time of the shards on each device, (n, D) ms, and the units
# that each device sends for each sample, (n, D).
PlanCosts = Callable[[FloatArray, FloatArray], FloatArray]


@dataclass(frozen=True, eq=False)
class PlacementProblem:
    """What is to be placed on D devices, and the cost of it.

    Attributes:
        shards: every shard that the search may use.
        head: the last layer of the compute model.
        memory_bytes: (D,) memory of each device.
        fixed_ms: (D,) compute time of the tables that are on each device already.
        plan_costs: predicts the costs of plans.
    """

    shards: ShardTable
    head: ComputeHead
    memory_bytes: IntArray
    fixed_ms: FloatArray
    plan_costs: PlanCosts

    @property
    def num_devices(self) -> int:
        """D, the number of devices."""
        return len(self.memory_bytes)
