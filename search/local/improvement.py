"""Plans made better by local search: for how long, and how."""

from dataclasses import dataclass, replace
from operator import attrgetter

from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.schema import Count, PositiveCount, Seed
from neuroshard.stages.search.local.local_search import CostedPlan, LocalSearch

_NEAR = 1.0003  # times the best plan's cost: worth to be costed and improved by all that the models say
_TOGETHER = 10  # shakes of one plan that are costed in one call


predicted_ms = attrgetter("cost_ms")  # of a plan, for plans to be ranked by


@dataclass(frozen=True)
@checked
class Improvement:
    """How long a plan is improved, and how.

    Local search takes the best step from the most loaded devices until none helps; then random steps shake the best
    plan, again and again, and what comes of it is improved: by estimates of communication first, and by all that the
    models say where that comes near the best plan. What ends it is counted, so the same call gives the same plan
    however busy a machine is.

    Attributes:
        shakes: times that the best plan is shaken and improved again; 0 only improves it.
        shake_steps: random steps in a shake.
        max_plans: plans that local search evaluates, approximately; None sets no limit. Counted as
            `LocalSearch.looked` does: on large tasks fewer shakes are made than asked for.
        seed: of the random steps.
    """

    shakes: Count = 200
    shake_steps: Count = 2
    max_plans: PositiveCount | None = 10_000_000
    seed: Seed = 0

    def shared(self, count: int) -> "Improvement":
        """Return the same with its part of the work, where so many share it."""
        plans = None if self.max_plans is None else max(self.max_plans // count, 1)
        return replace(self, shakes=self.shakes // count, max_plans=plans)

    def improve(self, local: LocalSearch, plan: CostedPlan) -> CostedPlan:
        """Improve `plan` by local search; return the cheapest plan found, never one that costs more."""
        first = local.best_step(plan) or plan
        first = min([first, *local.others(first, 0, [self.seed])], key=predicted_ms)
        most = float("inf") if self.max_plans is None else local.looked + self.max_plans
        best = min(plan, _descend(local, first, most), key=predicted_ms)
        made = 0
        while made < self.shakes and local.looked < most:
            seeds = range(self.seed + made, self.seed + min(made + _TOGETHER, self.shakes))
            found = min(local.others(best, self.shake_steps, seeds, _NEAR), key=predicted_ms, default=best)
            if found is not best and found.cost_ms < best.cost_ms * _NEAR:
                found = _descend(local, found, most)
            best = min(best, found, key=predicted_ms)
            made += len(seeds)
        return min(best, _descend(local, best, most), key=predicted_ms)


def _descend(local: LocalSearch, plan: CostedPlan, most: float) -> CostedPlan:
    """Take the best step again and again until none helps, or so many plans were looked at."""
    while local.looked < most and (cheaper := local.best_step(plan)) is not None:
        plan = cheaper
    return plan
