"""Plans made better by local search: steps until none helps, shakes, and on from the best."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from neuroshard.checked import checked
from neuroshard.schema import Count, PositiveCount, Seed
from neuroshard.stages.search.local.search import CostedPlan
from neuroshard.stages.search.local.steps import LocalSteps

_NEAR = 1.0003  # times the best plan's cost: worth to be costed and improved by all that the models say
_TOGETHER = 10  # shakes of one plan that are costed in one call
Clock = Callable[[], float]  # seconds from some moment on


def predicted_ms(plan: CostedPlan) -> float:
    """Ranks plans by their predicted cost."""
    return plan.cost_ms


@dataclass(frozen=True, eq=False)
class Improved:
    """What came of it.

    Attributes:
        best: the best plan found.
        remark: what a time limit cut short, for people; None where none did.
    """

    best: CostedPlan
    remark: str | None


@dataclass(frozen=True)
@checked
class Improvement:
    """How long a plan is improved, and how.

    Local search takes the best step from the most loaded devices until none helps; then random steps shake the best
    plan, again and again, and what comes of it is improved: by estimates of communication first, and by all that the
    models say where that comes near the best plan. What ends it is counted, so the same call gives the same plan on
    every machine, unless a time limit is asked for.

    Attributes:
        shakes: how often the best plan is shaken.
        shake_steps: random steps in a shake.
        max_plans: plans looked at, about, as `LocalSteps.looked` counts them: on large tasks fewer shakes are made
            than asked for. None sets no limit.
        time_limit_s: the best plan so far counts, which then depends on the machine; None sets no limit.
        seed: of the random steps.
    """

    shakes: Count = 200
    shake_steps: Count = 2
    max_plans: PositiveCount | None = 20_000_000
    time_limit_s: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    seed: Seed = 0

    def improve(
        self,
        local: LocalSteps,
        plan: CostedPlan,
        rank: Callable[[CostedPlan], float] = predicted_ms,
        clock: Clock = time.monotonic,
    ) -> Improved:
        """The best plan found by `rank`, the lowest; by cost, never one that costs more than `plan`."""
        # Both are compiled by their first calls, which must not count against the limit.
        first = local.best_step(plan) or plan
        first = min([first, *local.others(first, 0, [self.seed])], key=predicted_ms)
        budget = _Budget(self, local, clock)
        best = min(plan, _descend(local, first, budget), key=rank)
        made = 0
        while made < self.shakes and not budget.spent:
            seeds = range(self.seed + made, self.seed + min(made + _TOGETHER, self.shakes))
            found = min(local.others(best, self.shake_steps, seeds, _NEAR), key=predicted_ms, default=best)
            if found is not best and found.cost_ms < best.cost_ms * _NEAR:
                found = _descend(local, found, budget)
            best = min(best, found, key=rank)
            made += len(seeds)
        return Improved(
            min(best, _descend(local, best, budget), key=rank), self._remark(made) if budget.out_of_time else None
        )

    def _remark(self, shakes: int) -> str:
        return (
            f"time limit: local search stopped after {self.time_limit_s:g} s and {shakes} of {self.shakes} shakes; "
            "another run may give another plan"
        )


class _Budget:
    """What is left: plans counted from here on, and time if that is limited. Where it isn't, no clock is read."""

    def __init__(self, limits: Improvement, local: LocalSteps, clock: Clock) -> None:
        self._local, self._clock = local, clock
        self._most_looked = None if limits.max_plans is None else local.looked + limits.max_plans
        self._deadline = None if limits.time_limit_s is None else clock() + limits.time_limit_s
        self.out_of_time = False

    @property
    def spent(self) -> bool:
        """Whether nothing is left of one of them."""
        if self._deadline is not None and self._clock() >= self._deadline:
            self.out_of_time = True
        return self.out_of_time or (self._most_looked is not None and self._local.looked >= self._most_looked)


def _descend(local: LocalSteps, plan: CostedPlan, budget: _Budget) -> CostedPlan:
    """The best step again and again until none helps, or the budget is spent."""
    while not budget.spent and (cheaper := local.best_step(plan)) is not None:
        plan = cheaper
    return plan
