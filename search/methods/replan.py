"""Re-planning of a running job: improves the job's plan, but moves few bytes between devices."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from neuroshard.cost.cost import Cost
from neuroshard.layouts.sharding_types import forms_of, sharding_types_named
from neuroshard.models.simulator import Simulator
from neuroshard.plans.carry_over import Carried, carried_over, have_same_devices, restated
from neuroshard.plans.checkpoints import checkpoint_remark, with_types_of
from neuroshard.plans.hosts import kept_on_hosts
from neuroshard.plans.moves import moved_between, moved_bytes
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import digest_of
from neuroshard.plumbing.messages import Message, both_in_one, number_of
from neuroshard.plumbing.schema import ByteSize, NonNegative, readable_bytes, shown
from neuroshard.searching.searcher import Found, Searcher
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.local.starts import ExistingPlan
from neuroshard.stages.search.methods.acceptance import Acceptance, assess, cheapest
from neuroshard.stages.search.methods.improved import ImprovedSearch
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.options.sharding_types import known_calls
from neuroshard.stages.search.options.tier_changes import fix_tiers
from neuroshard.stages.search.options.type_changes import TypeChanges
from neuroshard.stages.search.space.fixed_load import FixedLoad
from neuroshard.tasks.changes import TaskChanges
from neuroshard.tasks.task import Task
from neuroshard.words.form import FORMS

_IMPROVEMENT = Improvement(max_plans=100_000_000)  # jobs run for long, and their plans are improved rarely
_LEAST_MS = 1e-9  # lower limit of a cost in a ratio: models may predict 0
_HELD = (1.0, 0.9, 0.5)  # shares of the bytes that can stay; tried one after the other until the rest has room


@dataclass(frozen=True)
@checked
class Replan(Searcher):
    """Improves the plan of a running job, with a limit on the bytes moved between devices.

    The task may differ from the plan's own task in anything. A table is known by its name: a table that grew, or has
    other statistics or another data type, stays where it is. If the plan cannot stay as it is, because tables or
    devices came or went or the plan breaks limits, then shards of tables that both tasks have stay on devices that both
    tasks have, as far as possible. The searcher `rest` places the rest, and its plan is improved.

    Every table keeps its tier. Local search moves the shards of column-wise tables. Before that, tables may change
    their sharding type, if that is estimated to help and moves no more bytes than the limit.

    Moving must pay: the search accepts a gain by the rule of the default search, which compares the gain with the
    models' margins. Among the accepted plans that cost at most `min_gain` more than the cheapest of them, the search
    returns the plan that moves the fewest bytes.

    Attributes:
        start: path of the running job's plan file, such as plans/task-0000.json. In Python also a `Plan`.
        max_moved_bytes: maximum bytes of weights and optimizer state that move between devices in total, as a number or
            as text such as 20GB; None sets no limit. Shards that do not fit in their places count first. New tables are
            created in place and do not count.
        improvement: settings of the local search.
        sharding_types: list of sharding types that tables may change to, if the cost models know them, such as
            [column_wise,row_wise]; [] keeps the sharding type of every table.
        min_gain: predicted gain that moving more bytes must bring, as a fraction of the plan cost (0.01 is 1%): of all
            plans within this fraction of the cheapest, the search takes the one that moves the fewest bytes; 1 moves
            only shards that do not fit in their places.
        rest: searcher that places the shards that cannot stay where the running job's plan has them.
        keep_types: true keeps the sharding type and the number of column shards of every table, if constraints allow,
            so that optimizer state loads from checkpoints; false lets the search change both.
        acceptance: rule by which the search accepts predicted gains, as in the default search; None accepts every gain.
    """

    start: Plan | str
    max_moved_bytes: ByteSize | None = None
    improvement: Improvement = _IMPROVEMENT
    sharding_types: tuple[str, ...] = FORMS
    min_gain: NonNegative = 0.01
    rest: Searcher = field(default_factory=NeuroShard)
    keep_types: bool = False
    acceptance: Acceptance | None = field(default_factory=Acceptance)

    def __post_init__(self) -> None:
        if not isinstance(self.start, (Plan, str)):
            raise UserError(
                "replan-start-not-plan",
                f"start is {shown(self.start)}",
                where="searcher",
                limit="start must be the path of a plan file, or a Plan",
                remedy="Set start to the plan of the running job, such as start=plans/task-0000.json",
            )
        object.__setattr__(self, "sharding_types", sharding_types_named(self.sharding_types))

    def find(self, task: Task, simulator: Simulator) -> Found:
        """Return a plan that costs nearly as little as the cheapest plan found. If there are several such plans, return
        the plan that moves the fewest bytes between devices.

        Plans that the search does not accept are left out. The plan that makes only the required moves is always
        accepted. Any other plan must be accepted by the rule `acceptance`; for example, the predicted gain must exceed
        a margin for the errors of the cost models. The remark of the result names the bytes that are moved. The result
        has a warning if all tables were planned from nothing, or if optimizer state does not load.

        Raises:
            UserError: the starting plan has none of the task's tables; or more than `max_moved_bytes` has to be moved
                in any case; or the models do not know the sharding types that its tables have.
            InfeasibleError: no plan fits in memory.
        """
        before = self.start if isinstance(self.start, Plan) else Plan.load(self.start)
        begun = self._starting_plan(before, with_types_of(before, task) if self.keep_types else task, simulator)
        start = fix_tiers(begun.plan)
        simulator.models.check(start.task)
        simulator.models.check_plan(start)
        left = self._left(moved_bytes(before, start))
        found = [replace(begun, plan=start)]
        if self.min_gain < 1:
            firsts = chain([start], self._with_other_types(start, left, simulator))
            found += [self._improved(start, first, left, simulator) for first in firsts]
        costs = simulator.costs(start.task, [one.plan for one in found])
        accepted = self._accepted(found, costs, simulator)
        best = self._worth_it(before, [found[number] for number in accepted], [costs[number] for number in accepted])
        rejected = replace(found[cheapest(costs)].plan, task=task)
        plan = replace(best.plan, task=task)
        said = "; ".join(filter(None, (_remark(before, plan, simulator), begun.remark)))
        warning = both_in_one(begun.warning or best.warning, checkpoint_remark(before, plan))
        return Found(plan, warning, rejected if cheapest(costs) not in accepted else None, said)

    def _starting_plan(self, before: Plan, task: Task, simulator: Simulator) -> Found:
        """Return the previous plan as a plan of `task`. Shards stay on their devices if possible; a search
        places all other shards.
        """
        if (plan := _stayed(before, task)) is not None:
            return Found(plan)
        if len(TaskChanges.between(before.task, task).added) == len(task.tables):
            raise UserError(
                "replan-start-other-tables",
                f"the starting plan ({number_of(len(before.task.tables), 'table')}) has no table of the task "
                f"({number_of(len(task.tables), 'table')}, such as {task.tables[0].name!r})",
                limit="the tables of a plan and of a task are matched by name",
                remedy="Set start to this job's own plan, or search from nothing with searcher=neuroshard",
            )
        return self._placed_around_carried(before, carried_over(before, task), simulator)

    def _placed_around_carried(self, before: Plan, carried: Carried, simulator: Simulator) -> Found:
        """Return a plan in which shards of the previous plan stay on their devices, and a search places all other
        shards. `carried` has the shards that can stay.

        If the search finds no plan, the next attempts keep fewer of the column shards on their devices. The last
        attempt keeps no shard, and plans all tables from nothing.
        """
        refused: UserError | None = None
        for share in _HELD:
            try:
                found = self.rest.find(carried.fitting.largest(share).pinned, simulator).plan
            except UserError as error:  # the carried shards leave the rest no room, or break a limit
                refused = refused or error
            else:
                plan = Plan(carried.task, found.placements)
                size, cost_ms = readable_bytes(moved_bytes(before, plan)), simulator.cost(plan.task, plan).total_ms
                remark = f"a plan that keeps every shard that fits moves {size}; its predicted cost is {cost_ms:.2f} ms"
                return Found(plan, remark=remark)
        plan = self.rest.find(carried.task, simulator).plan
        return Found(plan, _from_nothing(refused))

    def _left(self, needed: int) -> int | None:
        """Return the number of bytes that may still be moved after the required moves, or None if there is no limit.
        The required moves, such as moves away from a removed device, take `needed` bytes.
        """
        most = self.max_moved_bytes
        if most is None:
            return None
        if needed > most:
            raise UserError(
                "replan-moves-exceed-limit",
                f"max_moved_bytes is {most}",
                limit=f"the plan with the fewest moves that was found moves {needed} bytes, because devices are gone "
                "or too small, or because constraints require moves",
                remedy=f"Set max_moved_bytes (searcher.max_moved_bytes on the command line) to at least {needed}",
            )
        return most - needed

    def _accepted(self, found: Sequence[Found], costs: Sequence[Cost], simulator: Simulator) -> list[int]:
        """Return the indices of the accepted plans in `found`. The first plan is always accepted. Every other plan is
        accepted if the predicted gain over the first plan is large enough by the acceptance rule of the search. If the
        search has no acceptance rule, all plans are accepted.

        If tables change their sharding type, models that do not know whole steps must predict a larger gain.
        """
        task, start, same = found[0].plan.task, found[0].plan, self.acceptance
        other = same and same.of_forms(simulator.models)
        of_same, of_other = (assess(acceptance, costs, task, simulator) for acceptance in (same, other))
        each = zip(found, of_same, of_other, strict=True)
        judged = [by_other if one.plan.forms != start.forms else by_same for one, by_same, by_other in each]
        return [number for number, assessment in enumerate(judged) if assessment.rejected is None]

    def _worth_it(self, before: Plan, found: Sequence[Found], costs: Sequence[Cost]) -> Found:
        """Return the plan that moves the fewest bytes from the previous plan `before`, among the plans in `found` that
        cost nearly as little as the cheapest plan.

        `found` begins with the plan that makes required moves only; any other plan must save `min_gain` at least.
        """
        all_ms = [cost.total_ms for cost in costs]
        most, worth = min(all_ms) + self.min_gain * all_ms[0], all_ms[0] * (1 - self.min_gain)
        enough = [
            (moved_bytes(before, one.plan), ms, number)
            for number, (one, ms) in enumerate(zip(found, all_ms, strict=True))
            if ms <= (most if number == 0 else min(most, worth))
        ]
        return found[min(enough)[2]]

    def _with_other_types(self, start: Plan, most: int | None, simulator: Simulator) -> Iterator[Plan]:
        """Yield up to two changed copies of the plan `start`, in which some tables have other sharding types. For one
        copy, the change moves at most `most` bytes between devices, and for the other copy at most half as many.

        If `most` is None, at most one copy is yielded, and the change may move any number of bytes.
        """
        changes = TypeChanges.of(start, simulator, known_calls(simulator.models, forms_of(self.sharding_types)))
        if changes is None:
            return
        seen = [start]
        for limit in (None,) if most is None else (most, most // 2):
            plan = changes.within(limit)
            if plan not in seen:
                seen.append(plan)
                yield plan

    def _improved(self, start: Plan, first: Plan, most: int | None, simulator: Simulator) -> Found:
        """Move column-wise shards of the plan `first` between devices, and return the new plan if the new plan has a
        lower predicted cost than `first`. Otherwise, return `first`. At most `most` bytes move between devices from the
        plan `start` to the returned plan; None sets no limit.
        """
        kept = kept_on_hosts(first)
        fixed = FixedLoad.of_plan(kept, simulator.compute_for(kept.task))
        if not len(fixed.column_wise):
            return Found(first)
        left = None if most is None else most - int(moved_between(start, first).sum())
        steps = ImprovedSearch((ExistingPlan(kept),), self.improvement, max_moved_bytes=left)
        found = steps.found(fixed, simulator)
        moved = replace(found.plan, task=first.task)
        before, after = simulator.costs(first.task, [first, moved])
        return replace(found, plan=moved if after.total_ms < before.total_ms else first)

    def reads(self) -> tuple[str, ...]:
        """Return a tuple with the digest (hash) of the previous plan's file. The tuple is empty if the previous plan is
        given as a `Plan` object, not as a file.
        """
        return () if isinstance(self.start, Plan) else (digest_of(Path(self.start)),)


def _stayed(before: Plan, task: Task) -> Plan | None:
    """Return a plan of `task` in which every shard stays where the previous plan `before` has this shard. Return None
    if a shard cannot stay, or if the plan breaks a limit of the task.
    """
    changes = TaskChanges.between(before.task, task)
    if not (changes.added or changes.removed) and have_same_devices(before.task, task):
        plan = restated(before, task)
        return None if plan is None or plan.violations else plan
    return carried_over(before, task).plan


def _from_nothing(refused: UserError | None) -> Message:
    """Return a warning for the user: the previous plan could not be kept, so the search planned all tables from
    nothing. `refused` is the error that prevented keeping the previous plan. If `refused` is None, the warning gives no
    reason.
    """
    reason = "" if refused is None else f": {refused.changed(remedy='')}"
    remedy = "" if refused is None else refused.message.remedy
    what = f"the search planned all tables from nothing, because the previous plan could not be kept{reason}"
    return Message("replan-from-nothing", what, where="re-planning", remedy=remedy)


def _remark(before: Plan, plan: Plan, simulator: Simulator) -> str:
    """Return a line of text on the new plan: the changed tables and devices, the bytes moved, and the predicted saving.

    If the starting plan cannot stay as it is, its cost is unknown, and the text has the new plan's cost only.
    """
    task = plan.task
    state_bytes = int(task.memory.state_bytes(task.loads).sum())
    moves = f"moves {readable_bytes(moved_bytes(before, plan))} of {readable_bytes(state_bytes)}"
    said = [text for text in (str(TaskChanges.between(before.task, task)), moves) if text]
    if (start := _stayed(before, task)) is None:
        return ", ".join([*said, f"predicted {simulator.cost(task, plan).total_ms:.2f} ms"])
    was, now = (cost.total_ms for cost in simulator.costs(task, [start, plan]))
    changed = sum(old is not new for old, new in zip(start.forms, plan.forms, strict=True))
    formed = f"; {changed:,} of {len(task.tables):,} tables change their sharding type" if changed else ""
    return ", ".join([*said, f"predicted {was:.2f} -> {now:.2f} ms ({1 - now / max(was, _LEAST_MS):.1%} less){formed}"])
