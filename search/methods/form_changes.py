"""Plans near another one, in which some tables have another form, or lie in theirs on one host instead of all."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from neuroshard.cost.loads import LoadSets
from neuroshard.layouts import LAYOUTS, in_columns
from neuroshard.models.simulator import Simulator
from neuroshard.plans.moves import moved_between
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import BoolArray, FloatArray, IntArray
from neuroshard.stages.search.methods.form_choices import FormChoices
from neuroshard.stages.search.methods.starts import EvenLayouts
from neuroshard.stages.search.space.base import device_memory
from neuroshard.stages.search.space.chosen_forms import Choices, Forms, total_by_form
from neuroshard.stages.search.space.forms import COLUMNS, OTHERS, Spread, allowed_forms
from neuroshard.words.form import FORMS, Call


@dataclass(frozen=True, eq=False)
class FormChanges:
    """What a plan's tables may change to.

    Attributes:
        start: the plan.
        choices: of forms; a table in rows on one host has none, and stays.
        now: (T,) of the plan; those that stay count as columns.
    """

    start: Plan
    choices: FormChoices
    now: IntArray

    @classmethod
    def of(cls, start: Plan, simulator: Simulator, calls: Collection[Call]) -> "FormChanges | None":
        """Changes to forms of some `calls`, of a plan that keeps its task's limits; None if there can be none."""
        task, stays = start.task, _on_hosts(start)
        now = np.where(stays, COLUMNS, [FORMS.index(form) for form in start.forms])
        allowed = allowed_forms(task, calls)
        allowed[np.arange(len(now)), now] = True
        allowed[stays] = False
        if (allowed.sum(axis=1) < 2).all() or device_memory(task).min() < 1:
            return None
        choices = FormChoices.of(task, simulator, allowed, EvenLayouts())
        return cls(start, choices, now)

    def within(self, most_bytes: int | None) -> Plan:
        """The plan after the changes that are estimated to help most and let no more bytes arrive; None for any number.

        Tables that come to lie in columns are whole. If nothing helps, or no such plan keeps the task's limits, the
        plan as it is.
        """
        bytes_of = _arriving(self.start, self.now, self.choices.allowed, self.choices.spread)

        def costs(choices: Choices) -> tuple[FloatArray, FloatArray]:
            cost, evenly = self.choices.estimates.costs(choices)
            beyond = total_by_form(choices, bytes_of) > (np.inf if most_bytes is None else most_bytes)
            return np.where(beyond, np.inf, cost), np.where(beyond, np.inf, evenly)

        path = self.choices.descent(self.now, costs)
        plans = (self._plan(forms) for forms in path[:0:-1])
        return next((plan for plan in plans if not plan.violations), self.start)

    def in_columns(self, most_ms: float) -> Plan:
        """The plan with more tables in columns, whole, as many as keep its cost at or below `most_ms` and its limits.

        Those go back first that are estimated to gain least where they are: 1, 2, 4, ... at once.
        """
        choices, best = self.choices, self.start
        tables = np.flatnonzero((self.now != COLUMNS) & choices.allowed[:, COLUMNS])
        tables = np.unique(choices.leaders[tables])
        back = np.array([self._back(tables[place : place + 1]) for place in range(len(tables))])
        order = tables[np.argsort(choices.estimates.costs(Forms(back))[0], kind="stable")] if len(tables) else tables
        done, more = 0, 1
        while done < len(order):
            plan = self._plan(self._back(order[: done + more]))
            if plan.violations or choices.simulator.cost(plan.task, plan).total_ms > most_ms:
                if more == 1:
                    break
                more = 1
            else:
                best, done, more = plan, min(done + more, len(order)), more * 2
        return best

    def _back(self, tables: IntArray) -> IntArray:
        """(T,) forms with some tables, and those that they are kept together with, in columns."""
        return np.where(np.isin(self.choices.leaders, tables), COLUMNS, self.now)

    def _plan(self, forms: IntArray) -> Plan:
        """The plan with forms (T,)."""
        changed, task = forms != self.now, self.start.task
        kept = (placed for placed in self.start.placements if not changed[placed.shard.table])
        everywhere = np.flatnonzero(changed & (forms != COLUMNS)).tolist()
        spread = (placed for table in everywhere for placed in self.choices.spread.placements(table, int(forms[table])))
        columns = in_columns(task, self._homes(np.flatnonzero(changed & (forms == COLUMNS))))
        return Plan(task, (*kept, *spread, *columns))

    def _homes(self, tables: IntArray) -> Iterator[tuple[int, int, int]]:
        """(table, columns, device) of some tables, whole: the dearest first, where least is computed so far."""
        task, simulator = self.start.task, self.choices.simulator
        compute_ms = simulator.cost(task, self.start).compute.copy()
        loads = task.loads.take(tables)
        alone_ms = simulator.models_for(task).compute.predict(LoadSets.alone(loads))
        for place in np.argsort(-alone_ms, kind="stable"):
            table = int(tables[place])
            devices = np.array(task.limits[table].devices)
            device = int(devices[compute_ms[devices].argmin()])
            compute_ms[device] += alone_ms[place]
            yield table, task.tables[table].dim, device


