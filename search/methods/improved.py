"""Searches that make several first plans and improve the most promising of them by local search.

In a search space, a plan is an array (I, D): the width of each of I items (such as tables) on each of D devices, in
units of 4 columns.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress, islice, zip_longest
from operator import itemgetter

import numpy as np

from neuroshard.cost.cost import Cost
from neuroshard.models.assumed import with_assumed_margins
from neuroshard.models.simulator import Simulator
from neuroshard.plans.caches import shared_caches
from neuroshard.plans.moves import layout_key
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import IntArray
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import InfeasibleError
from neuroshard.plumbing.schema import ByteSize
from neuroshard.searching.searcher import Found, Searcher, tried_within_hosts
from neuroshard.stages.search.local.improvement import Improvement, predicted_ms
from neuroshard.stages.search.local.local_search import CostedPlan, LocalSearch
from neuroshard.stages.search.local.starts import Start
from neuroshard.stages.search.methods.acceptance import Acceptance, ModelKind, assess, cheapest, choose
from neuroshard.stages.search.space.costed_space import CostedSpace
from neuroshard.stages.search.space.fixed_load import FixedLoad
from neuroshard.tasks.task import Task

_NEAR = 1.1  # local search begins from first plans that cost at most this factor times the cheapest one,
_STARTS = 3  # and from at least this number of first plans: local search may get stuck at the cheapest

_KEPT = (
    "the search kept its first placement of the column-wise tables, because any gain by another placement would be "
    "within the error margins of the cost models; searcher.acceptance=null accepts all gains"
)


@dataclass(frozen=True)
@checked
class ImprovedSearch(Searcher):
    """Improves several first plans by local search, and then improves the cheapest result once more.

    Attributes:
        starts: sources of the first plans.
        improvement: settings of the local search.
        max_moved_bytes: maximum bytes of weights and optimizer state moved away from the first plan, over all devices,
            as a number or as text such as "20GB"; None sets no limit.
        acceptance: rule by which the search accepts gains over the first start's plan; None takes the plan that is
            predicted to be cheapest.
    """

    starts: tuple[Start, ...]
    improvement: Improvement = field(default_factory=Improvement)
    max_moved_bytes: ByteSize | None = None
    acceptance: Acceptance | None = None

    def find(self, task: Task, simulator: Simulator) -> Found:
        """Make first plans by several methods, improve the cheapest of them by local search, and return the best plan
        that the search accepts. If the search made another plan with a lower predicted cost, the result also has the
        plan with the lowest predicted cost, as `rejected`. The accepted plan is never predicted to cost more than the
        plan of the first method.

        Raises:
            InfeasibleError: no start has a plan.
            UserError: the models can't serve the task.
        """
        return self.found(FixedLoad.empty(task), simulator)

    def found(self, fixed: FixedLoad, simulator: Simulator) -> Found:
        """Find a plan for `fixed.task`, in which the row-wise and data-parallel tables are already placed. These tables
        keep the placements in `fixed`. All other tables of the task are placed column-wise.
        """
        if not len(fixed.column_wise):
            return Found(fixed.plan())
        names = frozenset(fixed.task.tables[placed.shard.table].name for placed in fixed.others)

        def find(task: Task) -> Found:
            """Find a plan for `task` with the placements in `fixed`. The task is `fixed.task`, or a copy of
            `fixed.task` with further constraints. For example, the further constraints assign the tables in host memory
            to hosts.
            """
            return self._found(CostedSpace.checked(replace(fixed, task=task), simulator))

        return tried_within_hosts(fixed.task, find, names)

    def _found(self, space: CostedSpace) -> Found:
        first = self.starts[0].first_widths(space)
        if first is not None and not self._may_improve(first, space):
            plan = space.plan(first)
            if not plan.violations:
                return Found(plan, remark=_KEPT)
        plans = _first_plans(self.starts[1:], space, first)
        costs = space.costs(plans)
        every = [*plans, self._best_end(plans, costs, space).widths]
        costs += space.costs(every[-1:])
        fits = _fitting(every, space)
        every, costs = list(compress(every, fits)), list(compress(costs, fits))
        chosen, rejected = choose(assess(self.acceptance, costs, space.task, space.simulator))
        other = None if rejected is None else space.plan(every[rejected])
        return Found(space.plan(every[chosen]), rejected=other)

    def _may_improve(self, widths: IntArray, space: CostedSpace) -> bool:
        """Return True if the search may accept another plan in place of the given plan. In the best case, the other
        plan shares the work evenly between devices. The result is False only if the search would reject even such a
        plan. The given plan is `widths` (I, D).

        By models that are not ensembles, gains of all devices together do not count, so the evenly shared work is that
        of `widths`. By analytic models, it is that of whole tables, which is the least. Predictions of ensembles, and
        of whole training steps, have no such bound, so the result is True.
        """
        if self.acceptance is None or space.simulator.models.of_whole_steps:
            return True
        simulator, task, cost = space.simulator, space.task, space.costs([widths])[0]
        kind = ModelKind.of(cost, task, simulator)
        if kind is ModelKind.ENSEMBLE:
            return True
        balanced = space.balanced_cost(widths if kind is ModelKind.SINGLE else space.whole_on_one)
        least_ms = with_assumed_margins(balanced, simulator.models).expected_ms
        return self.acceptance.may_accept(cost, least_ms, task, simulator)

    def _best_end(self, plans: Sequence[IntArray], costs: Sequence[Cost], space: CostedSpace) -> CostedPlan:
        """Improve the cheapest first plans by local search, and return the cheapest result. `plans` has all first
        plans, (I, D) each, and `costs` has the cost of each first plan.

        The local searches from these plans share half of the perturbations and half of the plans that may be examined.
        Then the cheapest result is improved once more, with the other half.
        """
        if len(plans) == 1:
            return self._end(plans[0], 0, space)[1]
        unlike = {widths.tobytes(): (cost.total_ms, widths) for widths, cost in zip(plans, costs, strict=True)}
        cheapest_first = sorted(unlike.values(), key=itemgetter(0))
        most_ms = max(cheapest_first[0][0] * _NEAR, *(ms for ms, _ in cheapest_first[:_STARTS]))
        near = [widths for ms, widths in cheapest_first if ms <= most_ms]
        each, rest = (replace(self, improvement=self.improvement.shared(count)) for count in (2 * len(near), 2))
        lowest = min((each._end(widths, 0, space)[1] for widths in near), key=predicted_ms)
        return min(lowest, rest._end(lowest.widths, 1, space)[1], key=predicted_ms)

    def candidate_plans(self, plan: Plan, simulator: Simulator, count: int) -> tuple[Plan, ...]:
        """Return at most `count` plans to measure on hardware: `plan`, the plans from which local search starts, the
        results of local search, and random variations of the result from the cheapest start.

        Local searches from the same start have different seeds.
        """
        fixed = FixedLoad.of_plan(plan, simulator.compute_for(plan.task))
        if not len(fixed.column_wise):
            return (plan,)
        space = CostedSpace.checked(fixed, simulator)
        first = _first_plans(self.starts, space)
        ends = self._ends(first, space, -(-count // len(first)))
        perturbed = self._perturbed(first[cheapest(space.costs(first))], space, count)
        return in_turns(plan, (ends, map(space.plan, first), perturbed), simulator, count)

    def _ends(self, first: list[IntArray], space: CostedSpace, times: int) -> Iterator[Plan]:
        """Improve each of the first plans by local search in several rounds, and yield the improved plans. Each of the
        `times` rounds improves all first plans, the cheapest first plan first, with other random steps than the other
        rounds. A first plan is an array (I, D).
        """
        order = np.argsort([cost.total_ms for cost in space.costs(first)], kind="stable").tolist()
        for number in range(times):
            for widths in (first[index] for index in order):
                yield space.plan(self._end(widths, number, space)[1].widths)

    def _perturbed(self, widths: IntArray, space: CostedSpace, count: int) -> Iterator[Plan]:
        """Improve a plan by local search, and yield `count` variations of the improved plan, the cheapest variation
        first. Each variation is made from the improved plan by random steps and then by another local search. The plan
        is given as `widths` (I, D).
        """
        local, best = self._end(widths, 0, space)
        seeds = range(self.improvement.seed, self.improvement.seed + count)
        perturbed = local.others(best, max(self.improvement.perturbation_steps, 1), seeds)
        yield from (space.plan(result.widths) for result in sorted(perturbed, key=predicted_ms))

    def _end(self, widths: IntArray, number: int, space: CostedSpace) -> tuple[LocalSearch, CostedPlan]:
        """Improve a plan by local search, and return two values: the `LocalSearch` object and the improved plan. With
        the object, a caller can make variations of the improved plan. The plan is given as `widths` (I, D).
        Calls with different values of `number` take different random steps.
        """
        steps = replace(self.improvement, seed=self.improvement.seed + number * self.improvement.perturbations)
        local = LocalSearch(space, widths, self.max_moved_bytes)
        return local, steps.improve(local, local.costed(widths))


def _first_plans(starts: Sequence[Start], space: CostedSpace, first: IntArray | None = None) -> list[IntArray]:
    """Return several first plans as arrays (I, D). The first plans are `first`, if it is not None, and one plan from
    each source in `starts` that finds a plan. Raise InfeasibleError if there is no first plan.
    """
    found = (first, *(start.first_widths(space) for start in starts))
    plans = [widths for widths in found if widths is not None]
    if not plans:
        raise InfeasibleError(
            "search-no-first-plan",
            "the search found no first plan to improve",
            limit="a first plan must fit in memory and keep the constraints",
            remedy="Give each device more memory (topology.memory_bytes), or loosen the constraints",
        )
    return plans


def _fitting(plans: Sequence[IntArray], space: CostedSpace) -> list[bool]:
    """Return a list with True for each plan that fits in memory, and False for each other plan. If no plan fits, the
    list has True for all plans. A plan is an array (I, D).

    If no plan fits, a later error can then name one of the plans. Plans are checked only if tables are cached: the
    bytes of a cached table depend on the other shards on the device, and searches add up the bytes of single shards.
    """
    if not len(shared_caches(space.task)):
        return [True] * len(plans)
    fits = [space.plan(widths).fits for widths in plans]
    return fits if any(fits) else [True] * len(plans)


def in_turns(plan: Plan, groups: Sequence[Iterable[Plan]], simulator: Simulator, count: int) -> tuple[Plan, ...]:
    """Return at most `count` plans: `plan`, followed by plans from each group in turn. The order is `plan`, the first
    plan of each group, the second plan of each group, and so on.

    No two plans in the list are alike. Plans that break the limits of their task are left out, as are plans whose
    predicted cost exceeds the cost of `plan` by more than both margins together.
    """
    by_layout = {layout_key(plan): plan}
    every = (candidate for turn in zip_longest(*groups) for candidate in turn if candidate is not None)
    for candidate in every:
        if len(by_layout) >= count:
            break
        if layout_key(candidate) not in by_layout and _in_question(plan, candidate, simulator):
            by_layout[layout_key(candidate)] = candidate
    return tuple(islice(by_layout.values(), count))


def _in_question(plan: Plan, other: Plan, simulator: Simulator) -> bool:
    if other.violations:
        return False
    cost, other_cost = simulator.costs(plan.task, [plan, other])
    known = not np.isnan(other_cost.margin_ms)
    return not known or other_cost.total_ms - cost.total_ms <= cost.margin_ms + other_cost.margin_ms
