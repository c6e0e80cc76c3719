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
from neuroshard.stages.search.space.sizes import Sizes
from neuroshard.tables import Table
from neuroshard.tasks.task import Task


def _lookup(table: Table) -> float:
    return table.dim * table.pooling_factor


SCORES: dict[str, Callable[[Table], float]] = {
    "size": lambda table: float(table.size_bytes),
    "dim": lambda table: float(table.dim),
    "lookup": _lookup,
    "size_lookup": lambda table: _lookup(table) * log10(max(table.rows, 2)),
}


@dataclass(frozen=True)
@checked
class Greedy(Searcher):
    """Tables in descending order of a score, each to the device with the least score among those with room.

    `score` is one of NeuroShard's baselines (section 4): size (bytes), dim, lookup (dim x pooling factor),
    size_lookup (lookup x log10 rows).
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
        self._size_bytes = sizes.size_bytes[sizes.whole]
        self._free = device_memory(task)
        self._held = np.zeros(self.items.limits.allowed.shape, dtype=np.int64)

    def devices_for(self, index: int) -> list[int]:
        """Devices that may hold item `index` and have room for it, at least one.

        Raises:
            InfeasibleError: there is none.
        """
        free_of_rivals = ~self._held[self.items.rivals_of(index)].any(axis=0)
        open_to = self.items.limits.allowed[index] & free_of_rivals
        devices = np.flatnonzero(open_to & (self._size_bytes[index] <= self._free))
        if not devices.size:
            most_free = int(self._free[open_to].max(initial=0))
            raise no_room(self.items, index, int(self._size_bytes[index]), most_free, self._method)
        return devices.tolist()

    def take(self, index: int, device: int) -> None:
        """Put item `index` on `device`."""
        self._free[device] -= self._size_bytes[index]
        self._held[index, device] = self.items.items[index].width

    def plan(self) -> Plan:
        """All that was placed."""
        return self.items.plan(self._held)