def _on_hosts(plan: Plan) -> BoolArray:
    """(T,) which tables lie otherwise than in columns, but not with all columns on all devices."""
    devices, each = plan.task.topology.num_devices, zip(plan.task.tables, plan.layouts, plan.by_table, strict=True)
    return np.array(
        [
            not layout.free and (len(its) < devices or any(placed.shard.dim < table.dim for placed in its))
            for table, layout, its in each
        ]
    )


def _arriving(start: Plan, now: IntArray, allowed: BoolArray, spread: Spread) -> IntArray:
    """(T, F) bytes that arrive somewhere where a table changes to a form, at most; 0 where it has it, or may not."""
    task, found = start.task, np.zeros(allowed.shape, dtype=np.int64)
    in_blocks = np.array([layout.blocks for layout in LAYOUTS.values()])
    found[:, COLUMNS] = task.memory.state_bytes(task.loads) * in_blocks[now]  # a copy is there already
    for form in OTHERS:
        to = allowed[:, form] & (now != form)
        kept = (placed for placed in start.placements if not to[placed.shard.table])
        changed = (placed for table in np.flatnonzero(to).tolist() for placed in spread.placements(table, form))
        found[:, form] = moved_between(start, Plan(task, (*kept, *changed)))
    return found


def rows_on_hosts(plan: Plan, simulator: Simulator) -> Plan:
    """A plan with the 1, 2, 4, ... dearest of its tables in rows on one host each, or with all of them.

    The dearest table first, each goes to the host whose tables compute least so far. Everything else stays where it is.
    The plan as it is if none of these is predicted to cost less, or the models don't know what they exchange.
    """
    tables = _movable(plan, simulator)
    if not tables:
        return plan
    task, hosts = plan.task, plan.task.topology.domains
    each = [plan.layouts[table].share(task.loads.take(np.array([table])), len(hosts[0])) for table in tables]
    block_ms = simulator.models_for(task).compute.predict(LoadSets.joined([LoadSets.alone(one) for one in each]))
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
    if not 1 < host < devices:
        return []
    known = models.forward.collectives & models.backward.collectives
    bound = {name for group in (*task.constraints.together, *task.constraints.apart) for name in group}
    return [
        index
        for index, (table, layout, blocks) in enumerate(zip(task.tables, plan.layouts, plan.by_table, strict=True))
        if layout.on_hosts
        and table.pooled  # sequence tables lie on all devices
        and len(blocks) == devices
        and table.name not in bound
        and known.issuperset(layout.exchanges[1:])
        and layout.fits(table, host)
        and task.limits[index].min_blocks <= host
    ]


def _moved(plan: Plan, homes: Mapping[int, int]) -> Plan:
    """Return the plan with some tables, by their index, in rows on the host of that number."""
    hosts = plan.task.topology.domains
    kept = (placed for placed in plan.placements if placed.shard.table not in homes)
    moved = (
        placed for table, home in homes.items() for placed in plan.layouts[table].over(plan.task, table, hosts[home])
    )
    return Plan(plan.task, (*kept, *moved))
