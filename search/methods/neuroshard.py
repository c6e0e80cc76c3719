"""The published search and evenly split layouts, then local search from the best plan."""

from collections.abc import Callable
from dataclasses import dataclass, field

from neuroshard.arrays import IntArray
from neuroshard.checked import checked
from neuroshard.errors import UserError
from neuroshard.models import SumModel
from neuroshard.plans.plan import Plan
from neuroshard.schema import NonNegative
from neuroshard.searcher import Found
from neuroshard.simulator import Simulator
from neuroshard.stages.search.local.improvement import Improvement, predicted_ms
from neuroshard.stages.search.local.search import LocalSearch, State
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.stages.search.placement.grid import GridSearch
from neuroshard.stages.search.space.catalog import Catalog
from neuroshard.stages.search.space.layout import Layout
from neuroshard.tasks.task import Task

_EVEN_SHARES = (0.15, 0.25, 0.4, 0.6, 1.0)  # of a device, that a shard may take in the layouts tried besides


@dataclass(frozen=True)
@checked
class NeuroShard(BeamSearch):
    """The published search, evenly split layouts beside it, then local search from the cheapest plan.

    By prediction it never costs more than the published search.

    Compute models that are not of the papers' form get no local search.

    Attributes:
        improvement: of the published search's plan.
        caution: how many of their margins are added to plans' costs when they are compared: above 0, plans whose
            prediction is less certain have to promise more. Needs models that know their margins.
    """

    improvement: Improvement = field(default_factory=Improvement)
    caution: NonNegative = 0.0

    def search(self, task: Task, simulator: Simulator) -> Plan:
        """The cheapest plan found."""
        return self.find(task, simulator).plan

    def find(self, task: Task, simulator: Simulator) -> Found:
        """With a warning if a time limit cut the local search short."""
        catalog = Catalog.checked(task, simulator)
        held = self._best_start(catalog, simulator)
        model = simulator.models.compute
        if not isinstance(model, SumModel):
            return Found(catalog.items.plan(held))
        local = LocalSearch(catalog, simulator, model)
        improved = self.improvement.improve(local, local.state(held), self._rank(catalog, simulator))
        return Found(catalog.items.plan(improved.state.held), improved.remark)

    def _best_start(self, catalog: Catalog, simulator: Simulator) -> IntArray:
        """(I, D) the published search's plan, or a cheaper one of a layout whose shards are all small enough.

        The published search splits one shard at a time, a few times; many devices want many tables split.
        """
        grid = GridSearch(catalog, simulator, self.grid)
        layouts = dict.fromkeys(Layout.even(catalog, most) for most in _EVEN_SHARES)
        placed = [grid.place([layout])[0] for layout in layouts]
        held = self.best_held(catalog, simulator)
        best = min(placed, key=lambda one: one.cost_ms)
        cost = simulator.cost(catalog.items.task, catalog.items.plan(held))
        return grid.held(best) if best.cost_ms < cost.total_ms else held

    def _rank(self, catalog: Catalog, simulator: Simulator) -> Callable[[State], float]:
        """By cost and margins."""
        if self.caution == 0:
            return predicted_ms
        if simulator.models.margins is None:
            raise UserError(f"searcher: caution={self.caution} needs models that know their margins; these don't")

        def cautious_ms(state: State) -> float:
            cost = simulator.cost(catalog.items.task, catalog.items.plan(state.held))
            return cost.total_ms + self.caution * cost.margin_ms

        return cautious_ms
