"""Changes of a whole plan: rows on one host instead of all, and other memories where devices have some left."""

from collections.abc import Mapping

import numpy as np

from neuroshard.cost.loads import LoadSets
from neuroshard.layouts import ROWS, has_row_blocks, in_rows
from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.stages.search.space.base import device_memory
from neuroshard.stages.search.space.homes import HomeOptions, rehomed
from neuroshard.words.collective import Collective

_MOST_GROWN = 64  # tables whose caches are grown, of those on several devices
_NEEDED = frozenset({Collective.HOST_REDUCE_SCATTER, Collective.HOST_ALL_TO_ALL})


def rows_on_hosts(plan: Plan, simulator: Simulator) -> Plan:
    """A plan with the 1, 2, 4, ... dearest of its tables in rows on one host each, or with all of them.

    The dearest table first, each goes to the host whose tables compute least so far. Everything else stays where it is.
    The plan as it is if none of these is predicted to cost less, or the models don't know what they exchange.
    """
    tables = _movable(plan, simulator)
    if not tables:
        return plan
    task, hosts = plan.task, plan.task.topology.domains
    blocks = ROWS.share(task.loads.take(np.array(tables)), len(hosts[0]))
    block_ms = simulator.models_for(task).compute.predict(LoadSets.alone(blocks))
    homes: dict[int, int] = {}
    plans, busy_ms = [plan], np.zeros(len(hosts))
    for place in np.argsort(-block_ms, kind="stable").tolist():
        home = int(busy_ms.argmin())
        busy_ms[home] += block_ms[place]
        homes[tables[place]] = home
        if len(homes) & (len(homes) - 1) == 0 or len(homes) == len(tables):
            moved = _moved(plan, homes)
            plans += [moved] if moved.fits else []
    return plans[int(np.argmin([cost.total_ms for cost in simulator.costs(task, plans)]))]


def _movable(plan: Plan, simulator: Simulator) -> list[int]:
    """Pooled tables, by their index, in rows on all devices that may lie in rows on those of any host."""
    task, models = plan.task, simulator.models
    host, devices = task.topology.domain_size, task.topology.num_devices
    if not 1 < host < devices or not _NEEDED.issubset(models.forward.collectives & models.backward.collectives):
        return []
    bound = {name for group in (*task.constraints.together, *task.constraints.apart) for name in group}
    return [
        index
        for index, (table, layout, blocks) in enumerate(zip(task.tables, plan.layouts, plan.by_table, strict=True))
        if layout.blocks
        and table.pooled  # rows of sequence tables lie on all devices
        and len(blocks) == devices
        and table.name not in bound
        and has_row_blocks(table, host)
        and task.constraints.limits(table, devices).min_blocks <= host
    ]


def _moved(plan: Plan, homes: Mapping[int, int]) -> Plan:
    """Return the plan with some tables, by their index, in rows on the host of that number."""
    hosts = plan.task.topology.domains
    kept = (placed for placed in plan.placements if placed.shard.table not in homes)
    moved = (placed for table, home in homes.items() for placed in in_rows(plan.task, table, hosts[home]))
    return Plan(plan.task, (*kept, *moved))


def homes_anew(plan: Plan, options: HomeOptions) -> Plan:
    """The plan, where tables that lie on one device alone take its memory, and what is left, for the least cost."""
    task, homes, free = plan.task, list(plan.homes), device_memory(plan.task) - np.array(plan.device_bytes)
    devices: dict[int, list[int]] = {}
    for placed in plan.placements:
        devices.setdefault(placed.shard.table, []).append(placed.device)
    hosts = task.topology.host_bytes - np.array(plan.host_bytes)
    for device in range(task.topology.num_devices):
        own = np.array([table for table, its in devices.items() if its == [device]], dtype=np.int64)
        if not len(own):
            continue
        now = np.array([options.homes.index(homes[table]) for table in own.tolist()])
        its, rows = options.of_tables(own), np.arange(len(own))
        host = device // task.topology.host_size
        on_host = int(its.host_bytes[rows, now].sum())
        room = int(free[device]) + int(its.device_bytes[rows, now].sum())
        chosen = its.cheapest(room, int(hosts[host]) + on_host)
        if chosen is None or its.cost_ms[rows, chosen].sum() >= its.cost_ms[rows, now].sum():
            continue
        hosts[host] -= int(its.host_bytes[rows, chosen].sum()) - on_host
        for table, option in zip(own.tolist(), chosen.tolist(), strict=True):
            homes[table] = options.homes[option]
    return rehomed(plan, task, tuple(homes))


def caches_grown(plan: Plan, options: HomeOptions, simulator: Simulator) -> Plan:
    """The plan, where tables that lie on several devices have larger caches, or leave the hosts, if all have room.

    The dearest first, each as far as it goes.
    """
    now = np.array([options.homes.index(home) for home in plan.homes])
    cost_ms = options.cost_ms[np.arange(len(now)), now]
    spread = [t for t in np.argsort(-cost_ms, kind="stable").tolist() if len(plan.by_table[t]) > 1 and now[t] > 0]
    best_ms = simulator.cost(plan.task, plan).total_ms
    for table in spread[:_MOST_GROWN]:
        for option in np.argsort(options.cost_ms[table], kind="stable").tolist():
            if options.cost_ms[table, option] >= options.cost_ms[table, now[table]]:
                break
            homes = list(plan.homes)
            homes[table] = options.homes[option]
            larger = rehomed(plan, plan.task, tuple(homes))
            if larger.fits and (ms := simulator.cost(plan.task, larger).total_ms) < best_ms:
                plan, best_ms = larger, ms
                break
    return plan
