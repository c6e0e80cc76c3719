"""Which tables lie in which form, and the task that is left of those in columns once the others have their places."""

from collections.abc import Collection, Iterable

import numpy as np

from neuroshard.layouts import LAYOUTS
from neuroshard.models.model_set import ModelSet
from neuroshard.plumbing.arrays import BoolArray, IntArray
from neuroshard.plumbing.errors import UserError
from neuroshard.tasks.task import Task
from neuroshard.words.form import CALLS, FORMS, IN_COLUMNS, Call, Form, forms_named
from neuroshard.words.home import Tier
from neuroshard.words.shard import Placement

COLUMNS = FORMS.index(IN_COLUMNS.form)
OTHERS = tuple(number for number, layout in enumerate(LAYOUTS.values()) if not layout.free)  # than columns
BLOCKS = tuple(number for number, layout in enumerate(LAYOUTS.values()) if layout.blocks)


def searched_forms(names: Iterable[str]) -> tuple[Form, ...]:
    """Forms by their names.

    Raises:
        UserError: there is no form of some name, or columns aren't among them.
    """
    forms = forms_named(names)
    if not any(LAYOUTS[form].free for form in forms):
        raise UserError(f"searcher: forms={[form.value for form in forms]} must have columns among them")
    return forms


def known_calls(models: ModelSet, forms: Collection[str] = FORMS) -> frozenset[Call]:
    """The kernel calls of tables in some forms, by name, that models know costs of, what is exchanged included."""
    known = models.forms.intersection(forms)
    return frozenset(call for call in models.compute.calls if call.form in known)


def allowed_forms(task: Task, calls: Collection[Call]) -> BoolArray:
    """(T, F) which forms each table may lie in: those that there are `calls` of, with its kind and its memory.

    As far as the task's constraints and what each form asks for let it. Rows and copies lie on every device, so each
    must be allowed. Tables that are pinned or kept apart stay in columns; those kept together may lie in what all of
    them may. One device has columns only.
    """
    constraints = task.constraints
    bound = set(constraints.pins).union(*constraints.apart)
    known = {
        (pooled, tier): frozenset(call.form for call in calls if (call.pooled, call.tier) == (pooled, tier))
        for pooled in (True, False)
        for tier in Tier
    }
    alone = np.array(
        [
            _allowed(task, index, known[table.pooled, home.tier], table.name in bound)
            for index, (table, home) in enumerate(zip(task.tables, task.homes, strict=True))
        ]
    )
    first, by_all = leaders(task), alone.copy()
    np.logical_and.at(by_all, first, alone)
    allowed: BoolArray = by_all[first]
    return allowed


def leaders(task: Task) -> IntArray:
    """(T,) the first of the tables that each one is kept together with; itself where there are none."""
    number = {table.name: index for index, table in enumerate(task.tables)}
    first = np.arange(len(number))
    for group in task.constraints.together:
        its = [number[name] for name in group]
        first[its] = min(its)
    return first


def has_other_forms(task: Task, tried: BoolArray) -> bool:
    """Whether the task lets some table lie otherwise than in columns and as was `tried` (T, F), models aside."""
    if np.delete(allowed_forms(task, CALLS) & ~tried, COLUMNS, axis=1).any():
        return True
    host, devices = task.topology.domain_size, task.topology.num_devices
    forms = {form for limits in task.limits for form in limits.forms}
    return 1 < host < devices and any(LAYOUTS[form].on_hosts for form in forms)


def _allowed(task: Task, index: int, forms: Collection[str], bound: bool) -> list[bool]:
    """(F,) of one table, which may be bound to others or to a device."""
    table, limits, devices = task.tables[index], task.limits[index], task.topology.num_devices
    everywhere = not bound and devices > 1 and len(limits.devices) == devices
    return [
        form in forms
        and form in limits.forms
        and (layout.free or (everywhere and limits.may_count(layout, devices) and layout.fits(table, devices)))
        for form, layout in LAYOUTS.items()
    ]


class Spread:
    """Placements of a task's tables in rows and in copies, over all devices; each table's are made once."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._made: dict[tuple[int, int], list[Placement]] = {}

    def placements(self, table: int, form: int) -> list[Placement]:
        """Return the placements of a table, by its index, in a form, by its place in `FORMS`."""
        if (table, form) not in self._made:
            devices = range(self._task.topology.num_devices)
            self._made[table, form] = LAYOUTS[FORMS[form]].over(self._task, table, devices)
        return self._made[table, form]

    def others(self, forms: IntArray) -> list[Placement]:
        """Return the placements of all tables but those in columns, by forms (T,), places in `FORMS`."""
        tables = np.flatnonzero(forms != COLUMNS).tolist()
        return [placed for table in tables for placed in self.placements(table, int(forms[table]))]
