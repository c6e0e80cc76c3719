"""Search for plans: from scratch, or starting from an earlier plan."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.types import ShardingPlan

from neuroshard.layouts import LAYOUTS
from neuroshard.models.simulator import Simulator
from neuroshard.plans.checkpoints import checkpoint_remark, with_types_of
from neuroshard.plans.moves import TableChange, moved_bytes, table_changes
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.messages import Message
from neuroshard.plumbing.schema import readable_bytes
from neuroshard.plumbing.threads import blas_threads
from neuroshard.searching.dense_time import find_plan
from neuroshard.searching.searcher import Found, Searcher, Verifier, searcher_of
from neuroshard.tasks.changes import TaskChanges
from neuroshard.tasks.task import Task
from neuroshard.torchrec.kept import DEVICES, KeptPlan
from neuroshard.torchrec.modules import Served, listed
from neuroshard.words.form import COLUMN_WISE_CALL
from neuroshard.words.placement import TIERS, Tier

_log = logging.getLogger(__name__)
# A kept plan can be adapted if only these inputs differ.
_CHANGED = {"tables", "modules", DEVICES, "constraints", "other parameters"}
_COSTED_DEVICES = ("cpu", "cuda")  # the kernels of other types of devices have no cost models
_STAY = 1.0  # a value of `min_gain` that makes tables stay on their devices if they can
_WORTH_SAYING = 0.01  # minimum gain, as a share of the step, that is worth a warning


@dataclass(frozen=True)
class Replanned:
    """The result of changing an earlier plan: the new plan, and a list of the changes.

    Attributes:
        sharding_plan: the plan of the whole model, for DistributedModelParallel.
        plan: the NeuroShard plan of the tables that are planned here.
        changes: tables that are new, are removed, or change their devices or sharding type; tables with the most bytes
            come first.
        since: differences between the tables and devices of both plans; None if they were not compared.
    """

    sharding_plan: ShardingPlan
    plan: Plan
    changes: tuple[TableChange, ...]
    since: TaskChanges | None = None

    @property
    def moved_bytes(self) -> int:
        """The total bytes of weights and optimizer state that the new plan moves; tables that are new do not count."""
        return sum(change.size_bytes for change in self.changes if not change.is_new)

    def __str__(self) -> str:
        since = [f"changed: {self.since}"] if self.since else []
        return "\n".join([f"{readable_bytes(self.moved_bytes)} moved", *since, *map(str, self.changes)])


@dataclass(frozen=True)
class Finder:
    """A search method, with the cost models that the search method uses.

    Attributes:
        searcher: the search method.
        simulator: predicts the costs of plans.
        verifier: measures the best plans of a search from scratch and chooses one of them; None takes the plan with the
            lowest predicted cost.
        keep_types: True if tables of a kept plan keep their sharding types and numbers of column shards.
    """

    searcher: Searcher
    simulator: Simulator
    verifier: Verifier | None = None
    keep_types: bool = False

    def served(self, topology: TorchRecTopology) -> Served:
        """Return the conditions that a table must meet so that this search can place the table on the devices of the
        topology.

        Tables in host memory can only be table-wise or column-wise. On devices other than CPUs and CUDA GPUs, the
        search can place no tables.
        """
        forms, tiers = self.searcher.takes_forms, TIERS[:1] if topology.compute_device == "cpu" else TIERS
        in_forms_and_tiers = (
            call for call in self.simulator.models.compute.calls if call.form in forms and call.tier in tiers
        )
        calls = (call for call in in_forms_and_tiers if call.tier is Tier.DEVICE or LAYOUTS[call.form].free)
        device = topology.compute_device
        unknown = None if device in _COSTED_DEVICES else f"no cost models for devices of type {device}"
        return Served(frozenset(calls), unknown, self._no_sequences, int(topology.world_size), device)

    @property
    def _no_sequences(self) -> str | None:
        """The reason why the searcher or the cost models cannot plan sequence tables.
        The value is None if both support sequence tables.
        """
        if not self.searcher.takes_sequences:
            return f"{type(self.searcher).__name__} places pooled tables only"
        if replace(COLUMN_WISE_CALL, pooled=False) not in self.simulator.models.compute.calls:
            return "no cost models for sequence tables: collect with compute.pooled=[true,false] and pretrain"
        return None

    def found(self, task: Task) -> Plan:
        """Search for a plan of a task from scratch, without an earlier plan, and return the plan.

        Raises:
            InfeasibleError: no plan fits in memory.
            UserError: the verifier cannot measure plans on this machine.
        """
        if self.verifier is None:
            return self._found_by(self.searcher, task)
        found = self.verifier.decided(self.searcher, task, self.simulator)
        _log.info(found.remark)
        return _warned(found)

    def changed(self, before: Plan, task: Task, max_moved_bytes: int | str | None, **settings: Any) -> Plan:
        """Return a plan of the task that is made by changing the earlier plan `before`.
        The new plan moves at most `max_moved_bytes` of tables to other devices; None sets no limit.

        The search method `replan` makes the new plan, with the settings in `settings`.

        If the earlier plan cannot stay as it is, the planner's searcher places the other tables. The acceptance rule of
        that searcher decides about gains.

        Raises:
            UserError: every possible plan moves more than `max_moved_bytes`, or `settings` has a setting that is fixed
                here.
            InfeasibleError: no plan fits in memory.
        """
        if fixed := {"start", "rest"}.intersection(settings):
            raise UserError(
                "replan-setting-fixed",
                f"{min(fixed)}= cannot be passed to replan()",
                limit="replan() starts from the plan in previous= and uses the planner's own searcher",
                remedy=f"Remove {min(fixed)}=...",
            )
        given = {"acceptance": self.searcher.acceptance} if hasattr(self.searcher, "acceptance") else {}
        given |= {"start": before, "rest": self.searcher, "max_moved_bytes": max_moved_bytes} | settings
        method = searcher_of("replan", **given)
        return self._found_by(method, task)

    def _found_by(self, method: Searcher, task: Task) -> Plan:
        with blas_threads(1):
            return _warned(find_plan(method, task, self.simulator))

    def found_after(self, kept: KeptPlan, others: Sequence[str], task: Task) -> Plan:
        """Adapt `kept`, a plan that an earlier job saved in a file, to changed tables or devices, and return the new
        plan. If the saved plan cannot be adapted, search from scratch. `others` has the names of the inputs that differ
        between the two jobs, such as the tables.

        If the number of devices is unchanged, tables stay on their devices. A warning names the inputs that differ, the
        changes, the tables that move, and the gain of moving more tables.
        """
        changes = None if kept.plan is None else TaskChanges.between(kept.plan.task, task)
        adapted = changes or "other parameters" in others
        allowed = _CHANGED | {"batch size"} if changes and changes.of_devices else _CHANGED
        if kept.plan is None or changes is None or not allowed.issuperset(others) or not adapted:
            return self._searched_again(kept.plan, task, kept_plan_outdated(others))
        settings: dict[str, Any] = {} if changes.of_devices else {"min_gain": _STAY}
        try:
            plan = self.changed(kept.plan, task, None, keep_types=self.keep_types, **settings)
        except UserError as error:
            return self._searched_again(kept.plan, task, kept_plan_outdated(others, error))
        moves = list(map(str, table_changes(kept.plan, plan)))
        differences = [f"changed: {changes}"] if changes else []
        _log.warning(
            Message(
                "kept-plan-adapted",
                f"the kept plan was made for different inputs: {', '.join(others)}",
                limit="; ".join(
                    (
                        "the planner adapts the kept plan",
                        *differences,
                        listed(moves) or "all tables stay where they are",
                    )
                ),
                remedy="Remove the kept file to have the planner search from nothing",
            )
        )
        if moves:
            _log.info("changes of tables from the kept plan:\n%s", "\n".join(moves))
        if settings and (remark := self._gain_of_moving(plan, kept.plan)):
            _log.warning(remark)
        return plan

    def found_instead(self, kept: Plan | None, task: Task) -> Plan:
        """Search for a plan of a task from scratch, and return the new plan. `kept` is the saved plan of an earlier
        job, or None if there is no such plan. If the finder's `keep_types` is true, each table keeps the sharding type
        and the number of column shards that it has in the saved plan, if the rules and the shape of the table and the
        number of devices allow this. In all other cases, the search chooses.
        """
        if kept is None or not self.keep_types:
            return self.found(task)
        return replace(self.found(with_types_of(kept, task)), task=task)

    def _searched_again(self, kept: Plan | None, task: Task, why: Message) -> Plan:
        """Search from scratch for a plan that replaces `kept`, the saved plan of an earlier job, and return the new
        plan. Log the warning `why`, and warn about tables whose saved optimizer state cannot be loaded into the new
        plan.
        """
        _log.warning(why)
        plan = self.found_instead(kept, task)
        if kept is not None and (remark := checkpoint_remark(kept, plan)):
            _log.warning(remark)
        return plan

    def _gain_of_moving(self, plan: Plan, kept: Plan) -> Message | None:
        """Return a warning if moving tables of `plan` between devices would make a training step at least 1% shorter,
        as predicted by the cost models. Return None otherwise. `plan` is the plan of this job, which was made from
        `kept`, the saved plan of an earlier job.
        """
        moved = self.changed(plan, plan.task, None, keep_types=self.keep_types)
        now, then = (cost.total_ms for cost in self.simulator.costs(plan.task, [plan, moved]))
        if then > now * (1 - _WORTH_SAYING):
            return None
        before = "" if kept.prediction is None else f" ({kept.prediction.cost_ms:.2f} ms when it was saved)"
        size = readable_bytes(moved_bytes(plan, moved))
        return Message(
            "kept-plan-gain-of-moving",
            f"the kept plan, adapted to this job, is predicted to take {now:.2f} ms per step{before}",
            limit=f"moving {size} of tables would lower this to {then:.2f} ms ({1 - then / now:.1%} less)",
            remedy="To move tables, call planner.replan(model, previous=...); to search a new plan, delete the "
            "kept file",
        )


def kept_plan_outdated(others: Sequence[str], error: UserError | None = None) -> Message:
    """Return the warning that the inputs of this job differ from the inputs of the saved plan of an earlier job.
    The warning also says that the planner searches again. `others` has the names of the inputs that differ.

    `error` is the reason why the planner could not adapt the kept plan; None if the planner did not try.
    """
    failed = "" if error is None else f", because the kept plan cannot be adapted: {error.changed(remedy='')}"
    return Message(
        "kept-plan-outdated",
        f"the kept plan was made for different inputs: {', '.join(others)}",
        limit=f"the planner searches again{failed}",
        remedy="If several jobs share the file of keep=, set keep= to a different file for each job",
    )


def _warned(found: Found) -> Plan:
    """Return the plan of a search result; if the search result has a warning, log the warning."""
    if found.warning:
        _log.warning(found.warning)
    return found.plan
