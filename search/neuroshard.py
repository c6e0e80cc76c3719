"""The published search, then local search from its best plan."""

from collections.abc import Callable
from dataclasses import dataclass, field

from neuroshard.errors import UserError
from neuroshard.models import SumModel
from neuroshard.plan import Plan
from neuroshard.search.beam import BeamSearch
from neuroshard.search.catalog import Catalog
from neuroshard.search.improve import Improvement, predicted_ms
from neuroshard.search.local import LocalSearch, State
from neuroshard.simulator import Simulator
from neuroshard.task import Task


@dataclass(frozen=True)
class NeuroShard(BeamSearch):
    """The published search, then local search from its plan: never costs more than that one, by prediction.

    Compute models that are not of the papers' form get the published search alone.

    Attributes:
        improvement: of the published search's plan.
        caution: how many of their margins are added to plans' costs when they are compared: above 0, plans whose
            prediction is less certain have to promise more. Needs models that know their margins.
    """

    improvement: Improvement = field(default_factory=Improvement)
    caution: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.caution >= 0:
            raise UserError(f"searcher: caution={self.caution} must not be negative")

    def search(self, task: Task, simulator: Simulator) -> Plan:
        """The cheapest plan found."""
        catalog = Catalog.checked(task, simulator)
        held = self.best_held(catalog, simulator)
        model = simulator.models.compute
        if isinstance(model, SumModel):
            local = LocalSearch(catalog, simulator, model)
            held = self.improvement.improve(local, local.state(held), self._rank(catalog, simulator)).held
        return catalog.items.plan(held)

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
