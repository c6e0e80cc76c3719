"""The published search: beam search over column-wise splits, greedy grid search over table-wise placement."""

from dataclasses import dataclass, field

import numpy as np

from neuroshard.models.simulator import Simulator
from neuroshard.plumbing.arrays import IntArray
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.schema import Count, PositiveCount
from neuroshard.searching.searcher import Found, Searcher, within_hosts
from neuroshard.stages.search.placement.grid import GridSearch, GridSettings, PlacedLayout
from neuroshard.stages.search.space.base import Base
from neuroshard.stages.search.space.catalog import Catalog, fewest_shards, one_split_each, splittable
from neuroshard.stages.search.space.packing import packed
from neuroshard.tasks.task import Task


@dataclass(frozen=True)
@checked
class BeamSearch(Searcher):
    """The published search with its published settings as defaults (Zha et al. 2023, sections 3.3 and 4.1).

    With 64 or more devices, a shard is placed by the cost that it adds on any device, if the models know that cost (all
    models but the papers' networks do). The best layout is then placed once more by the costs of whole devices. Plans
    are always costed by whole models.

    Attributes:
        num_candidates: number N: each step of the beam search over column-wise splits tries to split the N largest and
            the N most expensive shards of every layout (way to split the tables); larger values take longer.
        beam_width: number of layouts (ways to split the tables by columns) that the beam search keeps after each step;
            larger values take longer.
        max_splits: maximum number of steps of the beam search over column-wise splits; each step halves one shard, and
            larger values take longer; 0 splits only tables that must be split to fit.
        grid: caps of the greedy grid search.
    """

    num_candidates: PositiveCount = 10
    beam_width: PositiveCount = 3
    max_splits: Count = 10
    grid: GridSettings = field(default_factory=GridSettings)

    @within_hosts
    def find(self, task: Task, simulator: Simulator) -> Found:
        """Find the cheapest plan seen on the way, the earliest one among equals; else one packed by bytes alone."""
        catalog = Catalog.checked(Base.empty(task), simulator)
        return Found(catalog.items.plan(self.first_held(catalog)))

    def first_held(self, catalog: Catalog) -> IntArray:
        """Find a plan, as (I, D) units of 4 columns of each item on each device.

        Raises:
            InfeasibleError: no plan was found, not even by packing bytes alone.
        """
        grid = GridSearch(catalog, self.grid)
        found = grid.refined(self._beam_search(grid))
        if found.cost_ms < float("inf"):
            return grid.held(found)
        return packed(catalog)

    def _beam_search(self, grid: GridSearch) -> PlacedLayout:
        catalog = grid.catalog
        beam = grid.place(fewest_shards(catalog)[None])
        best = beam[0]
        for _ in range(self.max_splits):
            layouts = _one_more_split([placed.layout for placed in beam], catalog, self.num_candidates)
            if not len(layouts):
                break
            placed = grid.place(layouts, keep=self.beam_width)
            beam = sorted(placed, key=lambda layout: _rank(layout, catalog))[: self.beam_width]
            best = min(best, beam[0], key=lambda placed: placed.cost_ms)
        return best


def _one_more_split(beam: list[IntArray], catalog: Catalog, num_candidates: int) -> IntArray:
    """List the layouts (P, S + 1) that split one candidate of one layout (S,) of the beam, without repeats."""
    per_layout = [one_split_each(catalog, layout, _candidates(layout, catalog, num_candidates)) for layout in beam]
    layouts = np.concatenate(per_layout)
    fresh = {layout.tobytes(): row for row, layout in reversed(list(enumerate(layouts)))}
    return layouts[sorted(fresh.values())]


def _candidates(layout: IntArray, catalog: Catalog, count: int) -> IntArray:
    """Choose (n,) shards worth splitting: the `count` largest in bytes and the `count` most expensive, together."""
    shards = splittable(catalog, layout)
    values = (-catalog.size_bytes[shards], -catalog.cost_ms[shards])
    chosen = np.concatenate([shards[np.argsort(value, kind="stable")[:count]] for value in values])
    _, earliest = np.unique(chosen, return_index=True)
    return chosen[np.sort(earliest)]


def _rank(placed: PlacedLayout, catalog: Catalog) -> tuple[float, int]:
    """Rank layouts by cost; those that don't fit, by their largest shard: the smallest is nearest to fitting."""
    fits = placed.cost_ms < float("inf")
    return placed.cost_ms, 0 if fits else int(catalog.size_bytes[placed.layout].max())
