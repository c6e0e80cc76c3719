"""Re-planning a running job: a plan made better by moving few bytes."""

from dataclasses import dataclass, field
from pathlib import Path

from neuroshard.checked import checked
from neuroshard.errors import UserError
from neuroshard.files import digest_of
from neuroshard.loads import Loads
from neuroshard.plans.plan import Plan
from neuroshard.schema import shown
from neuroshard.searcher import Found, Searcher
from neuroshard.simulator import Simulator
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.improved import ImprovedSearch
from neuroshard.stages.search.methods.starts import ExistingPlan
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

    Attributes:
        start: the plan, or the path of its JSON.
        max_moved_bytes: of weights and optimizer state, over all devices, as a number or as text such as "20GB"; None
            sets no limit.
        improvement: local search.
    """

    start: Plan | str
    max_moved_bytes: ByteSize | None = None
    improvement: Improvement = field(default_factory=Improvement)

    def __post_init__(self) -> None:
        if not isinstance(self.start, (Plan, str)):
            raise UserError(f"searcher: start={shown(self.start)} must be the path of a plan")

    def search(self, task: Task, simulator: Simulator) -> Plan:
        """The cheapest plan found within the limit; the starting plan if none is cheaper.

        Raises:
            UserError: the starting plan is for other tables or devices, or breaks the task's limits.
        """
        return self.find(task, simulator).plan

    def find(self, task: Task, simulator: Simulator) -> Found:
        """With a warning if a time limit cut the local search short."""
        starts = (ExistingPlan(self._start_for(task)),)
        return ImprovedSearch(starts, self.improvement, max_moved_bytes=self.max_moved_bytes).find(task, simulator)

    def reads(self) -> tuple[str, ...]:
        """The digest of the starting plan's file, if it is one."""
        return () if isinstance(self.start, Plan) else (digest_of(Path(self.start)),)

    def remark(self, task: Task, simulator: Simulator, plan: Plan) -> str | None:
        """How many bytes are moved from the starting plan, of how many, beside the predicted cost that is saved."""
        start = self._start_for(task)
        before, after = (cost.total_ms for cost in simulator.costs(task, [start, plan]))
        return (
            f"moves {readable_bytes(moved_between(start, plan).sum())} of {readable_bytes(total_state_bytes(task))}, "
            f"predicted {before:.2f} -> {after:.2f} ms ({1 - after / max(before, _LEAST_MS):.1%} less)"
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


def total_state_bytes(task: Task) -> int:
    """Bytes of all weights and their optimizer state, unsplit."""
    return int(task.memory.state_bytes(Loads.of(task.tables, task.batch_size)).sum())
