"""Plans made better by local search, under models of any form."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from neuroshard.models import SumModel
from neuroshard.models.composed import OneByOne
from neuroshard.plumbing.arrays import FloatArray, IntArray
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.schema import Count, PositiveCount, Seed
from neuroshard.stages.search.kernels.steps import SOURCE, TARGET
from neuroshard.stages.search.local.local_search import LEAST_GAIN, CostedPlan, LocalSearch, applied
from neuroshard.stages.search.space.catalog import Catalog
from neuroshard.stages.search.space.sizes import DeviceLoads

_LOOKED_PER_SET = 100  # a device's contents through the model take as long as so many plans that are only estimated
_LEAST_SHARE = 0.01  # of what a shard costs alone, that it is taken to add to a device
_NEAR = 1.0003  # times the best plan's cost: worth to be costed and improved by all that the models say
_TOGETHER = 10  # shakes of one plan that are costed in one call


class PlainSearch:
    """Improves plans of one task, under a compute model of any form: steps and limits are those of `LocalSearch`.

    What shards of an item add to the devices that hold them in a first plan, in proportion to what they cost alone, is
    what they are estimated to add to any device. Estimates say which steps are worth a look; the model costs those,
    many devices in a call.
    """

    def __init__(self, catalog: Catalog, start: IntArray, max_moved_bytes: int | None = None) -> None:
        """Estimates are of plans near `start` (I, D); the limit is as in `LocalSearch`."""
        self._catalog = catalog
        self._loads = DeviceLoads(catalog.items)
        self._sets = 0
        one_by_one = OneByOne(catalog.model)
        alone = Catalog.costed(catalog, catalog.simulator, one_by_one)
        added = _scaled(alone, self._shares(alone, start))
        self._estimates = LocalSearch(added, one_by_one, start, max_moved_bytes)

    @property
    def looked(self) -> int:
        """Plans looked at so far; a device's contents that the model costed count as a hundred."""
        return self._estimates.looked + self._sets * _LOOKED_PER_SET

    def costed(self, held: IntArray) -> CostedPlan:
        """The plan `held` (I, D), costed."""
        return self._costed([self._estimates.costed(held)])[0]

    def others(
        self, plan: CostedPlan, shake_steps: int, seeds: Sequence[int], worth: float = np.inf
    ) -> list[CostedPlan]:
        """Plans made of this one, each shaken by random steps, improved by estimates, then step by step, costed.

        Every one depends on its seed alone. All go on side by side: a call of the model serves a step of each. None is
        left out, whatever `worth` says: estimates are too rough.
        """
        found = dict(enumerate(self._costed(self._estimates.others(plan, shake_steps, seeds))))
        better = found
        while better := self._best_steps(better):
            found |= better
        return list(found.values())

    def best_step(self, plan: CostedPlan) -> CostedPlan | None:
        """The cheapest plan one step away from the devices that make this one expensive; None if none is cheaper."""
        return self._best_steps({0: plan}).get(0)

    def totals_ms(self, plan: CostedPlan, steps: IntArray) -> FloatArray:
        """(K,) costs of the plans after each of some steps (K, 5) alone, ms."""
        return self._after([plan] * len(steps), steps)[1]

    def _best_steps(self, plans: dict[int, CostedPlan]) -> dict[int, CostedPlan]:
        """`best_step` of each plan that has one, by the numbers they are given by; in one call of the model."""
        tried = [(k, step) for k, plan in plans.items() for step in self._estimates.likely_steps(plan)]
        if not tried:
            return {}
        compute_ms, total_ms = self._after([plans[k] for k, _ in tried], np.stack([step for _, step in tried]))
        least = {k: plan.cost_ms * (1 - LEAST_GAIN) for k, plan in plans.items()}
        best: dict[int, int] = {}
        for number, (k, _) in enumerate(tried):
            if total_ms[number] < least[k]:
                least[k], best[k] = total_ms[number], number
        after = [self._estimates.costed(applied(plans[k].held, tried[number][1])) for k, number in best.items()]
        return dict(zip(best, self._modelled(after, compute_ms[list(best.values())]), strict=True))

    def _after(self, plans: Sequence[CostedPlan], steps: IntArray) -> tuple[FloatArray, FloatArray]:
        """(K, D) compute cost and (K,) plan cost, ms, of K plans, each after its step, (K, 5)."""
        row, ends = np.arange(len(steps))[:, None], steps[:, [SOURCE, TARGET]]
        contents = np.stack([_ends_after(plan.held, step) for plan, step in zip(plans, steps, strict=True)])
        compute_ms, units = np.stack([plan.compute_ms for plan in plans]), np.stack([plan.units for plan in plans])
        compute_ms[row, ends] = self._compute_ms(contents.reshape(2 * len(steps), -1)).reshape(-1, 2)
        units[row, ends] = self._catalog.given_by(contents)
        return compute_ms, self._catalog.step(compute_ms, units)[1].max(axis=1)

    def _costed(self, estimated: Sequence[CostedPlan]) -> list[CostedPlan]:
        """Plans as the model has them instead of estimates, in one call of it."""
        contents = np.concatenate([plan.held.T for plan in estimated])
        return self._modelled(estimated, self._compute_ms(contents).reshape(len(estimated), -1))

    def _modelled(self, estimated: Sequence[CostedPlan], compute_ms: FloatArray) -> list[CostedPlan]:
        """Plans with their true compute costs (K, D): what is estimated from them on, too, sets out from these."""
        if not estimated:
            return []
        ready_ms, total_ms = self._catalog.step(compute_ms, np.stack([plan.units for plan in estimated]))
        return [
            replace(
                plan,
                contents=plan.contents._replace(sums=compute[:, None].astype(np.float32), score=compute),
                compute_ms=compute,
                total_ms=total,
                ready_ms=ready,
            )
            for plan, compute, total, ready in zip(estimated, compute_ms, total_ms, ready_ms, strict=True)
        ]

    def _compute_ms(self, contents: IntArray) -> FloatArray:
        """(n,) ms of devices that hold so many units (n, I)."""
        self._sets += len(contents)
        return self._catalog.model.predict(self._loads.sets(contents))

    def _shares(self, catalog: Catalog, start: IntArray) -> FloatArray:
        """(I,) what shards of each item add to the devices of `start` (I, D), as a share of what they cost alone."""
        item, device = start.nonzero()
        without = start.T[device]
        without[np.arange(len(item)), item] = 0
        added, alone = np.zeros((2, len(start)))
        np.add.at(added, item, self._compute_ms(start.T)[device] - self._compute_ms(without))
        np.add.at(alone, item, catalog.cost_ms[catalog.first[item] + start[item, device]])
        shares: FloatArray = np.divide(added, alone, out=np.ones(len(start)), where=alone > 0)
        return np.maximum(shares, _LEAST_SHARE)


