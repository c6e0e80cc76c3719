"""Variants of a task, in which further rules split tables into more than two equal parts. The rules apply only to
tables whose shards must be equally wide.

Searches leave such a table whole, halve it, or split it into the fewest parts that the rules of the table allow. So
each way to split tables into more parts is a task with one more rule (`min_shards`) per table, searched like any other
task.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from glob import escape
from math import inf, isnan

import numpy as np

from neuroshard.cost.loads import Loads, LoadSets
from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import DIM_MULTIPLE
from neuroshard.stages.search.options.option_table import Choice
from neuroshard.stages.search.options.settings import SETTINGS
from neuroshard.tables import Table
from neuroshard.tasks.constraints import TableRule
from neuroshard.tasks.task import Task

_Share = Callable[[Table], float]
Rules = tuple[TableRule, ...]


def finer_parts(choices: Sequence[Choice], simulator: Simulator) -> Iterator[tuple[Task, Task]]:
    """Yield variants of a task, in which new rules split tables into more equal parts. Each variant is a pair of tasks.
    The search finds a plan for the first task of the pair, and the plan is then converted to a plan of the second task.

    Both tasks of a pair have the same new rules. In addition, the first task may have rules that the second task lacks,
    such as rules on tiers. The pairs are made from the task of the choice with the cheapest quick plan. If no quick
    plan fits in memory, the rules limit the bytes of a part, otherwise the cost of a part.
    """
    best = min(choices, key=lambda one: inf if isnan(one.quick_ms) else one.quick_ms)
    task, asked = best.options.task, best.options.asked
    if not any(limits.equal_widths for limits in task.limits):
        return
    plan = best.quick_plan()
    for rules in parts_that_fit(task) if plan is None else parts_that_cost_less(plan, simulator):
        yield task.with_rules(rules), asked.with_rules(rules)


def parts_that_fit(task: Task) -> Iterator[Rules]:
    """Yield several sets of rules that split tables into equal parts. In each set the bytes of a part are limited to a
    fraction of the memory of the smallest device, and the fraction differs from set to set.
    """
    free = max(min(task.shard_memory), 1)

    @cache
    def share(table: Table) -> float:
        """Return the bytes of a table as a fraction of the smallest device's memory. To get the fraction of a part of a
        table, pass a table that has only the columns of the part.
        """
        return float(task.memory.device_bytes(Loads.of([table], task.batch_size))[0]) / free

    return _more_parts(task, share, ())


def parts_that_cost_less(plan: Plan, simulator: Simulator) -> Iterator[Rules]:
    """Yield several sets of rules that split tables into equal parts. In each set the cost of a part is limited to a
    fraction of the mean cost of a device in `plan`, and the fraction differs from set to set.

    The cost of a part is its kernel time alone and its share of the exchanges. Data-parallel tables stay as they are.
    """
    cost = simulator.cost(plan.task, plan)
    columns = float(np.mean(plan.traffic.columns))
    column_ms = float(np.mean(cost.forward + cost.backward)) / columns if columns else 0.0
    mean_ms = max(float(np.mean(cost.forward + cost.backward + cost.compute)), 1e-9)

    @cache
    def share(table: Table) -> float:
        """Return the cost of a table as a fraction of the mean cost of a device in the plan. The cost is the kernel
        time of the table alone on a device, and its share of the exchanges. To get the fraction of a part of a table,
        pass a table that has only the columns of the part.
        """
        alone = LoadSets.alone(Loads.of([table], plan.task.batch_size))
        compute_ms = float(simulator.models.compute.predict(alone)[0])
        return (compute_ms + column_ms * table.output_columns) / mean_ms

    return _more_parts(plan.task, share, plan.names_where(lambda layout: layout.everywhere))


def _more_parts(task: Task, share_of: _Share, left: Collection[str]) -> Iterator[Rules]:
    """Yield several sets of rules that split large tables into equal parts. Each set has a different limit on the size
    of a part. With the limit 0.25, for example, a part takes at most 25% of a device's memory, or of the mean cost of a
    device.

    `share_of` returns the fraction of the memory or cost that a part takes, given the part as a table with fewer
    columns. `left` has the names of tables that get no rule. A table also gets no rule if constraints bind the table to
    other tables or to devices, if two parts are enough, if the shards of the table may differ in width, or if it is a
    sequence table. Parts may exceed the limit if the table cannot be split into more parts. Equal sets are yielded
    once.
    """
    constraints, seen = task.constraints, set[Rules]([()])
    bound = {shard.table for shard in constraints.pinned}.union(*constraints.together, *constraints.apart, left)
    tables = [index for index, table in enumerate(task.tables) if table.pooled and table.name not in bound]
    for share in SETTINGS.part_shares:
        each = (_rule(task, table, share_of, share) for table in tables)
        rules = tuple(rule for rule in each if rule is not None)
        if rules not in seen:
            seen.add(rules)
            yield rules


def _rule(task: Task, index: int, share_of: _Share, share: float) -> TableRule | None:
    """Return a rule that splits the table with the index `index` into at least three equal parts. Each part takes at
    most the fraction `share` of a device's memory or cost. The number of parts is the smallest that makes the parts
    small enough and that the constraints allow.

    `share_of` returns the fraction that a part takes, given the part as a table with fewer columns. If no allowed
    number of parts is enough, return the rule with the largest allowed number. Return None if two parts are enough, if
    more than two parts are not allowed, or if the shards of the table may differ in width.
    """
    table, devices = task.tables[index], task.topology.num_devices
    if not task.limits[index].equal_widths or share_of(_piece(table, 2)) <= share:
        return None
    chosen = None
    for parts in range(3, devices + 1):
        rule = TableRule(escape(table.name), min_shards=parts)
        if table.dim % (parts * DIM_MULTIPLE) == 0 and _may_have(task, table, rule):
            chosen = rule
            if share_of(_piece(table, parts)) <= share:
                break
    return chosen


def _piece(table: Table, parts: int) -> Table:
    """Return one of `parts` equal column parts of a table, as a narrower table. The number of columns is rounded down
    to a multiple of 4, but is at least 4.
    """
    return table.with_dim(max(table.dim // parts // DIM_MULTIPLE, 1) * DIM_MULTIPLE)


def _may_have(task: Task, table: Table, rule: TableRule) -> bool:
    """Return True if `rule` can be added to the constraints that the task has for the table without a contradiction."""
    try:
        task.constraints.with_rules((rule,)).limits(table, task.topology.num_devices, len(task.topology.domains))
    except UserError:
        return False
    return True
