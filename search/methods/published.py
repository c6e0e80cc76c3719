"""The search of the NeuroShard paper, as a searcher that finds a plan for a task.

The search works on arrays: the task is translated into arrays, and the placed shards are translated into a plan.
"""

from dataclasses import dataclass, field

from neuroshard.models.simulator import Simulator
from neuroshard.plumbing.arrays import IntArray
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.schema import Count, PositiveCount
from neuroshard.searching.searcher import Found, Searcher, within_hosts
from neuroshard.stages.search.published.beam import beam_search
from neuroshard.stages.search.published.grid import GridSearch, GridSettings
from neuroshard.stages.search.space.costed_space import CostedSpace
from neuroshard.stages.search.space.fixed_load import FixedLoad
from neuroshard.stages.search.space.memory_checks import packed
from neuroshard.tasks.task import Task


@dataclass(frozen=True)
@checked
class BeamSearch(Searcher):
    """The beam search over column-wise splits of the NeuroShard paper (Zha et al. 2023, sections 3.3 and 4.1), with the
    settings of the paper as defaults.

    With 64 or more devices, devices are compared by the part of the cost that a shard adds on any device, if the models
    have such a part (all models but the papers' networks do). The best column splits are then placed once more by the
    costs of whole devices. The cost of a plan always comes from the whole compute and exchange models.

    Attributes:
        num_candidates: number N: each step of the beam search over column-wise splits tries to split the N largest and
            the N most expensive shards of every layout (way to split the tables); larger values take longer.
        beam_width: number of layouts (ways to split the tables by columns) that the beam search keeps after each step;
            larger values take longer.
        max_splits: maximum number of steps of the beam search over column-wise splits; each step halves one shard, and
            larger values take longer; 0 splits only tables that must be split to fit.
        grid: caps of the greedy grid search.
    """

    num_candidates: PositiveCount = 10
    beam_width: PositiveCount = 3
    max_splits: Count = 10
    grid: GridSettings = field(default_factory=GridSettings)

    @within_hosts
    def find(self, task: Task, simulator: Simulator) -> Found:
        """Return the cheapest plan that any step of the beam search finds. If no step finds a plan, return a plan that
        fits in memory but is made without regard to costs.
        """
        space = CostedSpace.checked(FixedLoad.empty(task), simulator)
        return Found(space.plan(self.first_widths(space)))

    def first_widths(self, space: CostedSpace) -> IntArray:
        """Return the widths of the cheapest plan that the beam search finds, (I, D): the width of each item on each
        device, in units of 4 columns. If the beam search finds no plan, return the widths of a plan that fits in
        memory but is made without regard to costs.

        Raises:
            InfeasibleError: no plan was found, not even by packing bytes alone.
        """
        grid = GridSearch(space.problem, self.grid)
        best = grid.refined(beam_search(grid, self.num_candidates, self.beam_width, self.max_splits))
        if best.cost_ms < float("inf"):
            return grid.widths(best)
        return packed(space)
