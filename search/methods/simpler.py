"""Plans with fewer shards than one that was found, at next to no cost: fewer kernel calls, and less to go wrong."""

from collections.abc import Collection

from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.stages.search.local.local_steps import local_steps
from neuroshard.stages.search.local.merges import merged
from neuroshard.stages.search.methods.form_changes import FormChanges
from neuroshard.stages.search.space.base import Base
from neuroshard.stages.search.space.catalog import Catalog
from neuroshard.stages.search.space.homes import settled
from neuroshard.words.form import Call


def simpler(plan: Plan, simulator: Simulator, calls: Collection[Call], tolerance: float) -> Plan:
    """A plan of the same task and limits with fewer shards that costs at most `tolerance` more, relative.

    Tables in rows and copies go back to columns, then shards of a table join each other: what costs least first, by
    prediction. Tables lie in the same memories, and in forms that there are `calls` of. The plan as it is where nothing
    of that is within the tolerance.
    """
    if not tolerance:
        return plan
    start = settled(plan)
    before = simulator.cost(start.task, start)
    most_ms = before.total_ms * (1 + tolerance)
    changes = FormChanges.of(start, simulator, calls) if not start.in_columns else None
    found = start if changes is None else changes.in_columns(most_ms)
    found = _with_fewer_shards(found, simulator, most_ms)
    if len(found.placements) >= len(start.placements):
        return plan
    found = found if found.task is plan.task else Plan(plan.task, found.placements)
    after = simulator.cost(plan.task, found)
    within = after.total_ms <= most_ms and after.likely_ms <= before.likely_ms * (1 + tolerance)
    return found if within and not found.violations else plan


def _with_fewer_shards(plan: Plan, simulator: Simulator, most_ms: float) -> Plan:
    """Merge shards of tables in columns while the plan costs no more than `most_ms`."""
    base = Base.of_plan(plan, simulator.models_for(plan.task).compute)
    in_columns = set(base.in_columns.tolist())
    if sum(placed.shard.table in in_columns for placed in plan.placements) == len(in_columns):
        return plan
    catalog = Catalog.checked(base, simulator)
    held = catalog.items.held(plan)
    local = local_steps(catalog, held, None)
    return catalog.items.plan(merged(catalog, local, local.costed(held), most_ms).held)
