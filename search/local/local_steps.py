"""Steps from plan to plan: compiled where the compute model allows."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from neuroshard.models import SumModel
from neuroshard.plumbing.arrays import FloatArray, IntArray
from neuroshard.stages.search.local.local_search import CostedPlan, LocalSearch, MoveLimit
from neuroshard.stages.search.local.plain import PlainSearch
from neuroshard.stages.search.space.catalog import Catalog


class LocalSteps(Protocol):
    """Plans near others, costed, of one task: all within its limits, and within those on what is moved."""

    @property
    def looked(self) -> int:
        """Plans looked at so far, about: what took longer counts for more."""
        ...

    def costed(self, held: IntArray) -> CostedPlan:
        """The plan `held` (I, D), costed."""
        ...

    def best_step(self, plan: CostedPlan) -> CostedPlan | None:
        """The cheapest plan one step away from the devices that make this one expensive; None if none is cheaper."""
        ...

    def totals_ms(self, plan: CostedPlan, steps: IntArray) -> FloatArray:
        """(K,) costs of the plans after each of some steps alone, (K, 5) as the kernels have them, ms."""
        ...

    def others(
        self, plan: CostedPlan, shake_steps: int, seeds: Sequence[int], worth: float = np.inf
    ) -> list[CostedPlan]:
        """Plans made of this one, each shaken by random steps and then improved, costed.

        Every one depends on its seed alone. Those that surely cost more than `worth` times the cheapest, this plan
        among them, may be left out.
        """
        ...


def local_steps(catalog: Catalog, start: IntArray, max_moved_bytes: int | None) -> LocalSteps:
    """Steps that set out from the plan `start` (I, D), and move no more bytes away from it: None sets no limit."""
    model, limit = catalog.model, MoveLimit(start, max_moved_bytes)
    if isinstance(model, SumModel):
        return LocalSearch(catalog, model, limit)
    return PlainSearch(catalog, start, limit)
