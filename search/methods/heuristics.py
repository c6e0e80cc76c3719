"""The usual heuristics: whole tables, one pass, no cost model; what no device has room for is halved."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import log10
from typing import NamedTuple

import numpy as np

from neuroshard.models.simulator import Simulator
from neuroshard.plumbing.arrays import IntArray
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import InfeasibleError, unknown_name
from neuroshard.plumbing.schema import Count, Seed
from neuroshard.searching.searcher import Found, Searcher, within_hosts
from neuroshard.stages.search.space.base import Base
from neuroshard.stages.search.space.catalog import fewest_shards
from neuroshard.stages.search.space.items import Items, open_devices
from neuroshard.stages.search.space.packing import check_total, no_room
from neuroshard.stages.search.space.sizes import Room, Sizes, devices_with_room, put
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
        score: size | dim | lookup | size_lookup: what is balanced. NeuroShard's baselines (section 4): size (bytes),
            dim (for each feature), lookup (dim x pooling factor), size_lookup (lookup x log10 rows).
        max_halvings: of a table that no device has room for, at most; 0 leaves it whole. The papers leave all whole.
    """

    score: str
    max_halvings: Count = MAX_HALVINGS

    def __post_init__(self) -> None:
        if self.score not in SCORES:
            raise unknown_name("score", self.score, SCORES)

    @within_hosts
    def find(self, task: Task, simulator: Simulator) -> Found:
        """Find the greedy plan; the simulator isn't asked."""
        sizes = _sizes(task)
        return Found(sizes.items.plan(self.held(sizes)))

    def held(self, sizes: Sizes) -> IntArray:
        """Place tables greedily: (I, D) units of each item on each device. Hosts may get more than they hold.

        Raises:
            InfeasibleError: some table finds no room.
        """
        room = _Room(sizes, f"{self.score} greedy", self.max_halvings)
        scores = np.array([self._score(room.items, shard) for shard in room.shards])
        confined = room.items.confined[[shard.item for shard in room.shards]]
        load = np.zeros(sizes.items.task.topology.num_devices)
        for index in np.lexsort((-scores, ~confined)).tolist():
            for piece, devices in room.places(room.shards[index]):
                device = int(devices[load[devices].argmin()])
                load[device] += self._score(room.items, piece)
                room.take(piece, device)
        return room.held

    def first_held(self, catalog: Sizes) -> IntArray | None:
        """Return `held` for local search to set out from; None where some table finds no room.

        There are no caps on columns, which hinder the published search where one table is hot and devices are few.
        """
        try:
            return self.held(catalog)
        except InfeasibleError:
            return None

    def _score(self, items: Items, shard: "_Shard") -> float:
        return sum(SCORES[self.score](table) for table in items.tables(shard.item, shard.width))


@dataclass(frozen=True)
@checked
class Random(Searcher):
    """Tables in random order, each to a random device among those with room; drawn by `seed`, anew for every call.

    Attributes:
        seed: fixes the choices.
        max_halvings: of a table that no device has room for, at most; 0 leaves it whole.
    """

    seed: Seed = 0
    max_halvings: Count = MAX_HALVINGS

    @within_hosts
    def find(self, task: Task, simulator: Simulator) -> Found:
        """Find the random plan; the simulator isn't asked."""
        rng = np.random.default_rng(self.seed)
        sizes = _sizes(task)
        room = _Room(sizes, "random", self.max_halvings)
        confined = room.items.confined[[shard.item for shard in room.shards]]
        order = rng.permutation(len(room.shards))
        for index in order[np.argsort(~confined[order], kind="stable")].tolist():
            for piece, devices in room.places(room.shards[index]):
                room.take(piece, int(rng.choice(devices)))
        return Found(sizes.items.plan(room.held))


def _sizes(task: Task) -> Sizes:
    """Compute the sizes of all shards of a task's tables.

    Raises:
        InfeasibleError: nothing in columns can fit.
    """
    sizes = Sizes.of(Items.of(Base.empty(task)))
    check_total(sizes)
    return sizes


class _Shard(NamedTuple):
    """A shard of so many units of 4 columns of an item, after so many halvings."""

    item: int
    width: int
    halvings: int = 0


class _Room:
    """What is left of each device while shards are placed, by bytes and by the items' limits.

    Attributes:
        shards: what is to be placed: every item in as few shards as its limits allow, which is whole as a rule.
    """

    def __init__(self, sizes: Sizes, method: str, max_halvings: int) -> None:
        self.items = sizes.items
        self._method = method
        self._max_halvings = max_halvings
        self._sizes = sizes
        self._room = Room.empty(sizes, self.items.free_bytes)
        layout = fewest_shards(sizes)
        item = sizes.item[layout]
        self.shards = [_Shard(*pair) for pair in zip(item.tolist(), (layout - sizes.first[item]).tolist(), strict=True)]
        self._count = np.bincount(item, minlength=len(self.items))

    def places(self, shard: _Shard) -> Iterator[tuple[_Shard, IntArray]]:
        """Yield the shard with the devices that have room for it; where none has, its halves one by one, and so on.

        Each has to be taken before the next one is asked for.

        Raises:
            InfeasibleError: no device has room for a shard that may not be halved.
        """
        waiting = [shard]
        while waiting:
            shard = waiting.pop()
            devices = np.flatnonzero(devices_with_room(self._room, shard.item, shard.width))
            if len(devices):
                yield shard, devices
            else:
                waiting += self._halves(shard)

    def _halves(self, shard: _Shard) -> tuple[_Shard, _Shard]:
        limits, (item, width, halvings) = self.items.limits, shard
        too_often = halvings >= self._max_halvings or self._count[item] >= limits.max_shards[item]
        if too_often or width < 2 * limits.min_width[item]:
            open_to = open_devices(self._room.limits, self._room.held, item)
            most_free = int(self._room.free_bytes[open_to].max(initial=0))
            size_bytes = int(self._sizes.size_bytes[self._sizes.first[item] + width])
            raise no_room(self.items, item, width, size_bytes, most_free, self._method)
        self._count[item] += 1
        return _Shard(item, width // 2, halvings + 1), _Shard(item, width - width // 2, halvings + 1)

    def take(self, shard: _Shard, device: int) -> None:
        """Put a shard on `device`, which has less room from then on."""
        put(self._room, shard.item, shard.width, device)

    @property
    def held(self) -> IntArray:
        """Units of each item on each device, (I, D), as they were put there."""
        return self._room.held
