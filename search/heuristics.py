"""The usual heuristics: whole tables, one pass, no cost model."""

from collections.abc import Callable
from dataclasses import dataclass
from math import log10

import numpy as np

from neuroshard.errors import unknown_name
from neuroshard.plan import Plan, assemble
from neuroshard.search.base import Searcher
from neuroshard.search.memory import check_total, no_room
from neuroshard.simulator import Simulator
from neuroshard.tables import Table
from neuroshard.task import Task


def _lookup(table: Table) -> float:
    return table.dim * table.pooling_factor


_SCORES: dict[str, Callable[[Table], float]] = {
    "size": lambda table: float(table.size_bytes),
    "dim": lambda table: float(table.dim),
    "lookup": _lookup,
    "size_lookup": lambda table: _lookup(table) * log10(max(table.rows, 2)),
}


@dataclass(frozen=True)
class Greedy(Searcher):
    """Tables in descending order of a score, each to the device with the least score among those with room.

    `score` is one of NeuroShard's baselines (section 4): size (bytes), dim, lookup (dim x pooling factor),
    size_lookup (lookup x log10 rows).
    """

    score: str

    def __post_init__(self) -> None:
        if self.score not in _SCORES:
            raise unknown_name("score", self.score, _SCORES)

    def search(self, task: Task, simulator: Simulator) -> Plan:
        """The greedy plan; the simulator isn't asked."""
        check_total(task)
        scores = np.array([_SCORES[self.score](table) for table in task.tables])
        load = np.zeros(task.topology.num_devices)
        room = _Room(task, f"{self.score} greedy")
        placed = []
        for index in np.argsort(-scores, kind="stable"):
            device = min(room.devices_for(int(index)), key=lambda d: load[d])
            load[device] += scores[index]
            placed.append(room.take(int(index), device))
        return assemble(task, placed)


@dataclass(frozen=True)
class Random(Searcher):
    """Tables in random order, each to a random device among those with room; drawn by `seed`, anew for every call."""

    seed: int = 0

    def search(self, task: Task, simulator: Simulator) -> Plan:
        """The random plan; the simulator isn't asked."""
        check_total(task)
        rng = np.random.default_rng(self.seed)
        room = _Room(task, "random")
        order = rng.permutation(len(task.tables))
        return assemble(task, [room.take(int(i), int(rng.choice(room.devices_for(int(i))))) for i in order])


class _Room:
    """Memory left on each device while whole tables are placed."""

    def __init__(self, task: Task, method: str) -> None:
        self._task = task
        self._method = method
        self._free = [task.topology.memory_bytes] * task.topology.num_devices

    def devices_for(self, index: int) -> list[int]:
        """Devices with room for table `index`, at least one.

        Raises:
            InfeasibleError: there is none.
        """
        table = self._task.tables[index]
        devices = [device for device, free in enumerate(self._free) if table.size_bytes <= free]
        if not devices:
            raise no_room(self._task, table, max(self._free), self._method)
        return devices

    def take(self, index: int, device: int) -> tuple[int, int, int]:
        """Put table `index` on `device`; returns what `assemble` wants."""
        table = self._task.tables[index]
        self._free[device] -= table.size_bytes
        return index, table.dim, device
