"""Which tables of a plan can't load the optimizer state in checkpoints of an earlier plan, and rules that prevent it.

Tried with TorchRec 1.8 and torch.distributed.checkpoint: weights load under any plan. Optimizer state does not load in
two cases. A state per row is saved once for every column shard, so their number must stay. And the optimizer of a
data-parallel table, unless it is `data_parallel_optimizer`, names its states otherwise than fused kernels do.
"""

from glob import escape

from neuroshard.layouts import Layout
from neuroshard.plans.plan import Plan
from neuroshard.tasks.constraints import TableRule
from neuroshard.tasks.memory import STATE_FLOATS
from neuroshard.tasks.task import Task

_SHOWN = 3  # tables that the remark names
_Type = tuple[Layout, int]  # and the number of ranges of columns


def checkpoint_remark(before: Plan, after: Plan) -> str | None:
    """Return the warning that optimizer state saved under `before` doesn't load under `after`; None if it does."""
    old, new = _types(before), _types(after)
    pairs = {name: (old[name], its) for name, its in new.items() if name in old}
    by_row = STATE_FLOATS[after.task.memory.optimizer][1] > 0
    dense = {name: pair for name, pair in pairs.items() if pair[0][0].dense is not pair[1][0].dense}
    cut = {name: pair for name, pair in pairs.items() if by_row and pair[0][1] != pair[1][1]}
    dense = {name: pair for name, pair in dense.items() if name not in cut}
    said = []
    if dense:
        said.append(f"only if data_parallel_optimizer trains the data-parallel ones ({_listed(dense)})")
    if cut:
        said.append(f"never where the number of column shards changes ({_listed(cut)})")
    if not said:
        return None
    return (
        f"checkpoints: {len(dense) + len(cut):,} table(s) change their sharding type, and optimizer state that was "
        f"saved under the previous plan loads {', and '.join(said)}; keep_types=true keeps types and numbers of shards"
    )


def with_types_of(before: Plan, task: Task) -> Task:
    """Add rules that each table keeps the sharding type and the number of column shards that a plan gives it.

    Tables whose own rules forbid that, or that were cut in more shards than there are devices, get none.
    """
    index = {table.name: number for number, table in enumerate(before.task.tables)}
    rules = []
    for table, limits in zip(task.tables, task.limits, strict=True):
        number = index.get(table.name)
        if number is None or table.name in task.constraints.pins or before.forms[number] not in limits.forms:
            continue
        layout, count = before.layouts[number], len({placed.device for placed in before.by_table[number]})
        most = min(limits.max_shards, task.topology.num_devices, table.dim // limits.min_dim)
        keeps = layout.free and limits.min_shards <= count <= most
        shards = count if keeps else None
        rules.append(TableRule(escape(table.name), min_shards=shards, max_shards=shards, forms=(layout.form,)))
    return task.with_rules(rules)


def _types(plan: Plan) -> dict[str, _Type]:
    """Find the layout of each table, by name, and the number of its ranges of columns."""
    each = zip(plan.task.tables, plan.layouts, plan.by_table, strict=True)
    return {table.name: (layout, len({placed.shard.column for placed in its})) for table, layout, its in each}


def _listed(pairs: dict[str, tuple[_Type, _Type]]) -> str:
    texts = [f"{name}: {_named(*old)} -> {_named(*new)}" for name, (old, new) in pairs.items()]
    return ", ".join([*texts[:_SHOWN], *([f"{len(texts) - _SHOWN:,} more"] if len(texts) > _SHOWN else [])])


def _named(layout: Layout, count: int) -> str:
    return f"{count} column shards" if count > 1 else layout.kind
