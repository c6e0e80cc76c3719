"""Sources of first plans, which local search then improves: even splits of the tables, or an existing plan."""

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

_EVEN_SHARES = (0.15, 0.25, 0.4, 0.6, 1.0)  # largest share of a device that a shard may take
_MOST_SHARDS = 512  # maximum shards of all tables together, if every table is split into equally many
_NARROW_SHARES = (0.03, 0.07)  # used if memory is so scarce that wider shards do not fit
_LEAST_MS = 1e-9  # minimum of a device's share: models may predict a cost of 0 for all tables


class Start(Protocol):
    """A method that makes a first plan, which local search then improves."""

    def first_widths(self, space: CostedSpace) -> IntArray | None:
        """Return a first plan as an array (I, D): the width of each of I items (such as tables) on each of D devices,
        in units of 4 columns. Return None if this method finds no plan.

        Raises:
            InfeasibleError: no plan fits, so that no other start has a plan either.
        """
        ...


@dataclass(frozen=True)
class EvenLayouts:
    """A source of a first plan: the cheapest of several plans with evenly split tables. For each plan, the tables are
    split into shards in a different way (a layout). A greedy grid search places the shards of each layout on devices.
    The grid search tries several limits on the columns that a device sends for each sample.

    If grid search places none of the layouts, the start is a plan that was packed by bytes alone.

    The published search splits one shard at a time, a few times; tasks with many devices or nearly full memory need
    many tables split. If there are few tables, layouts with all tables split into 2, 4, 8, ... shards are placed too: a
    narrow shard may compute nearly as long as a wide shard, so that small shares would split tables into as many shards
    as allowed. One layout has the fewest shards: if devices already compute other tables, every shard may be a small
    enough share.

    Attributes:
        grid: caps of the greedy grid search.
        refined: True to place the cheapest layout once more by whole devices if there are many devices.
    """

    grid: GridSettings = field(default_factory=GridSettings)
    refined: bool = True

    def first_widths(self, space: CostedSpace) -> IntArray | None:
        """Return the cheapest plan with evenly split tables. If no such plan fits in memory, return a plan that was
        packed by bytes without regard to costs. Return None if this packing fails as well.
        """
        grid = GridSearch(space.problem, self.grid)
        for shares, counts in ((_EVEN_SHARES, _shard_counts(space)), (_NARROW_SHARES, ())):
            even = [even_splits(space, most) for most in shares] + [fewest_shards(space.shards)]
            even += [equal_splits(space.shards, count) for count in counts]
            distinct = list({splits.tobytes(): splits for splits in even}.values())
            threads = useful_threads(sum(map(len, distinct)) * max(self.grid.points, 1))
            placed = in_threads(lambda splits: grid.place(splits[None])[0], distinct, threads)
            best = min(placed, key=lambda result: result.cost_ms)
            if best.cost_ms < float("inf"):
                return grid.widths(grid.refined(best) if self.refined else best)
        return pack(space, space.free_bytes)


def _shard_counts(space: CostedSpace) -> list[int]:
    """Return the numbers of shards per table that `EvenLayouts` tries: 2, 4, 8, ... up to the number of devices.
    Numbers that lead to more than 512 shards of all tables together are left out.
    """
    powers = (1 << power for power in range(1, space.task.topology.num_devices.bit_length()))
    return [count for count in powers if count * space.shards.num_items <= _MOST_SHARDS]


@dataclass(frozen=True)
class ExistingPlan:
    """A start that takes an existing plan as the first plan. The existing plan must have the same tables as the task,
    and must keep the limits of the task.
    """

    plan: Plan

    def first_widths(self, space: CostedSpace) -> IntArray | None:
        """Return the existing plan (the attribute `plan`) as an array (I, D)."""
        return space.widths(self.plan)


def even_splits(space: CostedSpace, most: float) -> IntArray:
    """Split each item (such as a table) evenly into as few shards as possible, so that each shard takes at most the
    share `most` of the mean work of a device. With most=0.25, for example, a shard takes at most a quarter of this
    mean. Return the S resulting shards, (S,), as row numbers in the shard table `space.shards`, which has one row for
    every possible shard.

    The share of a shard is the share of the compute cost or the share of the units sent, whichever is larger.
    Items that may not be split that far are split as far as allowed.
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
    """Split each item (such as a table) evenly into `count` shards, as far as the rules of the item allow. Return the S
    resulting shards, (S,), as row numbers in the shard table `shards`, which has one row for every possible shard.
    """
    return evenly_split(shards, np.clip(count, shards.rules.min_shards, most_shards(shards)))
