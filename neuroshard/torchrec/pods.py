"""Pods: groups of hosts joined by fast links. TorchRec shards `table_row_wise` and `grid_shard` tables over one pod.

A plan and the job that runs the plan must agree on the number of ranks of a pod. If the numbers differ, TorchRec fails
or hangs with `table_row_wise` tables, and trains wrong rows of `grid_shard` tables without an error.
"""

import os
from typing import Protocol

import torch.distributed as dist
from torchrec.distributed.comm import get_local_size
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.types import ParameterSharding, ShardingPlan, ShardingType

from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.grouping import grouped
from neuroshard.plumbing.messages import Message, number_of
from neuroshard.torchrec.kernels import shards_of
from neuroshard.torchrec.modules import listed
from neuroshard.torchrec.sharding_plan import parameters_in

POD_SIZE = "TORCHREC_RESOLVED_POD_SIZE"
"""The environment variable from which DistributedModelParallel reads the number of hosts per pod; 1 if unset."""

BY_POD = frozenset({ShardingType.TABLE_ROW_WISE.value, ShardingType.GRID_SHARD.value})


class RankSizes(Protocol):
    """Protocol of objects that have the number of ranks in the job, on each host, and in each pod of hosts.
    Examples are a TorchRec topology, and the `ShardPerfContext` of an estimator.
    """

    @property
    def world_size(self) -> int:
        """The number of ranks of the job."""

    @property
    def local_world_size(self) -> int:
        """The number of ranks on each host."""

    @property
    def intra_group_size(self) -> int:
        """The number of ranks in each pod. The number is 1 in a `ShardPerfContext` without pods."""


def check_sizes(topology: TorchRecTopology) -> None:
    """Raise UserError if hosts do not have equal numbers of ranks, or if the number of hosts in a pod is below 1."""
    world, host = int(topology.world_size), int(topology.local_world_size)
    if host < 1 or world % host:
        raise UserError(
            "topology-host-size-not-divisor",
            f"local_world_size is {host}",
            where="topology",
            limit=f"local_world_size must divide the job's {world} ranks, else TorchRec treats all ranks as one host",
            remedy="Set local_world_size to the number of ranks on each host, which must be the same for all hosts",
        )
    if topology.intra_group_size < host:
        raise UserError(
            "topology-pod-size-low",
            f"pod_size is {topology.intra_group_size // host}",
            where="topology",
            limit="the minimum is 1: pod_size is the number of hosts that fast links join",
            remedy="Set pod_size to 1 or more, or remove pod_size if fast links join only the ranks of a host",
        )


def ranks_per_pod(sizes: RankSizes) -> int:
    """Return the number of successive ranks that fast links join.

    This is the number of ranks of a pod, but at most the number of ranks of the job. If pods do not divide the ranks
    equally, the result is the number of ranks of a host: the slower of both possibilities, and the number that TorchRec
    takes without a pod size.
    """
    world, host = int(sizes.world_size), int(sizes.local_world_size)
    pod = min(max(int(sizes.intra_group_size), host), world)
    return host if world % pod else pod


def ignored_pods_remark(topology: TorchRecTopology) -> Message | None:
    """Return a warning if the ranks of the job cannot be divided equally into pods (groups of hosts with fast links).
    In this case, the predicted costs ignore the pods: only links within a host count as fast.

    The result is None if pods divide the ranks equally.
    """
    world, host, pod = int(topology.world_size), int(topology.local_world_size), int(topology.intra_group_size)
    if ranks_per_pod(topology) == min(pod, world):
        return None
    return Message(
        "topology-pods-ignored",
        f"pod_size is {pod // host} hosts ({pod} ranks), which does not divide the job's {world // host} hosts "
        f"({world} ranks)",
        where="topology",
        limit="predicted costs ignore the pods and count fast links within hosts only, and TorchRec refuses "
        f"{POD_SIZE}={pod // host}",
        remedy=f"Set pod_size to a divisor of {world // host}",
    )


def pod_size_remark(sharding_plan: ShardingPlan, topology: TorchRecTopology) -> Message | None:
    """Return a warning if the environment of this process does not fit a plan that shards tables over pods.
    A pod is a group of hosts joined by fast links. If the environment has another pod size (1 host if unset) or number
    of ranks per host than the plan was made for, DistributedModelParallel shards the tables over the wrong ranks.

    The result is None if the plan shards no tables over pods, or if the environment of this process fits the plan.
    """
    tables = [name for _, name, sharding in parameters_in(sharding_plan) if sharding.sharding_type in BY_POD]
    host, pod = int(topology.local_world_size), ranks_per_pod(topology)
    started, hosts = _started_per_host(topology), os.environ.get(POD_SIZE)
    if not tables or (hosts or "1", started) == (str(pod // host), host):
        return None
    settings = [f"{POD_SIZE}={pod // host}"] + ([] if started == host else [f"LOCAL_WORLD_SIZE={host}"])
    found = "is unset" if hosts is None else f"is {hosts!r}"
    return Message(
        "pod-size-differs",
        f"the plan has {number_of(len(tables), 'table')} ({listed(tables)}) whose rows are sharded over {pod} ranks "
        f"({host} on each of {number_of(pod // host, 'host')}), but in this process {POD_SIZE} {found}, and a host "
        f"has {number_of(started, 'rank')}",
        limit="with these settings TorchRec would fail, or train wrong rows without an error",
        remedy=f"Set {' and '.join(settings)} in every process that runs the plan",
    )


def _started_per_host(topology: TorchRecTopology) -> int:
    """Return the number of ranks on each host of the running job.
    If torch.distributed is not initialized, or has another world size than the topology, return the topology's number
    of ranks on a host.
    """
    world = int(topology.world_size)
    if dist.is_initialized() and dist.get_world_size() == world:
        return int(get_local_size(world))
    return int(topology.local_world_size)


def check_by_pod(table: str, sharding: ParameterSharding, topology: TorchRecTopology, where: str) -> None:
    """Raise UserError if row blocks of a table are not placed as TorchRec requires.
    Every column range of the table must have one row block on each rank of a pod, in the order of the ranks.

    `table` is the table's name and `where` the place of the sharding, both for the error. Only sharding types that use
    pods are checked.
    """
    if sharding.sharding_type not in BY_POD:
        return
    pod, blocks = ranks_per_pod(topology), zip(shards_of(sharding), sharding.ranks or (), strict=False)
    for column, blocks_of_column in grouped(blocks, lambda block: block[0].shard_offsets[1]).items():
        ranks = [rank for _, rank in blocks_of_column]
        if ranks[0] % pod or ranks != list(range(ranks[0], ranks[0] + pod)):
            more = f", {pod} to {2 * pod - 1}, and so on" if pod < topology.world_size else ""
            raise UserError(
                "table-blocks-outside-pod",
                f"table {table!r} is {sharding.sharding_type}, but its row blocks at column {column} are on ranks "
                f"{listed([str(rank) for rank in ranks])}, which are not one whole group of ranks with fast links, in "
                "order",
                where=where,
                limit=f"in this job such a group has {number_of(pod, 'rank')} (0 to {pod - 1}{more})",
                remedy="Make a plan for this job",
            )
