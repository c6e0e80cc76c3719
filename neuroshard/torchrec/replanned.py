"""A plan changed after tables came or went, or with another number of devices: little of it is moved."""

import logging
from dataclasses import dataclass
from typing import Any

from torchrec.distributed.types import ShardingPlan

from neuroshard.errors import UserError
from neuroshard.plans.carry_over import carried_over
from neuroshard.plans.moves import TableChange, moved_bytes
from neuroshard.plans.plan import Plan
from neuroshard.searcher import Searcher
from neuroshard.searching import searcher_of
from neuroshard.simulator import Simulator
from neuroshard.tasks.task import Task
from neuroshard.units import readable_bytes, to_bytes

_log = logging.getLogger(__name__)
_HELD = (1.0, 0.9, 0.5)  # of the bytes that can stay, held in place one after the other until the rest finds room


@dataclass(frozen=True)
class Replanned:
    """A plan that was changed.

    Attributes:
        sharding_plan: of the whole model, for DistributedModelParallel.
        plan: of the tables that are planned here.
        changes: tables that lie elsewhere, are new or are gone, the most bytes first.
    """

    sharding_plan: ShardingPlan
    plan: Plan
    changes: tuple[TableChange, ...]

    @property
    def moved_bytes(self) -> int:
        """Bytes of weights and optimizer state that are moved; those of new tables aren't."""
        return sum(change.size_bytes for change in self.changes if not change.is_new)

    def __str__(self) -> str:
        return "\n".join([f"{readable_bytes(self.moved_bytes)} moved", *map(str, self.changes)])


def replanned(
    previous: Plan,
    task: Task,
    simulator: Simulator,
    searcher: Searcher,
    max_moved_bytes: int | str | None = None,
    **settings: Any,
) -> Plan:
    """A plan for `task` that sets out from the previous one.

    What stays in place is held there while `searcher` places the rest; then `searcher=replan`, with `settings`,
    improves everything by moving what is left of the limit.

    Raises:
        UserError: more than `max_moved_bytes` has to be moved in any case.
        InfeasibleError: no plan fits in memory.
    """
    start = _start(previous, task, simulator, searcher)
    limit = None if max_moved_bytes is None else to_bytes(max_moved_bytes, "max_moved_bytes")
    needed = moved_bytes(previous, start)
    if limit is not None and needed > limit:
        raise UserError(
            f"max_moved_bytes={limit}: {needed} bytes are moved at least, away from devices that are gone or too "
            "small, or where constraints say so; allow as many"
        )
    left = None if limit is None else limit - needed
    found = searcher_of("replan", start=start, max_moved_bytes=left, **settings).find(task, simulator)
    if found.warning:
        _log.warning(found.warning)
    return found.plan


def _start(previous: Plan, task: Task, simulator: Simulator, searcher: Searcher) -> Plan:
    """The previous plan where all of it can stay; else what `searcher` finds beside as much of it as fits."""
    carried = carried_over(previous, task)
    if (plan := carried.plan) is not None:
        return plan
    refused: UserError | None = None
    for share in _HELD:
        try:
            return Plan(task, searcher.search(carried.largest(share).pinned, simulator).placements)
        except UserError as error:  # what is held leaves the rest no room, or breaks a limit
            refused = refused or error
    _log.warning("the previous plan can't stay (%s); planning from nothing", refused)
    return searcher.search(task, simulator)
