"""Heuristics that place whole tables one after the other, without cost models; tables that fit
on no device are halved.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import log10
from typing import NamedTuple

import numpy as np

from neuroshard.models.simulator import Simulator
from neuroshard.plumbing.arrays import FloatArray, IntArray
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import InfeasibleError, check_name
from neuroshard.plumbing.schema import Count, Seed
from neuroshard.searching.searcher import Found, Searcher, within_hosts
from neuroshard.stages.search.published.device_room import DeviceRoom
from neuroshard.stages.search.published.shard_table import fewest_shards
from neuroshard.stages.search.space.memory_checks import check_total, no_room
from neuroshard.stages.search.space.room import devices_with_room, put
from neuroshard.stages.search.space.search_space import SearchSpace
from neuroshard.tables import Table
from neuroshard.tasks.task import Task

MAX_HALVINGS = 14  # halve the widest possible table into shards of 4 columns


def _lookup(table: Table) -> float:
    return table.dim * table.pooling_factor


SCORES: dict[str, Callable[[Table], float]] = {
    "size": lambda table: float(table.size_bytes),
    "dim": lambda table: float(table.output_columns),
    "lookup": _lookup,
    "size_lookup": lambda table: _lookup(table) * log10(max(table.rows, 2)),
}


@dataclass(frozen=True)
@checked
class Greedy(Searcher):
    """Places tables in descending order of a score. Among the devices with enough free memory, each table goes to the
    device with the lowest total score.

    Attributes:
        score: size | dim | lookup | size_lookup: load to balance over devices: size (bytes), dim (columns x number of
            features that read the table), lookup (columns x pooling factor), size_lookup (lookup x log10 of rows).
            These are NeuroShard's baselines (section 4).
        max_halvings: maximum number of successive halvings of a table that fits on no device (3 halvings give up to 8
            shards); 0 never splits a table, as in the papers.
    """

    score: str
    max_halvings: Count = MAX_HALVINGS

    def __post_init__(self) -> None:
        check_name("score", self.score, SCORES)

    @within_hosts
    def find(self, task: Task, simulator: Simulator) -> Found:
        """Place each table on the device with the lowest total score among the devices that have room, and return the
        plan. The simulator is not used.
        """
        space = _space(task)
        return Found(space.plan(self.widths(space)))

    def widths(self, space: SearchSpace) -> IntArray:
        """Place tables in descending order of their score, each on the device with the lowest total score among the
        devices that have room. Return the widths (I, D): the width of each of I items (such as tables) on each of D
        devices, in units of 4 columns.

        Items that constraints restrict to few devices, or keep apart from other items, are placed first.

        Tables in host memory may take more bytes than the hosts have.

        Raises:
            InfeasibleError: a table fits on no device, even in the smallest allowed shards.
        """
        load = np.zeros(space.task.topology.num_devices)

        @cache
        def score(shard: _Shard) -> float:
            """Return the sum of the scores of the tables in the shard."""
            return sum(SCORES[self.score](table) for table in space.tables(shard.item, shard.width))

        def least_loaded(shard: _Shard, devices: IntArray) -> int:
            """Return the device with the lowest total score among `devices`, and add the shard's score to the total."""
            device = int(devices[load[devices].argmin()])
            load[device] += score(shard)
            return device

        def ranks(shards: Sequence[_Shard]) -> FloatArray:
            """Return the rank of each shard; the shard with the highest score has the lowest rank."""
            return -np.array([score(shard) for shard in shards])

        return _widths(space, f"{self.score} greedy", self.max_halvings, ranks, least_loaded)

    def first_widths(self, space: SearchSpace) -> IntArray | None:
        """Return the greedy plan, from which local search can start, or None if a table fits on no device. The plan is
        an array of widths (I, D): the width of each of I items (such as tables) on each of D devices, in units of 4
        columns.

        The greedy plan has no caps on columns. Caps hinder the published search if one table is hot and devices are
        few.
        """
        try:
            return self.widths(space)
        except InfeasibleError:
            return None


@dataclass(frozen=True)
@checked
class Random(Searcher):
    """Places tables in random order, each on a random device that has room; calls with the same
    `seed` find the same plan.

    Attributes:
        seed: seed of the random choices; the same seed gives the same plan.
        max_halvings: maximum number of successive halvings of a table that fits on no device (3 halvings give up to 8
            shards); 0 never splits a table.
    """

    seed: Seed = 0
    max_halvings: Count = MAX_HALVINGS

    @within_hosts
    def find(self, task: Task, simulator: Simulator) -> Found:
        """Place the tables in random order on random devices that have room, and return the plan. The simulator is not
        used.
        """
        rng = np.random.default_rng(self.seed)
        space = _space(task)
        widths = _widths(
            space, "random", self.max_halvings,
            lambda shards: np.argsort(rng.permutation(len(shards))),
            lambda _, devices: int(rng.choice(devices)),
        )  # fmt: skip
        return Found(space.plan(widths))


def _space(task: Task) -> SearchSpace:
    """Return the search space of a task: all shards of the tables.

    Raises:
        InfeasibleError: the bytes alone prove that no column-wise plan fits.
    """
    space = SearchSpace.of_task(task)
    check_total(space)
    return space


class _Shard(NamedTuple):
    """A shard of an item (such as a table): the index of the item, the width of the shard in units of 4 columns, and
    the number of successive halvings that made the shard; 0 if the shard was not made by halving.
    """

    item: int
    width: int
    halvings: int = 0


def _widths(
    space: SearchSpace,
    method: str,
    max_halvings: int,
    ranks: Callable[[Sequence[_Shard]], FloatArray | IntArray],
    choose: Callable[[_Shard, IntArray], int],
) -> IntArray:
    """Place all items (such as tables) on devices, and return the widths (I, D): the width of each of I items on each
    of D devices, in units of 4 columns. At first, each item has as few shards as constraints and kernels allow. Later,
    a shard is halved only if no device has room for the whole shard.

    Items that may be on the fewest devices are placed first, then items in ascending order of rank. The function
    `ranks` returns the rank of each shard. The function `choose` picks the device of a shard among the devices that
    have room. If no device has room, the two halves of the shard are placed one by one, and so on.

    Raises:
        InfeasibleError: no allowed device has room for a shard that may not be halved, or no device is allowed.
    """
    shards, rules = space.shards, space.shards.rules
    room, rows = DeviceRoom.empty(shards, space.free_bytes), fewest_shards(shards)
    item_of = shards.item_of(rows)
    first = [_Shard(*pair) for pair in zip(item_of.tolist(), (rows - shards.first[item_of]).tolist(), strict=True)]
    count = np.bincount(item_of, minlength=shards.num_items)
    order = np.lexsort((ranks(first), ~rules.confined[item_of], rules.allowed.sum(axis=1)[item_of]))
    waiting = [first[index] for index in order[::-1]]
    while waiting:
        item, width, halvings = shard = waiting.pop()
        devices = np.flatnonzero(devices_with_room(shards, room, item, width))
        if len(devices):
            put(shards, room, item, width, choose(shard, devices))
            continue
        too_often = halvings >= max_halvings or count[item] >= rules.max_shards[item]
        free_bytes = room.free_bytes[devices_with_room(shards, room, item, 0)]  # of all allowed devices
        if too_often or width < 2 * rules.min_width[item] or not len(free_bytes):
            size_bytes = int(shards.size_bytes[shards.first[item] + width])
            raise no_room(space, item, width, size_bytes, free_bytes, method)
        count[item] += 1
        waiting += [_Shard(item, half, halvings + 1) for half in (width // 2, width - width // 2)]
    return room.widths
