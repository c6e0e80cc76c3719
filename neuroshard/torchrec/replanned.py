"""A plan changed after tables came or went, or with another number of devices: little of it is moved."""

import logging
from dataclasses import dataclass
from typing import Any

from torchrec.distributed.types import ShardingPlan

from neuroshard.models.simulator import Simulator
from neuroshard.plans.moves import TableChange
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.units import readable_bytes
from neuroshard.searching.searcher import Searcher, searcher_of
from neuroshard.tasks.task import Task

_log = logging.getLogger(__name__)


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
    """A plan for `task` that sets out from the previous one: `searcher=replan`, with `settings`.

    Where the previous plan can't stay as it is, `searcher` places the rest.

    Raises:
        UserError: more than `max_moved_bytes` has to be moved in any case.
        InfeasibleError: no plan fits in memory.
    """
    method = searcher_of("replan", start=previous, rest=searcher, max_moved_bytes=max_moved_bytes, **settings)
    found = method.find(task, simulator)
    if found.warning:
        _log.warning(found.warning)
    return found.plan
