"""What every search method is."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

from neuroshard.errors import InfeasibleError
from neuroshard.plans.hosts import given_to_hosts
from neuroshard.plans.plan import Plan
from neuroshard.simulator import Simulator
from neuroshard.tasks.task import Task


@dataclass(frozen=True)
class Found:
    """A plan that keeps its task's memory and constraints, and what people should know of how it was found.

    Whatever a search hands out is one of these, so no other plan is handed out.

    Attributes:
        warning: a line that begins with its subject and a colon, such as "re-planning: ..."; None if all is well.
        declined: another plan of its task that was found, predicted to be cheaper and not believed to be; None if there
            is none.
        remark: a line on what the search did, which the plan alone doesn't tell; None if there is nothing to say.

    Raises:
        InfeasibleError: the plan breaks something.
    """

    plan: Plan
    warning: str | None = None
    declined: Plan | None = None
    remark: str | None = None

    def __post_init__(self) -> None:
        if self.plan.violations:
            raise InfeasibleError(
                f"none of the plans found keeps all limits: of the best one {self.plan.violations[0]}; give more "
                "memory, loosen the constraints, or try another searcher"
            )

    def changed(self, change: Callable[[Plan], Plan]) -> "Found":
        """The same of other plans: what was found of a part of a task, said of the whole."""
        return replace(self, plan=change(self.plan), declined=None if self.declined is None else change(self.declined))


def within_hosts(task: Task, search: Callable[[Task], Found]) -> Found:
    """What `search` finds for a task; if it finds nothing, then with tables in host memory given to hosts beforehand.

    Raises:
        InfeasibleError: it finds nothing either way.
    """
    try:
        return search(task)
    except InfeasibleError as error:
        given = given_to_hosts(task)
        if given is None:
            raise
        try:
            found = search(given)
        except InfeasibleError:  # what it says is of the hosts that were chosen
            raise error from None
    return found.changed(lambda plan: replace(plan, task=task))


class Searcher(ABC):
    """Finds a plan for a task. Holds settings only: the same call gives the same plan."""

    @abstractmethod
    def search(self, task: Task, simulator: Simulator) -> Plan:
        """A plan that fits in memory and keeps the task's constraints.

        Raises:
            InfeasibleError: this method finds none.
            UserError: the simulator's models can't serve the task.
        """

    def find(self, task: Task, simulator: Simulator) -> Found:
        """The plan of `search`, with a warning where one is due.

        Raises:
            InfeasibleError: this method finds none that keeps the task's memory and constraints.
        """
        return within_hosts(task, lambda given: Found(self.search(given, simulator)))

    @property
    def takes_sequences(self) -> bool:
        """Whether it places sequence tables, not pooled ones only."""
        return True

    def finalists(self, plan: Plan, simulator: Simulator, count: int) -> tuple[Plan, ...]:
        """`plan`, which this method found, and others of its task that hardware may turn out to prefer.

        At most `count` in all, no two alike on hardware (`layout_key`). A method that has no others gives `plan` alone.
        """
        return (plan,)

    def reads(self) -> tuple[str, ...]:
        """Digests of the files that it reads, for runs that go on: with other contents it is another search."""
        return ()

    def remark(self, task: Task, simulator: Simulator, plan: Plan) -> str | None:
        """A line for people about a plan that `search` gave for `task`; None if there is nothing to say."""
        return None
