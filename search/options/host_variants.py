"""Variants of a task in which the tables in host memory are spread evenly over all hosts. A variant is the same task
with further rules.
"""

from collections.abc import Iterator
from dataclasses import replace

from neuroshard.plans.hosts import may_overfill
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import DIM_MULTIPLE
from neuroshard.tasks.constraints import PinnedColumns, PinnedShard
from neuroshard.tasks.task import Task
from neuroshard.words.placement import Tier


def host_variants(task: Task) -> Iterator[Task]:
    """Yield variants of the task, in which further rules spread every table in host memory evenly over all hosts. Every
    host gets n equally wide column shards of the table; the variants have n = 1, 2, 4 and so on. Tables that may not be
    split in this way get no rules.

    Searches do not know the memory of each host, and assign a table to one host if they can. Then one host may do most
    of the work. There are no variants if no plan of the task could overfill a host.
    """
    if not may_overfill(task):
        return
    count = 1
    while count <= task.topology.host_size:
        pins = [pin for table in range(len(task.tables)) for pin in _even_pins(task, table, count)]
        if pins:
            constraints = replace(task.constraints, pinned=(*task.constraints.pinned, *pins))
            try:
                yield replace(task, constraints=constraints)
            except UserError:  # other rules of the tables do not allow so many shards
                return
        count *= 2


def _even_pins(task: Task, index: int, count: int) -> Iterator[PinnedShard]:
    """Yield the rules that place `count` equal column shards of one table, given by its index, on every host: one rule
    for each shard. Yield nothing if the table is in device memory or may not be split this way.
    """
    table, limits, hosts = task.tables[index], task.limits[index], task.topology.hosts
    constraints, shards = task.constraints, count * len(task.topology.hosts)
    bound = set(constraints.pins).union(*constraints.together, *constraints.apart)
    may = (
        task.tier_assignments[index].tier is not Tier.DEVICE
        and limits.free
        and table.pooled
        and table.name not in bound
        and table.dim % (shards * DIM_MULTIPLE) == 0
        and table.dim // shards >= limits.min_dim
        and limits.min_shards <= shards <= limits.max_shards
        and len(limits.devices) == task.topology.num_devices
    )
    for host in hosts if may else ():
        yield from [PinnedColumns.on(table.name, table.dim // shards, tuple(host))] * count
