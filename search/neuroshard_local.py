"""The published search, then local search from its best plan."""

from dataclasses import dataclass, field

from neuroshard.models import SumModel
from neuroshard.plan import Plan
from neuroshard.search.base import Searcher
from neuroshard.search.catalog import Catalog
from neuroshard.search.improve import Improvement
from neuroshard.search.local import LocalSearch
from neuroshard.search.neuroshard import NeuroShard
from neuroshard.simulator import Simulator
from neuroshard.task import Task


@dataclass(frozen=True)
class NeuroShardLocal(Searcher):
    """Never costs more than the published search's plan, by prediction: it starts from that.

    Compute models that are not of the papers' form get the published search alone.

    The lower a predicted cost is pushed, the more of it is the models' error: docs/results.md shows how much of the
    extra gain is real.

    Attributes:
        start: the published search.
        improvement: of its plan.
    """

    start: NeuroShard = field(default_factory=NeuroShard)
    improvement: Improvement = field(default_factory=Improvement)

    def search(self, task: Task, simulator: Simulator) -> Plan:
        """The cheapest plan found."""
        catalog = Catalog.checked(task, simulator)
        held = self.start.best_held(catalog, simulator)
        model = simulator.models.compute
        if task.topology.num_devices > 1 and isinstance(model, SumModel):
            local = LocalSearch(catalog, simulator, model)
            held = self.improvement.improve(local, local.state(held)).held
        return catalog.items.plan(held)