def _scaled(catalog: Catalog, shares: FloatArray) -> Catalog:
    """The catalog of a model that adds up, with so many (I,) times each item's costs."""
    factor = np.repeat(shares, catalog.full_width + 1)
    vectors = (catalog.vectors * factor[:, None]).astype(np.float32)
    return replace(catalog, vectors=vectors, cost_ms=catalog.cost_ms * factor, least_score=catalog.least_score * factor)


def _ends_after(held: IntArray, step: IntArray) -> IntArray:
    """(2, I) what the source and the target of a step (5,) hold after it."""
    two: IntArray = applied(held[:, step[[SOURCE, TARGET]]], np.array([0, 1, *step[TARGET + 1 :]])).T
    return two


LocalSteps = LocalSearch | PlainSearch


def local_steps(catalog: Catalog, start: IntArray, max_moved_bytes: int | None) -> LocalSteps:
    """Steps that set out from the plan `start` (I, D), and move no more bytes away from it: None sets no limit."""
    if isinstance(catalog.model, SumModel):
        return LocalSearch(catalog, catalog.model, start, max_moved_bytes)
    return PlainSearch(catalog, start, max_moved_bytes)


def predicted_ms(plan: CostedPlan) -> float:
    """Ranks plans by their predicted cost."""
    return plan.cost_ms


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
            `LocalSteps.looked` does: on large tasks fewer shakes are made than asked for.
        seed: of the random steps.
    """

    shakes: Count = 200
    shake_steps: Count = 2
    max_plans: PositiveCount | None = 20_000_000
    seed: Seed = 0

    def improve(self, local: LocalSteps, plan: CostedPlan) -> CostedPlan:
        """The cheapest plan found, never one that costs more than `plan`."""
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


def _descend(local: LocalSteps, plan: CostedPlan, most: float) -> CostedPlan:
    """The best step again and again until none helps, or so many plans were looked at."""
    while local.looked < most and (cheaper := local.best_step(plan)) is not None:
        plan = cheaper
    return plan
