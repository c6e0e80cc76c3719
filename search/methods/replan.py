"""Re-planning a running job: a plan made better by moving few bytes."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from neuroshard.checked import checked
from neuroshard.errors import UserError
from neuroshard.files import digest_of
from neuroshard.plans.form import FORMS, Form
from neuroshard.plans.plan import Plan
from neuroshard.schema import shown
from neuroshard.searcher import Found, Searcher
from neuroshard.simulator import Simulator
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.form_changes import FormChanges
from neuroshard.stages.search.methods.improved import ImprovedSearch
from neuroshard.stages.search.methods.starts import ExistingPlan
from neuroshard.stages.search.space.form_beside import beside
from neuroshard.stages.search.space.forms import FormedTask, known_calls
from neuroshard.stages.search.space.homes import settled
from neuroshard.stages.search.space.moved import moved_between
from neuroshard.tasks.task import Task
from neuroshard.units import ByteSize, readable_bytes

_LEAST_MS = 1e-9  # models may say that nothing costs anything


@dataclass(frozen=True)
@checked
class Replan(Searcher):
    """Improves the plan that a job runs with; what has to be moved between devices stays under a limit.

    The task may differ from the plan's own in anything but its tables' rows and dims, and the number of devices: in
    pooling factors, reuse, batch size, memory, constraints. The plan must fit it as it is.

    Every table stays in the memory that it lies in. Columns are moved by local search. Before that, tables may get
    another form, where that is estimated to help and its bytes are within the limit.

    Attributes:
        start: the plan, or the path of its JSON.
        max_moved_bytes: of weights and optimizer state, over all devices, as a number or as text such as "20GB"; None
            sets no limit.
        improvement: local search.
        forms: that tables may change to, as far as the models know them; without any, each keeps its own.
    """

    start: Plan | str
    max_moved_bytes: ByteSize | None = None
    improvement: Improvement = field(default_factory=Improvement)
    forms: tuple[str, ...] = FORMS

    def __post_init__(self) -> None:
        if not isinstance(self.start, (Plan, str)):
            raise UserError(f"searcher: start={shown(self.start)} must be the path of a plan")
        object.__setattr__(self, "forms", tuple(Form(form) for form in self.forms))

    def search(self, task: Task, simulator: Simulator) -> Plan:
        """The cheapest plan found within the limit; the starting plan if none is cheaper.

        Raises:
            UserError: the starting plan is for other tables or devices, or breaks the task's limits; or the models
                don't know the forms that its tables lie in.
        """
        return self.find(task, simulator).plan

    def find(self, task: Task, simulator: Simulator) -> Found:
        """With a warning if a time limit cut the local search short."""
        start = settled(self._start_for(task))
        simulator.models.check(start.task)
        simulator.models.check_plan(start)
        best = self._improved(start, start, simulator)
        for first in self._in_other_forms(start, simulator):
            found = self._improved(start, first, simulator)
            if found.plan is _cheaper(best.plan, found.plan, simulator):
                best = found
        return replace(best, plan=replace(best.plan, task=task))

    def _in_other_forms(self, start: Plan, simulator: Simulator) -> Iterator[Plan]:
        """Plans with other forms, for changes of form that take all of the limit, and half of it."""
        changes = FormChanges.of(start, simulator, known_calls(simulator.models, self.forms))
        if changes is None:
            return
        most, seen = self.max_moved_bytes, [start]
        for limit in (None,) if most is None else (most, most // 2):
            plan = changes.within(limit)
            if plan not in seen:
                seen.append(plan)
                yield plan

    def _improved(self, start: Plan, first: Plan, simulator: Simulator) -> Found:
        """`first`, its columns moved as far as the limit from `start` on lets them be, if that is predicted to help."""
        formed = FormedTask.of_plan(first)
        if not len(formed.in_columns):
            return Found(first)
        most, columns = self.max_moved_bytes, formed.columns_plan(first)
        left = None if most is None else most - int(moved_between(start, first).sum())
        steps = ImprovedSearch((ExistingPlan(columns),), self.improvement, max_moved_bytes=left)
        found = steps.find(columns.task, beside(simulator, formed))
        return replace(found, plan=_cheaper(first, formed.whole_plan(found.plan), simulator))

    def reads(self) -> tuple[str, ...]:
        """The digest of the starting plan's file, if it is one."""
        return () if isinstance(self.start, Plan) else (digest_of(Path(self.start)),)

    def remark(self, task: Task, simulator: Simulator, plan: Plan) -> str | None:
        """How many bytes are moved from the starting plan, of how many, beside the predicted cost that is saved."""
        start = self._start_for(task)
        before, after = (cost.total_ms for cost in simulator.costs(task, [start, plan]))
        changed = sum(old is not new for old, new in zip(start.forms, plan.forms, strict=True))
        formed = f"; {changed:,} of {len(task.tables):,} tables change their form" if changed else ""
        return (
            f"moves {readable_bytes(moved_between(start, plan).sum())} of {readable_bytes(total_state_bytes(task))}, "
            f"predicted {before:.2f} -> {after:.2f} ms ({1 - after / max(before, _LEAST_MS):.1%} less){formed}"
        )

    def _start_for(self, task: Task) -> Plan:
        """The starting plan, as a plan of `task`."""
        start = self.start if isinstance(self.start, Plan) else Plan.load(self.start)
        if start.task.topology.num_devices != task.topology.num_devices:
            raise UserError(
                f"the starting plan is for {start.task.topology.num_devices} devices, "
                f"the task has {task.topology.num_devices}"
            )
        theirs, ours = (
            [(t.name, t.rows, t.dim, t.bytes_per_element) for t in some.tables] for some in (start.task, task)
        )
        if theirs != ours:
            other = next((o[0] for o, t in zip(ours, theirs, strict=False) if o != t), ours[-1][0])
            raise UserError(
                f"the starting plan is for other tables ({len(theirs)}, the task has {len(ours)}); they "
                f"differ in names, rows, dims or order, first at {other!r}"
            )
        plan = Plan(task, start.placements)
        if plan.violations:
            raise UserError(f"the starting plan breaks the task's limits: {plan.violations[0]}")
        return plan


def _cheaper(first: Plan, other: Plan, simulator: Simulator) -> Plan:
    """The one of two plans of a task that is predicted to cost less; of equals the first."""
    before, after = simulator.costs(first.task, [first, other])
    return other if after.total_ms < before.total_ms else first


def total_state_bytes(task: Task) -> int:
    """Bytes of all weights and their optimizer state, unsplit."""
    return int(task.memory.state_bytes(task.loads).sum())
