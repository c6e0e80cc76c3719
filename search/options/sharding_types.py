"""The sharding types that each table of a task may have, and the placements of row-wise and data-parallel
tables over all devices.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

import numpy as np

from neuroshard.layouts import LAYOUTS, Layout
from neuroshard.layouts.sharding_types import (
    GRID_SHARD,
    ROW_WISE,
    TABLE_ROW_WISE,
    forms_of,
    rows_on_all,
    rows_on_one_host,
    sharding_types_named,
)
from neuroshard.models import CostModels
from neuroshard.plumbing.arrays import BoolArray, IntArray
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import MAX_SHARD_DIM
from neuroshard.tasks.task import Task
from neuroshard.words.form import COLUMN_WISE_CALL, FORMS, Call
from neuroshard.words.placement import Placement

COLUMNS = FORMS.index(COLUMN_WISE_CALL.form)
OTHERS = tuple(number for number, layout in enumerate(LAYOUTS.values()) if not layout.free)  # than columns
BLOCKS = tuple(number for number, layout in enumerate(LAYOUTS.values()) if layout.blocks)
_OF_GROUP = "this table is kept together with a table that may not have this sharding type"
_LEFT_OUT = "searcher.sharding_types does not include this sharding type"


def searched_types(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of sharding types as a tuple, after checking that a search can use the sharding types.

    Raises:
        UserError: a name is unknown, or no sharding type among them leaves all rows together.
    """
    types = sharding_types_named(names)
    if not any(LAYOUTS[form].free for form in forms_of(types)):
        raise UserError(
            "searcher-types-not-column-wise",
            f"sharding_types is {list(types)}",
            where="searcher",
            limit="sharding_types must include column_wise or table_wise",
            remedy="Add column_wise to sharding_types",
        )
    return types


def with_rows_on_all(task: Task) -> Task:
    """Return the task with `row_wise` added to every rule that allows table_row_wise or grid_shard. With these two
    sharding types, the rows of a table or of a column shard are spread over one host; with row_wise, the rows of a
    table are spread over all devices.

    If there are no rules of this kind, the task itself is returned.
    """
    return _changed(task, lambda types: (*types, ROW_WISE) if ROW_WISE not in types else types)


def without_rows_on_hosts(task: Task) -> Task:
    """Return the task without the sharding types table_row_wise and grid_shard in rules that do not allow row_wise.
    With these two sharding types, the rows of a table or of a column shard are spread over one host. Rules that allow
    row_wise stay the same.
    """
    one_host = {TABLE_ROW_WISE, GRID_SHARD}
    return _changed(
        task, lambda types: types if ROW_WISE in types else tuple(name for name in types if name not in one_host)
    )


def _changed(task: Task, change: Callable[[tuple[str, ...]], tuple[str, ...]]) -> Task:
    """Return the task with changed sharding types in every rule that allows table_row_wise or grid_shard (rows on one
    host). The function `change` returns the new sharding types of a rule, given the old ones.
    """
    old = task.constraints.rules
    rules = tuple(
        replace(rule, sharding_types=change(rule.sharding_types))
        if rule.sharding_types is not None and rows_on_one_host(rule.sharding_types)
        else rule
        for rule in old
    )
    return task if rules == old else replace(task, constraints=replace(task.constraints, rules=rules))


def known_calls(models: CostModels, forms: Collection[str] = FORMS) -> frozenset[Call]:
    """Return the types of kernel calls for which the cost models can predict the kernel time and the exchanges. A type
    of kernel call has a family of sharding types (column-wise, row-wise or data-parallel). Only types with a family in
    `forms` are returned.
    """
    known = models.forms.intersection(forms)
    return frozenset(call for call in models.compute.calls if call.form in known)


def allowed_types(task: Task, calls: Collection[Call]) -> BoolArray:
    """Return a mask (T, F): True if a table may have a sharding type, for each of T tables and each of F families of
    sharding types (column-wise, row-wise, data-parallel).

    A type needs a call among the kernel `calls` for the pooling and the tier of the table. The constraints of the task
    and the requirements of the sharding type must allow the type. Row-wise and data-parallel tables are on every
    device, so every device must be allowed. Tables that are pinned or kept apart stay column-wise; tables kept together
    may have the sharding types that all of them may have. A single device has table-wise tables only.
    """
    bound, each = _bound(task), LAYOUTS.values()
    alone = np.array(
        [[_hindrance(task, t, its, calls, bound) is None for its in each] for t in range(len(task.tables))]
    )
    first, by_all = leaders(task), alone.copy()
    np.logical_and.at(by_all, first, alone)
    return by_all[first]


def check_allowed_types(task: Task, allowed: BoolArray, calls: Collection[Call], searched: Collection[str]) -> None:
    """Raise UserError if some table may have no sharding type. In the mask `allowed` (T, F), entry (t, f) is True if
    table t may have the sharding type f.

    The mask was made for the kernel calls `calls`, which are only of sharding types in `searched`.

    Raises:
        UserError: a table may have none; the error names the table and the reason for each sharding type that its
            constraints allow.
    """
    bound = _bound(task)
    for index in np.flatnonzero(~allowed.any(axis=1)).tolist():
        forms = [layout for form, layout in LAYOUTS.items() if form in task.limits[index].forms]
        each = (
            (its, _hindrance(task, index, its, calls, bound) if its.form in searched else _LEFT_OUT) for its in forms
        )
        types = task.limits[index].sharding_types
        why = "; ".join(f"{_names(its, types)}: {hindrance or _OF_GROUP}" for its, hindrance in each)
        names = " or ".join(_names(layout, types) for layout in forms)
        raise UserError(
            "constraints-no-sharding-type",
            f"table {task.tables[index].name!r} may only be {names}, but this is not possible here",
            where="constraints",
            limit=why,
            remedy="Allow other sharding types for this table, or remove one of these causes",
        )


