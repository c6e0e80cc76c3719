"""The usual heuristics: whole tables, one pass, no cost model; what no device has room for is halved."""

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

MAX_HALVINGS = 14  # leave 4 columns of the widest table there may be


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
    """Tables in descending order of a score, each to the device with the least score among those with room.

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
        """Find the greedy plan; the simulator is not used."""
        space = _space(task)
        return Found(space.plan(self.widths(space)))

    def widths(self, space: SearchSpace) -> IntArray:
        """Place tables greedily: (I, D) units of each item on each device. Hosts may get more than they hold.

        Raises:
            InfeasibleError: some table finds no room.
        """
        load = np.zeros(space.task.topology.num_devices)

        @cache
        def score(shard: _Shard) -> float:
            """Score the columns of the shard's tables."""
            return sum(SCORES[self.score](table) for table in space.tables(shard.item, shard.width))

        def least_loaded(shard: _Shard, devices: IntArray) -> int:
            """Choose a device with the least score so far, and add the shard's."""
            device = int(devices[load[devices].argmin()])
            load[device] += score(shard)
            return device

        def ranks(shards: Sequence[_Shard]) -> FloatArray:
            """Rank the highest score first."""
            return -np.array([score(shard) for shard in shards])

        return _widths(space, f"{self.score} greedy", self.max_halvings, ranks, least_loaded)

    def first_widths(self, space: SearchSpace) -> IntArray | None:
        """Return `widths` for local search to set out from; None where some table finds no room.

        There are no caps on columns, which hinder the published search where one table is hot and devices are few.
        """
        try:
            return self.widths(space)
        except InfeasibleError:
            return None


@dataclass(frozen=True)
@checked
class Random(Searcher):
    """Tables in random order, each to a random device among those with room; `seed` fixes the draws of each call.

    Attributes:
        seed: seed of the random choices; the same seed gives the same plan.
        max_halvings: maximum number of successive halvings of a table that fits on no device (3 halvings give up to 8
            shards); 0 never splits a table.
    """

    seed: Seed = 0
    max_halvings: Count = MAX_HALVINGS

    @within_hosts
    def find(self, task: Task, simulator: Simulator) -> Found:
        """Find the random plan; the simulator is not used."""
        rng = np.random.default_rng(self.seed)
        space = _space(task)
        widths = _widths(
            space, "random", self.max_halvings,
            lambda shards: np.argsort(rng.permutation(len(shards))),
            lambda _, devices: int(rng.choice(devices)),
        )  # fmt: skip
        return Found(space.plan(widths))


def _space(task: Task) -> SearchSpace:
    """Return all shards of a task's tables.

    Raises:
        InfeasibleError: the bytes alone prove that no column-wise plan fits.
    """
    space = SearchSpace.of_task(task)
    check_total(space)
    return space


class _Shard(NamedTuple):
    """A shard of so many units of 4 columns of an item, after so many halvings."""

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
    """Place every item in as few shards as its rules allow, most confined first, by ascending rank; return (I, D).

    Each goes to the device that is chosen among those that have room. Where none has, its halves go one by one, and so
    on.

    Raises:
        InfeasibleError: no allowed device has room for a shard that may not be halved, or no device is allowed.
    """
    shards, rules = space.shards, space.shards.rules
    room, rows = DeviceRoom.empty(shards, space.free_bytes), fewest_shards(shards)
    its = shards.item_of(rows)
    first = [_Shard(*pair) for pair in zip(its.tolist(), (rows - shards.first[its]).tolist(), strict=True)]
    count = np.bincount(its, minlength=shards.num_items)
    order = np.lexsort((ranks(first), ~rules.confined[its], rules.allowed.sum(axis=1)[its]))
    waiting = [first[index] for index in order[::-1]]
    while waiting:
        item, width, halvings = shard = waiting.pop()
        devices = np.flatnonzero(devices_with_room(shards, room, item, width))
        if len(devices):
            put(shards, room, item, width, choose(shard, devices))
            continue
        too_often = halvings >= max_halvings or count[item] >= rules.max_shards[item]
        free_bytes = room.free_bytes[devices_with_room(shards, room, item, 0)]  # where it may be, bytes aside
        if too_often or width < 2 * rules.min_width[item] or not len(free_bytes):
            size_bytes = int(shards.size_bytes[shards.first[item] + width])
            raise no_room(space, item, width, size_bytes, free_bytes, method)
        count[item] += 1
        waiting += [_Shard(item, half, halvings + 1) for half in (width // 2, width - width // 2)]
    return room.widths
