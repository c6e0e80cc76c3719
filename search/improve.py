"""Plans made better by local search: steps until none helps, shakes, and on from the best."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from neuroshard.errors import UserError
from neuroshard.search.local import LocalSearch, State


def predicted_ms(state: State) -> float:
    """Ranks plans by their predicted cost."""
    return state.cost_ms


@dataclass(frozen=True)
class Improvement:
    """How long a plan is improved, and how.

    Local search takes the best step from the most loaded devices until none helps; then random steps shake the best
    plan, and it goes on from there.

    Attributes:
        shakes: how often the best plan is shaken.
        shake_steps: random steps in a shake.
        time_limit_s: the best plan so far counts. Runs that don't reach it repeat exactly.
        seed: of the random steps.
    """

    shakes: int = 200
    shake_steps: int = 2
    time_limit_s: float = 2.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("shakes", "shake_steps"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 0:
                raise UserError(f"searcher: {name}={value!r} must be a whole number of at least 0")
        if not self.time_limit_s >= 0:
            raise UserError(f"searcher: time_limit_s={self.time_limit_s} must not be negative")

    def improve(self, local: LocalSearch, state: State, rank: Callable[[State], float] = predicted_ms) -> State:
        """The best plan found by `rank`, the lowest; by cost, never one that costs more than `state`."""
        first = local.best_step(state) or state  # compiles on its first call, which must not count against the limit
        deadline = time.monotonic() + self.time_limit_s
        rng = np.random.default_rng(self.seed)
        best = min(state, _descend(local, first, deadline), key=rank)
        for _ in range(self.shakes):
            if time.monotonic() > deadline:
                break
            shaken = best
            for _ in range(self.shake_steps):
                shaken = local.random_step(shaken, rng)
            best = min(best, _descend(local, shaken, deadline), key=rank)
        return best


def _descend(local: LocalSearch, state: State, deadline: float) -> State:
    """The best step again and again until none helps, or time is up."""
    while time.monotonic() <= deadline and (cheaper := local.best_step(state)) is not None:
        state = cheaper
    return state
