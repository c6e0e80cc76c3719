"""Which plans ask the same of hardware: those that differ only in which of alike devices holds what."""

from collections.abc import Hashable

from neuroshard.plans.plan import Plan


def layout_key(plan: Plan) -> Hashable:
    """Equal for plans of one task that differ in nothing but the order of a host's devices, and of hosts.

    Which of a table's columns a shard holds doesn't count, for all cost the same; which of its rows does.
    """
    topology = plan.task.topology
    contents: list[list[tuple[int, ...]]] = [[] for _ in range(topology.num_devices)]
    for placed in plan.placements:
        shard = placed.shard
        contents[placed.device].append((shard.table, shard.dim, shard.row, shard.rows))
    devices = [tuple(sorted(its)) for its in contents]
    return tuple(sorted(tuple(sorted(devices[device] for device in host)) for host in topology.hosts))
