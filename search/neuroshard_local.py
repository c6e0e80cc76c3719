"""The published search, then local search from its best plan."""

import time
from dataclasses import dataclass, field

import numpy as np

from neuroshard.errors import UserError
from neuroshard.models import SumModel
from neuroshard.plan import Plan
from neuroshard.search.base import Searcher
from neuroshard.search.grid import GridSearch
from neuroshard.search.local import LocalSearch, State
from neuroshard.search.memory import check_total
from neuroshard.search.neuroshard import NeuroShard, to_plan
from neuroshard.simulator import Simulator
from neuroshard.task import Task


@dataclass(frozen=True)
class NeuroShardLocal(Searcher):
    """Never costs more than the published search's plan, by prediction: it starts from that.

    Local search takes the best step from the most loaded devices until none helps; then random steps shake the best
    plan, and it goes on from there. Compute models that are not of the papers' form get the published search alone.

    The lower a predicted cost is pushed, the more of it is the models' error: docs/results.md shows how much of the
    extra gain is real.

    Attributes:
        start: the published search.
        shakes: how often the best plan is shaken.
        shake_steps: random steps in a shake.
        time_limit_s: of the local search; the best plan so far counts. Runs that don't reach it repeat exactly.
        seed: of the random steps.
    """

    start: NeuroShard = field(default_factory=NeuroShard)
    shakes: int = 400
    shake_steps: int = 2
    time_limit_s: float = 10.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("shakes", "shake_steps"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 0:
                raise UserError(f"searcher: {name}={value!r} must be a whole number of at least 0")
        if not self.time_limit_s >= 0:
            raise UserError(f"searcher: time_limit_s={self.time_limit_s} must not be negative")

    def search(self, task: Task, simulator: Simulator) -> Plan:
        """The cheapest plan found."""
        check_total(task)
        grid = GridSearch(task, simulator, self.start.grid)
        start = self.start.best_held(task, grid)
        model = simulator.models.compute
        if task.topology.num_devices == 1 or not isinstance(model, SumModel):
            return to_plan(task, start)
        local = LocalSearch(task, simulator, model, grid.catalog)
        return to_plan(task, self._improve(local, local.state(start)).held)

    def _improve(self, local: LocalSearch, state: State) -> State:
        deadline = time.monotonic() + self.time_limit_s
        rng = np.random.default_rng(self.seed)
        best = _descend(local, state, deadline)
        for _ in range(self.shakes):
            if time.monotonic() > deadline:
                break
            shaken = best
            for _ in range(self.shake_steps):
                shaken = local.random_step(shaken, rng)
            best = min(best, _descend(local, shaken, deadline), key=lambda state: state.cost_ms)
        return best


def _descend(local: LocalSearch, state: State, deadline: float) -> State:
    """The best step again and again until none helps, or time is up."""
    while time.monotonic() <= deadline and (cheaper := local.best_step(state)) is not None:
        state = cheaper
    return state
