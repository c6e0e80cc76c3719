"""Functions for training jobs that save a checkpoint under one sharding plan, and load the checkpoint under another
plan. `checkpoint_remark` warns if optimizer state would be lost. `with_types_of` adds constraints to a task
against this loss, as far as the task allows such constraints.

Tests with TorchRec 1.8 and 1.9 and torch.distributed.checkpoint showed: weights load under any plan. Optimizer state
does not load in two cases. A state per row is saved once for every column shard, so the number of column shards must
not change. And the optimizer of a data-parallel table names its states differently from fused kernels, unless it is
`data_parallel_optimizer`.
"""

from collections.abc import Mapping
from glob import escape
from typing import NamedTuple

from neuroshard.layouts import Layout
from neuroshard.layouts.widths import fewest_parts
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.messages import Message, number_of
from neuroshard.plumbing.schema import readable_list
from neuroshard.tasks.constraints import TableLimits, TableRule
from neuroshard.tasks.memory import STATE_FLOATS
from neuroshard.tasks.task import Task

_SHOWN = 3  # maximum number of tables that the warning names


class _Sharded(NamedTuple):
    """The properties of a table's placement that decide whether the table's optimizer state loads from a checkpoint.

    Attributes:
        sharding_type: sharding type, as text for people.
        dense: True if a dense optimizer trains the table.
        column_ranges: number of different column ranges of the table's shards.
    """

    sharding_type: str
    dense: bool
    column_ranges: int

    def __str__(self) -> str:
        return f"{self.column_ranges} column shards" if self.column_ranges > 1 else self.sharding_type


def checkpoint_remark(before: Plan, after: Plan) -> Message | None:
    """Return a warning if optimizer state that was saved under the plan `before` does not load under the plan `after`.
    Return None if all of the optimizer state loads.
    """
    old, new = _sharded(before), _sharded(after)
    pairs = {name: (old[name], sharded) for name, sharded in new.items() if name in old}
    by_row = STATE_FLOATS[after.task.memory.optimizer][1] > 0
    split = {
        name: (was, now) for name, (was, now) in pairs.items() if by_row and was.column_ranges != now.column_ranges
    }
    dense = {name: (was, now) for name, (was, now) in pairs.items() if was.dense is not now.dense and name not in split}
    conditions = []
    if dense:
        tables = number_of(len(dense), "table")
        conditions.append(
            f"for {tables} ({_listed(dense)}) loads only if data_parallel_optimizer trains the data-parallel tables"
        )
    if split:
        tables = number_of(len(split), "table")
        conditions.append(f"for {tables} ({_listed(split)}) does not load, because the number of column shards changes")
    if not conditions:
        return None
    return Message(
        "checkpoint-state-lost",
        "the new plan changes the sharding type or the number of column shards of tables",
        where="checkpoints",
        limit=f"the optimizer state that was saved under the previous plan {', and '.join(conditions)}",
        remedy="Search again with keep_types=true (searcher.keep_types on the command line), which keeps the sharding "
        "types and the numbers of column shards that constraints allow",
    )


def with_types_of(before: Plan, task: Task) -> Task:
    """Return the task with rules that make each table keep its sharding type and number of column shards.
    The types and numbers are taken from the plan `before`.

    A table gets no such rule if its own rules or its shape forbid the previous sharding type. The rule has no number of
    shards if the table's own rules, its shape or the number of devices forbid the previous number.
    """
    index = {table.name: number for number, table in enumerate(before.task.tables)}
    rules = []
    for table, limits in zip(task.tables, task.limits, strict=True):
        number = index.get(table.name)
        if number is None or table.name in task.constraints.pins:
            continue
        layout, placements = before.layouts[number], before.by_table[number]
        types = limits.sharding_types & layout.allowed_by(placements, before.task.topology)
        if not types or not layout.takes(table.dim) or not _has_devices(layout, limits, task):
            continue
        count = len({placed.device for placed in placements})
        most = min(limits.max_shards, task.topology.num_devices, table.dim // limits.min_dim)
        least = max(limits.min_shards, fewest_parts(table.dim))  # a wide table may have several shards on a device
        shards = count if layout.free and least <= count <= most else None
        names = tuple(sorted(types))
        rules.append(TableRule(escape(table.name), min_shards=shards, max_shards=shards, sharding_types=names))
    return task.with_rules(rules)


def _has_devices(layout: Layout, limits: TableLimits, task: Task) -> bool:
    """Return True if the constraints of a table allow enough devices for a family of sharding types: column-wise,
    row-wise or data-parallel. `layout` is the object that implements this family, and `limits` are the constraints of
    the table.
    """
    counts = (task.topology.num_devices, task.topology.domain_size)
    everywhere = not layout.everywhere or len(limits.devices) == task.topology.num_devices
    return layout.free or (everywhere and any(limits.may_count(layout, count) for count in counts))


def _sharded(plan: Plan) -> dict[str, _Sharded]:
    """Return, for each table of the plan, the properties that decide whether the table's optimizer state loads from a
    checkpoint. The result is a dict by name of the table.
    """
    each = zip(plan.task.tables, plan.sharding_types, plan.layouts, plan.by_table, strict=True)
    return {
        table.name: _Sharded(name.replace("_", "-"), layout.dense, len({placed.shard.column for placed in placements}))
        for table, name, layout, placements in each
    }


def _listed(pairs: Mapping[str, tuple[_Sharded, _Sharded]]) -> str:
    """Return the old and new sharding of some tables as text, such as "user: table-wise -> data-parallel"."""
    return readable_list([f"{name}: {old} -> {new}" for name, (old, new) in pairs.items()], _SHOWN)
