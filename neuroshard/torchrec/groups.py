"""Sharding groups of TorchRec's DMPCollection: each group has all tables, and weights are averaged over the groups."""

from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from torchrec.distributed.planner.types import Topology as TorchRecTopology

from neuroshard.cost.loads import Loads, Traffic
from neuroshard.layouts import are
from neuroshard.models import CostModels
from neuroshard.models.interface import SumModel
from neuroshard.models.kernels import KernelModels
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.errors import UserError
from neuroshard.tasks.task import Task
from neuroshard.torchrec.pods import check_sizes, ranks_per_pod
from neuroshard.words.collective import Collective


@dataclass(frozen=True)
class Groups:
    """A division of the ranks of a job into sharding groups of equal size.

    Attributes:
        job: the topology of all ranks.
        num_groups: number of groups; each group has all tables.
        sync_steps: number of steps between two averagings of the groups' weights.
        use_inter_host_allreduce: as in DMPCollection. True: a group consists of successive ranks, and the ranks with
            the same shards are far apart. False: the ranks with the same shards are successive, and a group has one
            rank of each such run.
        chosen: True if the planner chose the number of groups by cost.
    """

    job: TorchRecTopology
    num_groups: int = 1
    sync_steps: int = 1
    use_inter_host_allreduce: bool = False
    chosen: bool = False

    def __post_init__(self) -> None:
        if self.num_groups < 1 or self.job.world_size % self.num_groups:
            raise UserError(
                "groups-number-not-divisor",
                f"num_groups is {self.num_groups}",
                limit=f"the number of groups must divide the job's {self.job.world_size} ranks",
                remedy=f"Set num_groups to a divisor of {self.job.world_size}, or to 'auto'",
            )
        if self.sync_steps < 1:
            raise UserError(
                "groups-sync-steps-low",
                f"sync_steps is {self.sync_steps}",
                limit="the minimum is 1",
                remedy="Set sync_steps to 1 or more",
            )
        check_sizes(self.job)
        if not self._has_equal_parts_of(self.job.local_world_size):
            host = self.job.local_world_size
            number, goal = "groups", "to a number that"
            if self.use_inter_host_allreduce:
                number, goal = "ranks in a group", f"such that {self.job.world_size} / num_groups"
            raise UserError(
                "groups-hosts-unequal",
                f"num_groups={self.num_groups} divides the {host} devices of a host unequally between groups",
                limit=f"the number of {number} must divide {host}, or be a multiple of {host}",
                remedy=f"Set num_groups {goal} divides {host} or is a multiple of {host}, or set 'auto'",
            )

    @property
    def sharding_group_size(self) -> int:
        """The number of ranks in each group."""
        return int(self.job.world_size // self.num_groups)

    @property
    def host_size(self) -> int:
        """The number of ranks on one host that belong to the same group."""
        return self._among(self.job.local_world_size)

    @property
    def node_group_size(self) -> int:
        """The number of ranks over which TorchRec shards a `table_row_wise` table.
        These ranks belong to the same group, and fast links join them.

        The number is the same in the plan's topology and in `arguments`, with which DMPCollection runs the plan.
        """
        return self._among(self._joined)

    @property
    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of TorchRec's DMPCollection that describe the groups, as a dictionary by name.
        The other arguments, such as the model and the plan, do not depend on the groups.
        """
        return {
            "world_size": self.job.world_size,
            "sharding_group_size": self.sharding_group_size,
            "node_group_size": self.node_group_size,
            "use_inter_host_allreduce": self.use_inter_host_allreduce,
        }

    @property
    def described(self) -> tuple[int | bool, ...]:
        """The settings of the sharding groups, as a tuple of four values; a plan depends on all of these settings.
        The values are `num_groups`, `sync_steps`, `use_inter_host_allreduce`, and whether the planner chose the number
        of groups.
        """
        return self.num_groups, self.sync_steps, self.use_inter_host_allreduce, self.chosen

    @property
    def topology(self) -> TorchRecTopology:
        """The topology of one sharding group, which is a set of ranks that together have all tables.
        Every group has the same shards on its device number i. Therefore, the memory of device i in this topology is
        the smallest memory that device number i has in any group.
        """
        if self.num_groups == 1 and self.job.intra_group_size == self._joined:
            return self.job
        topology: Any = deepcopy(self.job)
        topology._world_size, topology._local_world_size = self.sharding_group_size, self.host_size
        topology._intra_group_size = self.node_group_size
        topology._pod_size = self.node_group_size // self.host_size if self.job._pod_size else None
        topology._devices = [topology._devices[rank] for rank in range(self.sharding_group_size)]
        for rank, device in enumerate(topology._devices):
            storages = [self.job.devices[copy].storage for copy in self.copies_of(rank)]
            for memory in ("hbm", "ddr", "ssd"):
                setattr(device.storage, memory, min(getattr(storage, memory) for storage in storages))
        return topology

    def copies_of(self, rank: int) -> range:
        """Return the ranks of the job that have the same shards as rank number `rank` of a group.
        The result has one rank of each group, because each group has a copy of all shards.
        """
        if self.use_inter_host_allreduce:
            return range(rank, self.job.world_size, self.sharding_group_size)
        return range(rank * self.num_groups, (rank + 1) * self.num_groups)

    def counted(self, models: CostModels, task: Task) -> CostModels:
        """Return cost models that count the synchronisation of the groups as a part of the kernel times.
        In a synchronisation, the groups average their weights and optimizer states. This happens once in `sync_steps`
        steps, and the time is spread equally over these steps.

        A synchronisation is an all-reduce, over the groups, of all weights and optimizer state of a device's shards.
        The time per byte is computed for an equal share of the bytes; devices with more bytes take longer.
        Data-parallel tables add nothing, because their gradients are averaged in every step.
        """
        compute = models.compute
        if self.num_groups == 1 or not self.counts(models) or not isinstance(compute, SumModel):
            return models
        even = float(task.memory.state_bytes(task.loads).sum()) / self.sharding_group_size
        ms_per_byte = self._sync_ms(models, even, task.batch_size) / even / self.sync_steps

        def adds(loads: Loads) -> FloatArray:
            """Return the ms per step that the groups take to average the weights and the optimizer state of each of n
            shards (`loads`), (n,); 0 for shards of data-parallel tables.
            """
            copied = are(loads, lambda layout: layout.dense)
            return np.where(copied, 0, task.memory.state_bytes(loads) * ms_per_byte)

        kernels = KernelModels.of(compute)
        return models.wrapped(compute=replace(kernels, adds=(*kernels.adds, adds)))

    def counts(self, models: CostModels) -> bool:
        """Return True if the cost models can predict the time that the groups take to average their weights."""
        knows = Collective.ALL_REDUCE in models.backward.collectives and isinstance(models.compute, SumModel)
        return knows and models.num_devices in (None, self.num_groups)

    def _sync_ms(self, models: CostModels, size_bytes: float, batch_size: int) -> float:
        """Predict the ms of an all-reduce between the groups.
        One rank of each group takes part, and each of these ranks has `size_bytes` bytes.
        """
        given = np.zeros((1, self.num_groups, len(Collective)))
        given[..., Collective.ALL_REDUCE] = size_bytes
        fast = self._copies_among(self._joined)
        traffic = Traffic(given, np.array([batch_size]), fast if fast < self.num_groups else None)
        return float(models.backward.predict(traffic, np.zeros((1, self.num_groups))).max())

    @property
    def _joined(self) -> int:
        """The number of successive ranks of the job that are regarded as joined by fast links: a pod or a host.
        A pod consists of hosts joined by fast links. If the groups divide every pod into equal parts, the result is the
        number of ranks in a pod. Otherwise, it is the number of ranks on a host.

        With unequal parts, successive ranks of a sharding group may be in two pods, and the slower link counts.
        """
        pod = ranks_per_pod(self.job)
        return pod if self._has_equal_parts_of(pod) else int(self.job.local_world_size)

    def _has_equal_parts_of(self, ranks: int) -> bool:
        """Return True if the groups divide each block of `ranks` successive ranks, such as each host, equally.

        For example, each host of 8 ranks has 4 ranks of one group and 4 ranks of another group. The number of groups
        must divide `ranks`, or be a multiple of `ranks`. If `use_inter_host_allreduce` is True, this holds for the
        number of ranks in a group instead.
        """
        number = self.sharding_group_size if self.use_inter_host_allreduce else self.num_groups
        return ranks % number == 0 or number % ranks == 0

    def _among(self, ranks: int) -> int:
        """Return how many ranks of one group are in a block of `ranks` successive ranks, such as a host or a pod.
        For example, if a host of 8 ranks is divided equally between 2 groups, the number is 4. The number is the same
        for every group that has ranks in the block.
        """
        if self.use_inter_host_allreduce:
            return min(ranks, self.sharding_group_size)
        return max(ranks // self.num_groups, 1)

    def _copies_among(self, ranks: int) -> int:
        """Return how many of the ranks with copies of the same shard are in one block of `ranks` successive ranks.
        Every group has one copy of a shard. For example, if a pod has all ranks of 2 groups, 2 copies are in the pod.
        The number is at least 1.
        """
        if self.use_inter_host_allreduce:
            return max(ranks // self.sharding_group_size, 1)
        return min(ranks, self.num_groups)


def groups_of(
    job: TorchRecTopology, num_groups: int | Literal["auto"], sync_steps: int, use_inter_host_allreduce: bool
) -> tuple[Groups, ...]:
    """Return the possible divisions of a job's ranks into sharding groups.
    If `num_groups` is a number, there is one division. If `num_groups` is "auto", there is a division for each possible
    number of groups.

    Raises:
        UserError: the number does not divide the ranks, hosts would have unequal shares of groups, or `sync_steps` is
            below 1.
    """
    if num_groups != "auto":
        if not isinstance(num_groups, int) or isinstance(num_groups, bool):
            raise UserError(
                "groups-number-type",
                f"num_groups is {num_groups!r}",
                limit="num_groups must be a whole number or 'auto'",
                remedy="Set num_groups to a whole number, or to 'auto'",
            )
        return (Groups(job, num_groups, sync_steps, use_inter_host_allreduce),)
    groups = [Groups(job, 1, sync_steps, use_inter_host_allreduce, chosen=True)]
    for number in range(2, job.world_size + 1):
        with suppress(UserError):  # the number does not divide the ranks, or hosts have unequal shares
            groups.append(replace(groups[0], num_groups=number))
    return tuple(groups)
