"""Tables that are cut in equal parts only: which ones in more than two, tried one way after another.

Searches leave such a table whole or halve it, or cut it in as many parts as its rules ask for at least. So each way is
a task of its own, with a rule for every table that is cut in more: what is known of its plans, that none exists or
that none costs less, is known of that task.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from glob import escape

import numpy as np

from neuroshard.cost.loads import Loads, LoadSets
from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import InfeasibleError, UserError
from neuroshard.plumbing.schema import DIM_MULTIPLE
from neuroshard.searching.searcher import Found, Searcher
from neuroshard.tables import Table
from neuroshard.tasks.constraints import TableRule
from neuroshard.tasks.task import Task
from neuroshard.words.form import Forms

_SHARES = (0.8, 0.6, 0.4, 0.25, 0.15)  # of a device, that a part may take
_Share = Callable[[Table], float]


@dataclass(frozen=True)
class EqualParts(Searcher):
    """Searches a task as it is, then with large tables in more equal parts; the cheapest plan counts.

    Plans are of tasks that have rules besides (`min_shards`) for tables in more than two parts.

    Attributes:
        inner: searches each.
    """

    inner: Searcher

    def find(self, task: Task, simulator: Simulator) -> Found:
        """Find the cheapest plan, with what the search that found it has to say.

        Raises:
            InfeasibleError: none found any.
        """
        try:
            found = [self.inner.find(task, simulator)]
        except InfeasibleError as error:
            found, reason = [], error
        share_of = _cost(found[0].plan, simulator) if found else _bytes(task)
        copied = found[0].plan.names_where(lambda layout: layout.everywhere) if found else []
        for parted in _ways(task, share_of, copied):
            with suppress(InfeasibleError):
                found.append(self.inner.find(parted, simulator))
        if not found:
            raise reason
        return min(found, key=lambda one: simulator.cost(one.plan.task, one.plan).likely_ms)

    @property
    def takes_sequences(self) -> bool:
        """Whether the inner searcher takes them."""
        return self.inner.takes_sequences

    @property
    def takes_forms(self) -> Forms:
        """The forms that the inner searcher takes."""
        return self.inner.takes_forms

    def finalists(self, plan: Plan, simulator: Simulator, count: int) -> tuple[Plan, ...]:
        """Find the inner searcher's finalists, of the plan's own task."""
        return self.inner.finalists(plan, simulator, count)

    def reads(self) -> tuple[str, ...]:
        """Collect the digests of what the inner searcher reads."""
        return self.inner.reads()


def _ways(task: Task, share_of: _Share, left: Collection[str]) -> Iterator[Task]:
    """Yield the task with rules that let no part take more than a share of a device, where its table can be cut so.

    Each way once. Tables that are `left` have no rule, and neither have those that are bound to others or to devices,
    and those that two parts suffice for.
    """
    constraints = task.constraints
    seen: set[tuple[TableRule, ...]] = {()}
    bound = {shard.table for shard in constraints.pinned}.union(*constraints.together, *constraints.apart, left)
    tables = [index for index, table in enumerate(task.tables) if table.pooled and table.name not in bound]
    for share in _SHARES:
        each = (_rule(task, table, share_of, share) for table in tables)
        rules = tuple(rule for rule in each if rule is not None)
        if rules not in seen:
            seen.add(rules)
            yield replace(task, constraints=replace(constraints, rules=(*constraints.rules, *rules)))


def _rule(task: Task, index: int, share_of: _Share, share: float) -> TableRule | None:
    """Build the rule that cuts a table in the fewest parts of at most a share each, or in as many as there may be.

    None where it needn't be cut in more than two, or may not.
    """
    table, devices = task.tables[index], task.topology.num_devices
    if share_of(_piece(table, 2)) <= share or not task.limits[index].equal_widths:
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
    """Cut one of so many parts; where a table has no such parts, one about as wide."""
    return table.with_dim(max(table.dim // parts // DIM_MULTIPLE, 1) * DIM_MULTIPLE)


def _may_have(task: Task, table: Table, rule: TableRule) -> bool:
    """Tell whether a table's own rules allow a further one."""
    constraints = replace(task.constraints, rules=(*task.constraints.rules, rule))
    try:
        constraints.limits(table, task.topology.num_devices)
    except UserError:
        return False
    return True


def _bytes(task: Task) -> _Share:
    """Measure tables by their share of the smallest device's memory."""
    free = max(min(task.shard_memory), 1)
    return lambda table: float(task.memory.device_bytes(Loads.of([table], task.batch_size))[0]) / free


def _cost(plan: Plan, simulator: Simulator) -> _Share:
    """Measure tables by their share of a device's mean cost in a plan: a shard's compute alone, and its exchanges."""
    cost = simulator.cost(plan.task, plan)
    columns = float(np.mean(plan.traffic.columns))
    column_ms = float(np.mean(cost.forward + cost.backward)) / columns if columns else 0.0
    mean_ms = max(float(np.mean(cost.forward + cost.backward + cost.compute)), 1e-9)

    def share(table: Table) -> float:
        """Measure one table, as a shard on its own."""
        alone = LoadSets.alone(Loads.of([table], plan.task.batch_size))
        compute_ms = float(simulator.models.compute.predict(alone)[0])
        return (compute_ms + column_ms * table.output_columns) / mean_ms

    return share
