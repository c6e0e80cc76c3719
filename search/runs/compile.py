"""Compile the inner loops of the search before the first search; numba keeps the compiled code on disk."""

import time
from dataclasses import dataclass

from rich.console import Console

from neuroshard.models import CostModels
from neuroshard.models.simulator import Simulator
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.heuristics import Greedy
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.methods.replan import Replan
from neuroshard.stages.search.space.memory_checks import packed
from neuroshard.stages.search.space.search_space import SearchSpace
from neuroshard.tables.sources.criteo import criteo
from neuroshard.tasks.task import Task
from neuroshard.words.topology import Topology

_MODEL, _BATCH_SIZE = "cpu", 256


@dataclass(frozen=True)
class CompileResult:
    """The time that it took to compile the search, in seconds."""

    seconds: float

    def show(self, console: Console) -> None:
        """Print the time that it took to compile the search."""
        console.print(f"the search is compiled ({self.seconds:.1f} s)")


@dataclass(frozen=True)
class Compile:
    """The command `neuroshard compile`, which needs no settings."""

    def run(self) -> CompileResult:
        """Search for a plan of a small task, so that every function is compiled;
        return the time that this search took.
        """
        start = time.perf_counter()
        task = Task(criteo(_BATCH_SIZE, dim=8), Topology(2, "8GiB"), _BATCH_SIZE)
        simulator = Simulator(CostModels.load(_MODEL))
        improvement = Improvement(perturbations=1)
        Greedy("size").find(task, simulator)
        packed(SearchSpace.of_task(task))
        plan = NeuroShard(improvement=improvement).find(task, simulator).plan
        Replan(plan, improvement=improvement).find(task, simulator)
        return CompileResult(time.perf_counter() - start)
