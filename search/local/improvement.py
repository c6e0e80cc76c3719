"""The settings of the local search, and the loop that improves a plan by steps and random perturbations."""

from dataclasses import dataclass, replace
from operator import attrgetter

from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.schema import Count, PositiveCount, Seed
from neuroshard.stages.search.local.local_search import CostedPlan, LocalSearch

_NEAR = 1.0003  # times the best plan's cost: plans below are costed and improved with the cost models
_TOGETHER = 10  # perturbations of one plan that are costed in one call


predicted_ms = attrgetter("cost_ms")  # the predicted cost of a plan, as a sort key


@dataclass(frozen=True)
@checked
class Improvement:
    """Settings of the local search: how long and how it improves a plan.

    Local search takes the best step from the most loaded devices until none helps. Then it perturbs the best plan by
    random steps, again and again, and improves each result: with estimates of communication first, and with the cost
    models themselves if the result comes near the best plan. Counts end the search, not clocks, so the same call gives
    the same plan however busy a machine is.

    Attributes:
        perturbations: number of times that local search changes its best plan at random and improves the result; larger
            values take longer, and 0 makes no random changes.
        perturbation_steps: number of random steps (a shard moves, or two shards swap devices) in each random change
            (perturbations= sets the number of changes); larger values change the plan more.
        max_plans: number of evaluated plans after which local search ends, even before it has made all random changes
            that perturbations= allows; larger values can take longer, and None sets no limit. Counted as
            `LocalSearch.looked` does: on large tasks this limit ends the search before `perturbations` are made.
        seed: seed of the random changes; the same seed gives the same plan.
    """

    perturbations: Count = 200
    perturbation_steps: Count = 2
    max_plans: PositiveCount | None = 10_000_000
    seed: Seed = 0

    def shared(self, count: int) -> "Improvement":
        """Return settings for each of `count` local searches that share the work of one local search with these
        settings. Together, the `count` searches make about as many perturbations, and evaluate about as many plans, as
        the one local search.
        """
        plans = None if self.max_plans is None else max(self.max_plans // count, 1)
        return replace(self, perturbations=self.perturbations // count, max_plans=plans)

    def improve(self, local: LocalSearch, plan: CostedPlan) -> CostedPlan:
        """Return the cheapest plan that local search finds from `plan`. The result never costs more than `plan`."""
        first = local.best_step(plan) or plan
        first = min([first, *local.others(first, 0, [self.seed])], key=predicted_ms)
        most = float("inf") if self.max_plans is None else local.looked + self.max_plans
        best = min(plan, _local_search(local, first, most), key=predicted_ms)
        made = 0
        while made < self.perturbations and local.looked < most:
            seeds = range(self.seed + made, self.seed + min(made + _TOGETHER, self.perturbations))
            found = min(local.others(best, self.perturbation_steps, seeds, _NEAR), key=predicted_ms, default=best)
            if found is not best and found.cost_ms < best.cost_ms * _NEAR:
                found = _local_search(local, found, most)
            best = min(best, found, key=predicted_ms)
            made += len(seeds)
        return min(best, _local_search(local, best, most), key=predicted_ms)


def _local_search(local: LocalSearch, plan: CostedPlan, most: float) -> CostedPlan:
    """Improve `plan` by taking the best step again and again, and return the resulting plan. The search ends if no step
    lowers the cost, or if `local.looked`, the number of plans examined so far, reaches `most`. A plan whose exchanges
    the communication models predict counts as two plans for each device.
    """
    while local.looked < most and (cheaper := local.best_step(plan)) is not None:
        plan = cheaper
    return plan
