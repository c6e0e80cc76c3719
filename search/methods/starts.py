"""First plans: what local search sets out from."""

from dataclasses import dataclass, field
from typing import Protocol

from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import IntArray
from neuroshard.plumbing.threads import in_threads
from neuroshard.stages.search.placement.grid import GridSearch, GridSettings
from neuroshard.stages.search.space.catalog import Catalog
from neuroshard.stages.search.space.column_cuts import equal_parts, even_layout

_EVEN_SHARES = (0.15, 0.25, 0.4, 0.6, 1.0)  # of a device, that a shard may take
_MOST_PARTS = 512  # of all tables together, where each is cut into equally many
_NARROW_SHARES = (0.03, 0.07)  # where memory is so scarce that no wider shards find room


class Start(Protocol):
    """Gives a first plan of a task."""

    def first_held(self, catalog: Catalog) -> IntArray | None:
        """(I, D) units of 4 columns of each item on each device; None if this start finds no plan.

        Raises:
            InfeasibleError: nothing fits, so that no other start need be asked.
        """
        ...


@dataclass(frozen=True)
class EvenLayouts:
    """The cheapest of some layouts whose shards are all small enough, each placed by grid search.

    The published search splits one shard at a time, a few times; many devices, and memory that is nearly full, want
    many tables split. Where there are few tables, all are cut into 2, 4, 8, ... parts too: a narrow part may compute
    nearly as long as a wide one, so that small shares would cut tables into as many parts as may be.

    Attributes:
        grid: caps of the greedy grid search.
    """

    grid: GridSettings = field(default_factory=GridSettings)

    def first_held(self, catalog: Catalog) -> IntArray | None:
        """Place even layouts by grid search; return the cheapest plan, None if none fits."""
        grid = GridSearch(catalog, self.grid)
        for shares, parts in ((_EVEN_SHARES, _parts(catalog)), (_NARROW_SHARES, ())):
            even = [even_layout(catalog, most) for most in shares]
            even += [equal_parts(catalog, count) for count in parts]
            layouts = list({layout.tobytes(): layout for layout in even}.values())
            placed = in_threads(lambda layout: grid.place(layout[None])[0], layouts)
            best = min(placed, key=lambda one: one.cost_ms)
            if best.cost_ms < float("inf"):
                return grid.held(best)
        return None


def _parts(catalog: Catalog) -> list[int]:
    """Numbers of parts that all tables are cut into: powers of two, up to as many as there are devices."""
    powers = (1 << power for power in range(1, catalog.items.task.topology.num_devices.bit_length()))
    return [count for count in powers if count * catalog.num_items <= _MOST_PARTS]


@dataclass(frozen=True)
class ExistingPlan:
    """A plan that is there already: of the same tables, and within the task's limits."""

    plan: Plan

    def first_held(self, catalog: Catalog) -> IntArray | None:
        """Return the plan as (I, D) units of 4 columns of each item on each device."""
        return catalog.items.held(self.plan)
