"""The usual heuristics: whole tables, one pass, no cost model."""

from collections.abc import Callable
from dataclasses import dataclass
from math import log10

import numpy as np

from neuroshard.checked import checked
from neuroshard.errors import unknown_name
from neuroshard.plans.plan import Plan
from neuroshard.schema import Seed
from neuroshard.searcher import Searcher
from neuroshard.simulator import Simulator
from neuroshard.stages.search.space.feasibility import check_total, check_whole, device_memory, no_room
from neuroshard.stages.search.space.items import Items
from neuroshard.stages.search.space.limits import open_devices
from neuroshard.stages.search.space.room import Room, devices_with_room, put
from neuroshard.stages.search.space.sizes import Sizes
from neuroshard.tables import Table
from neuroshard.tasks.task import Task


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

    `score` is one of NeuroShard's baselines (section 4): size (bytes), dim (for each feature), lookup (dim x
    pooling factor), size_lookup (lookup x log10 rows).
    """

    score: str

    def __post_init__(self) -> None:
        if self.score not in SCORES:
            raise unknown_name("score", self.score, SCORES)

    def search(self, task: Task, simulator: Simulator) -> Plan:
        """The greedy plan; the simulator isn't asked."""
        room = _Room(task, f"{self.score} greedy")
        scores = np.array([self._score(room.items, index) for index in range(len(room.items))])
        load = np.zeros(task.topology.num_devices)
        for index in np.lexsort((-scores, ~room.items.confined)).tolist():
            device = min(room.devices_for(index), key=lambda d: load[d])
            load[device] += scores[index]
            room.take(index, device)
        return room.plan()

    def _score(self, items: Items, index: int) -> float:
        return sum(SCORES[self.score](table) for table in items.tables(index, items.items[index].width))


@dataclass(frozen=True)
@checked
class Random(Searcher):
    """Tables in random order, each to a random device among those with room; drawn by `seed`, anew for every call."""

    seed: Seed = 0

    def search(self, task: Task, simulator: Simulator) -> Plan:
        """The random plan; the simulator isn't asked."""
        rng = np.random.default_rng(self.seed)
        room = _Room(task, "random")
        order = rng.permutation(len(room.items))
        for index in order[np.argsort(~room.items.confined[order], kind="stable")].tolist():
            room.take(index, int(rng.choice(room.devices_for(index))))
        return room.plan()


class _Room:
    """What is left of each device while whole items are placed, by bytes and by the items' limits."""

    def __init__(self, task: Task, method: str) -> None:
        self.items = Items.of(task)
        self._method = method
        sizes = Sizes.of(self.items)
        check_total(sizes)
        check_whole(self.items, method)
        self._sizes = sizes
        self._room = Room.empty(sizes, device_memory(task))

    def devices_for(self, index: int) -> list[int]:
        """Devices that may hold item `index` and have room for it, at least one.

        Raises:
            InfeasibleError: there is none.
        """
        devices = np.flatnonzero(devices_with_room(self._room, index, self._sizes.full_width[index]))
        if not devices.size:
            open_to = open_devices(self._room.limits, self._room.held, index)
            most_free = int(self._room.free_bytes[open_to].max(initial=0))
            size_bytes = int(self._sizes.size_bytes[self._sizes.whole[index]])
            raise no_room(self.items, index, size_bytes, most_free, self._method)
        return devices.tolist()

    def take(self, index: int, device: int) -> None:
        """Put all of item `index` on `device`, which has less room from then on."""
        put(self._room, index, self._sizes.full_width[index], device)

    def plan(self) -> Plan:
        """The plan of all items that were put somewhere."""
        return self.items.plan(self._room.held)
