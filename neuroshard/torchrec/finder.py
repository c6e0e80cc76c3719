"""Finding plans for a task: from nothing, or from a plan that there was."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.types import ShardingPlan

from neuroshard.layouts import LAYOUTS
from neuroshard.models.simulator import Simulator
from neuroshard.plans.moves import TableChange, table_changes
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import readable_bytes
from neuroshard.plumbing.threads import blas_threads
from neuroshard.searching.dense_time import find_plan
from neuroshard.searching.searcher import Found, Searcher, Verifier, searcher_of
from neuroshard.tasks.task import Task
from neuroshard.torchrec.kept import DEVICES, KeptPlan
from neuroshard.torchrec.modules import Served
from neuroshard.words.form import IN_COLUMNS
from neuroshard.words.placement import TIERS, Tier

_log = logging.getLogger(__name__)
# A kept plan is changed if only these are others.
_CHANGED = {"tables", "modules", DEVICES, "constraints", "other parameters"}


@dataclass(frozen=True)
class Replanned:
    """A plan that was changed.

    Attributes:
        sharding_plan: the plan of the whole model, for DistributedModelParallel.
        plan: the NeuroShard plan of the tables that are planned here.
        changes: tables that are new, are gone, or change their devices or sharding type; the most bytes first.
    """

    sharding_plan: ShardingPlan
    plan: Plan
    changes: tuple[TableChange, ...]

    @property
    def moved_bytes(self) -> int:
        """Bytes of weights and optimizer state that move; new tables do not count."""
        return sum(change.size_bytes for change in self.changes if not change.is_new)

    def __str__(self) -> str:
        return "\n".join([f"{readable_bytes(self.moved_bytes)} moved", *map(str, self.changes)])


@dataclass(frozen=True)
class Finder:
    """A search method with the cost models that it searches by.

    The verifier measures the best plans of a search from nothing, and chooses one of them; None takes the predicted
    best plan.
    """

    searcher: Searcher
    simulator: Simulator
    verifier: Verifier | None = None

    def served(self, topology: TorchRecTopology) -> Served:
        """Return what this search can place on such devices; tables in host memory are table-wise or column-wise."""
        forms, tiers = self.searcher.takes_forms, TIERS[:1] if topology.compute_device == "cpu" else TIERS
        known = (call for call in self.simulator.models.compute.calls if call.form in forms and call.tier in tiers)
        calls = (call for call in known if call.tier is Tier.DEVICE or LAYOUTS[call.form].free)
        return Served(frozenset(calls), self._no_sequences, int(topology.world_size), topology.compute_device)

    @property
    def _no_sequences(self) -> str | None:
        """Why no plan for sequence tables can be found with these; None where one can."""
        if not self.searcher.takes_sequences:
            return f"{type(self.searcher).__name__} places pooled tables only"
        if replace(IN_COLUMNS, pooled=False) not in self.simulator.models.compute.calls:
            return "a sequence table, unknown to these models: collect compute.pooled=[true,false] and pretrain"
        return None

    def found(self, task: Task) -> Plan:
        """Find a plan for a task from nothing.

        Raises:
            InfeasibleError: no plan fits in memory.
            UserError: plans can't be measured here.
        """
        if self.verifier is None:
            return self._found_by(self.searcher, task)
        found = self.verifier.decided(self.searcher, task, self.simulator)
        _log.info(found.remark)
        return _warned(found)

    def changed(self, before: Plan, task: Task, max_moved_bytes: int | str | None, **settings: Any) -> Plan:
        """Adapt an earlier plan to a task: `searcher=replan`, with `settings`.

        Where that plan can't stay as it is, the method places the rest.

        Raises:
            UserError: more than `max_moved_bytes` has to be moved in any case, or settings aren't to be set.
            InfeasibleError: no plan fits in memory.
        """
        if fixed := {"start", "rest"}.intersection(settings):
            raise UserError(
                f"{min(fixed)}=... can't be set: the previous plan is changed, by the planner's own searcher"
            )
        method = searcher_of("replan", start=before, rest=self.searcher, max_moved_bytes=max_moved_bytes, **settings)
        return self._found_by(method, task)

    def _found_by(self, method: Searcher, task: Task) -> Plan:
        with blas_threads(1):
            return _warned(find_plan(method, task, self.simulator))

    def found_after(self, kept: KeptPlan, others: Sequence[str], task: Task) -> Plan:
        """Adapt a kept plan that was made for something else if only tables or devices came or went; else search again.

        A warning says which are the `others`, what differs.
        """
        said = f"the kept plan was made for other {', '.join(others)}"
        if kept.plan is None or not _CHANGED.issuperset(others) or not _came_or_went(kept.plan, task):
            _log.warning("%s; searching again", said)
            return self.found(task)
        try:
            plan = self.changed(kept.plan, task, None)
        except UserError as error:
            _log.warning("%s, and can't be changed (%s); searching again", said, error)
            return self.found(task)
        _log.warning("%s; it is changed:\n%s", said, "\n".join(map(str, table_changes(kept.plan, plan))))
        return plan


def _warned(found: Found) -> Plan:
    """Log the warning that a found plan comes with, if any, and return the plan."""
    if found.warning:
        _log.warning(found.warning)
    return found.plan


def _came_or_went(before: Plan, task: Task) -> bool:
    """Tell whether tables or devices came or went."""
    names = [{table.name for table in some.tables} for some in (before.task, task)]
    return names[0] != names[1] or before.task.topology.num_devices != task.topology.num_devices