def _names(layout: Layout, types: Collection[str]) -> str:
    """Return the name of a family of sharding types (column-wise, row-wise or data-parallel), for an error message. If
    `types` has only some of the sharding types in the family, return the names of these sharding types instead, joined
    by "or".
    """
    named = [name for name in layout.type_names if name in types]
    return str(layout) if len(named) == len(layout.type_names) else " or ".join(named)


def leaders(task: Task) -> IntArray:
    """Return the index of each table's leader, (T,). Tables that are kept together have the same leader: the first
    table of their group. Every other table is its own leader.
    """
    number = {table.name: index for index, table in enumerate(task.tables)}
    first = np.arange(len(number))
    for group in task.constraints.together:
        members = [number[name] for name in group]
        first[members] = min(members)
    return first


def _bound(task: Task) -> frozenset[str]:
    """Return the names of the tables that the constraints pin to devices or keep apart from other tables."""
    return frozenset(task.constraints.pins).union(*task.constraints.apart)


def _hindrance(task: Task, index: int, layout: Layout, calls: Collection[Call], bound: Collection[str]) -> str | None:
    """Return the reason, as text, why a table may not have the sharding types of a family, such as row-wise. Return
    None if the table may have at least one of these sharding types. Only the table itself is checked, even if the table
    must be kept together with other tables.

    `index` is the index of the table, and `layout` is the family: column-wise, row-wise or data-parallel. `calls` are
    the types of kernel calls that tables may use. `bound` has the names of the tables that are pinned or kept apart.
    """
    table, limits, devices = task.tables[index], task.limits[index], task.topology.num_devices
    why = None
    if layout.form not in limits.forms:
        why = "the constraints of this table name other sharding types"
    elif layout.blocks and not rows_on_all(limits.sharding_types, len(task.topology.domains)):
        why = (
            "the constraints allow this table's rows only within one host, which needs searcher=neuroshard with "
            "table_row_wise in searcher.sharding_types"
        )
    elif Call(layout.form, table.pooled, task.tier_assignments[index].tier) not in calls:
        kind, tier = "pooled" if table.pooled else "sequence", task.tier_assignments[index].tier
        why = f"the cost models do not know this sharding type for {kind} tables in tier {tier}"
    elif layout.free:
        pass
    elif devices == 1:
        why = "with a single device, every table is whole"
    elif table.name in bound:
        why = "this table is pinned, or kept apart from other tables, and such tables must be column_wise"
    elif len(limits.devices) < devices:
        why = f"this table is allowed on {len(limits.devices)} of {devices} devices, but would be on all devices"
    elif not limits.may_count(layout, devices):
        least, most = limits.counts_of(layout)
        limit = f"at least {least}" if layout.num_shards(devices) < least else f"at most {most}"
        why = f"this table must have {limit} shards, but would have {layout.num_shards(devices)} on {devices} devices"
    elif not layout.takes(table.dim):
        why = f"this table has {table.dim} columns, but a shard may have at most {MAX_SHARD_DIM}"
    elif not layout.fits(table.rows, devices):
        why = f"this table has {table.rows} rows, which are too few for {devices} devices"
    return why


class SpreadPlacements:
    """Row-wise and data-parallel placements of the tables of a task over all devices; the placements of a
    table are computed only once.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._made: dict[tuple[int, int], list[Placement]] = {}

    def placements(self, table: int, form: int) -> list[Placement]:
        """Return the placements, over all devices, of one table in the row-wise or data-parallel sharding type `form`.
        Both the table and the sharding type are given by index.
        """
        if (table, form) not in self._made:
            devices = range(self._task.topology.num_devices)
            self._made[table, form] = LAYOUTS[FORMS[form]].over(self._task, table, devices)
        return self._made[table, form]

    def others(self, forms: IntArray) -> list[Placement]:
        """Return a list of the placements (shards on devices) of all row-wise and data-parallel tables, each of which
        is on all devices. `forms` (T,) has the sharding type of each of T tables, as an index of `FORMS`.
        """
        tables = np.flatnonzero(forms != COLUMNS).tolist()
        return [placed for table in tables for placed in self.placements(table, int(forms[table]))]


def rows_for_one_host(task: Task, layouts: Sequence[Layout], models: CostModels) -> list[int]:
    """Return the indices of the tables whose rows may be on the devices of one host, if table t has the sharding type
    `layouts[t]`: pooled row-wise tables whose rules allow this, if the models know the exchanges.
    """
    host, devices = task.topology.domain_size, task.topology.num_devices
    if not 1 < host < devices:
        return []
    known = models.forward.collectives & models.backward.collectives
    bound = {name for group in (*task.constraints.together, *task.constraints.apart) for name in group}
    return [
        index
        for index, (table, layout, limits) in enumerate(zip(task.tables, layouts, task.limits, strict=True))
        if layout.host_exchanges
        and table.pooled  # the rows of sequence tables are on all devices
        and table.name not in bound
        and known.issuperset(layout.host_exchanges)
        and layout.fits(table.rows, host)
        and limits.min_blocks <= host
        and rows_on_one_host(limits.sharding_types)
    ]
