"""What every search method is."""

from abc import ABC, abstractmethod

from neuroshard.plan import Plan
from neuroshard.simulator import Simulator
from neuroshard.task import Task


class Searcher(ABC):
    """Finds a plan for a task. Holds settings only: the same call gives the same plan."""

    @abstractmethod
    def search(self, task: Task, simulator: Simulator) -> Plan:
        """A plan whose devices' weights fit in memory.

        Raises:
            InfeasibleError: this method finds none.
            UserError: the simulator's models can't serve the task.
        """
