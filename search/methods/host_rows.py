"""Tables in rows on the devices of one host instead of all: each host then exchanges some tables, not all of them."""

from collections.abc import Mapping
from typing import Literal

import numpy as np

from neuroshard.cost.loads import LoadSets
from neuroshard.layouts import ROWS, has_row_blocks, in_rows
from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.words.collective import Collective
from neuroshard.words.form import Form

RowsOver = Literal["all", "hosts"]  # devices; "hosts": all, or those of one host where that pays
_NEEDED = frozenset({Collective.HOST_REDUCE_SCATTER, Collective.HOST_ALL_TO_ALL})


def on_hosts(plan: Plan, simulator: Simulator) -> Plan:
    """A plan with the 1, 2, 4, ... dearest of its tables in rows on one host each, or with all of them.

    The dearest table first, each goes to the host whose tables compute least so far. Everything else stays where it is.
    The plan as it is if none of these is predicted to cost less, or the models don't know what they exchange.
    """
    tables = _movable(plan, simulator)
    if not tables:
        return plan
    task, hosts = plan.task, plan.task.topology.domains
    blocks = ROWS.share(task.loads.take(np.array(tables)), len(hosts[0]))
    block_ms = simulator.models.compute.predict(LoadSets.alone(blocks))
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
        for index, (table, form, blocks) in enumerate(zip(task.tables, plan.forms, plan.by_table, strict=True))
        if form is Form.ROWS
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
