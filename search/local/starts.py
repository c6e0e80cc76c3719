"""First plans that local search starts from."""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import IntArray
from neuroshard.plumbing.threads import in_threads, useful_threads
from neuroshard.stages.search.published.grid import GridSearch, GridSettings
from neuroshard.stages.search.published.shard_table import ShardTable, evenly_split, fewest_shards, most_shards
from neuroshard.stages.search.space.costed_space import CostedSpace
from neuroshard.stages.search.space.packing import pack

_EVEN_SHARES = (0.15, 0.25, 0.4, 0.6, 1.0)  # of a device, that a shard may take
_MOST_SHARDS = 512  # of all tables together, where each is cut into equally many
_NARROW_SHARES = (0.03, 0.07)  # where memory is so scarce that no wider shards find room
_LEAST_MS = 1e-9  # of a device's share: models may predict that nothing costs anything


class Start(Protocol):
    """Gives a first plan of a task."""

    def first_widths(self, space: CostedSpace) -> IntArray | None:
        """Find a first plan, (I, D) units of 4 columns of each item on each device; None if this start has none.

        Raises:
            InfeasibleError: nothing fits, so that no other start need be asked.
        """
        ...


@dataclass(frozen=True)
class EvenLayouts:
    """The cheapest of some layouts whose shards are all small enough, each placed by grid search; else one that fits.

    The published search splits one shard at a time, a few times; tasks with many devices or nearly full memory need
    many tables split. If there are few tables, layouts with all tables split into 2, 4, 8, ... shards are placed too: a
    narrow shard may compute nearly as long as a wide shard, so that small shares would split tables into as many shards
    as allowed. One layout has the fewest shards: if devices already compute other tables, every shard may be a small
    enough share.

    Attributes:
        grid: caps of the greedy grid search.
        refined: whether the cheapest layout is placed once more by whole devices, where there are many.
    """

    grid: GridSettings = field(default_factory=GridSettings)
    refined: bool = True

    def first_widths(self, space: CostedSpace) -> IntArray | None:
        """Place even layouts by grid search; return the cheapest plan, else one packed by bytes alone, if any fits."""
        grid = GridSearch(space.problem, self.grid)
        for shares, counts in ((_EVEN_SHARES, _shard_counts(space)), (_NARROW_SHARES, ())):
            even = [even_splits(space, most) for most in shares] + [fewest_shards(space.shards)]
            even += [equal_splits(space.shards, count) for count in counts]
            distinct = list({splits.tobytes(): splits for splits in even}.values())
            threads = useful_threads(sum(map(len, distinct)) * max(self.grid.points, 1))
            placed = in_threads(lambda splits: grid.place(splits[None])[0], distinct, threads)
            best = min(placed, key=lambda one: one.cost_ms)
            if best.cost_ms < float("inf"):
                return grid.widths(grid.refined(best) if self.refined else best)
        return pack(space, space.free_bytes)


def _shard_counts(space: CostedSpace) -> list[int]:
    """List numbers of shards that all tables are cut into: powers of two, up to as many as there are devices."""
    powers = (1 << power for power in range(1, space.task.topology.num_devices.bit_length()))
    return [count for count in powers if count * space.shards.num_items <= _MOST_SHARDS]


@dataclass(frozen=True)
class ExistingPlan:
    """A plan that is there already: of the same tables, and within the task's limits."""

    plan: Plan

    def first_widths(self, space: CostedSpace) -> IntArray | None:
        """Return the plan as (I, D) units of 4 columns of each item on each device."""
        return space.widths(self.plan)


def even_splits(space: CostedSpace, most: float) -> IntArray:
    """Split items, as evenly as possible, into as few shards as leave none above `most` of a device's even share, (S,).

    A shard's share is of all compute or of all units sent, whichever is larger. Items that may not be split that far
    are split as far as they may.
    """
    shards, num_devices = space.shards, space.task.topology.num_devices
    cost_ms = max(shards.cost_ms[shards.whole].sum() / num_devices, _LEAST_MS)
    units, most_of_each, full_width = shards.total_sent_units / num_devices, most_shards(shards), shards.full_width
    counts, growing = shards.rules.min_shards.copy(), np.ones(shards.num_items, dtype=np.bool_)
    while growing.any():
        widest = shards.first - (-full_width // counts)  # rows
        share = np.maximum(shards.cost_ms[widest] / cost_ms, shards.sent_units[widest] / units)
        growing = (counts < most_of_each) & (share > most)
        counts[growing] += 1
    return evenly_split(shards, counts)


def equal_splits(shards: ShardTable, count: int) -> IntArray:
    """Split every item into `count` shards, as far as its rules allow, (S,)."""
    return evenly_split(shards, np.clip(count, shards.rules.min_shards, most_shards(shards)))
