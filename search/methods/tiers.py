"""Which tables lie in host memory, and how much of them is cached: chosen by estimates, searched, chosen again."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import IntArray
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import InfeasibleError
from neuroshard.plumbing.schema import PositiveCount
from neuroshard.plumbing.units import readable_bytes
from neuroshard.searching.searcher import Found, Searcher
from neuroshard.stages.search.methods.starts import Start
from neuroshard.stages.search.space.base import Base, device_memory
from neuroshard.stages.search.space.catalog import Catalog
from neuroshard.stages.search.space.homes import HomeOptions, homed, rehomed
from neuroshard.tasks.task import Task
from neuroshard.words.home import Home, Tier

_MOST_GROWN = 64  # tables whose caches are grown, of those on several devices
_FILLED = (1.0, 0.97, 0.9, 0.8, 0.65, 0.5)  # shares of the devices' memory that choices may take


@dataclass(frozen=True)
@checked
class TierSearch(Searcher):
    """Puts tables into host memory, behind caches or not, where devices have too little or it is predicted to pay.

    For several shares of the devices' memory, tables get the memories that are estimated to cost least in all; the
    choice that costs least when its columns are placed quickly is searched like any task. On the devices of that plan
    tables are then given what memory is left, those on one device first, and searched again, while that helps.

    Without memory for tables on hosts, or models that know what it costs, it is `placing` alone.

    Attributes:
        placing: searches tables whose memories are given.
        quick: places columns in little time: ranks choices of memories.
        rounds: searches with memories chosen anew, at most.
    """

    placing: Searcher
    quick: Start
    rounds: PositiveCount = 2

    def find(self, task: Task, simulator: Simulator) -> Found:
        """Find a plan in any memories that never costs more than that of `placing` alone, with what that has to say.

        Raises:
            InfeasibleError: there is no plan, or none was found.
        """
        known = any(call.tier is not Tier.DEVICE for call in simulator.models.compute.calls)
        if not known or not task.topology.host_bytes or task.fixed_homes:
            return self.placing.find(task, simulator)
        simulator.models.check(task)
        plain, error = self._placed(task, task.homes, simulator)
        if plain is not None and _is_ample(task):
            return plain
        choices = HomeChoices(task, simulator, HomeOptions.of(task, simulator.models.compute), self.quick)
        found = [plain] if plain is not None else []
        for homes in choices.ranked():
            other, _ = self._placed(task, homes, simulator)
            if other is not None:
                found.append(self._improved(choices, other))
                break
        if not found:
            raise choices.shortage() or error or InfeasibleError("no plan was found; give the devices more memory")
        return min(found, key=choices.cost_ms)

    def _placed(
        self, task: Task, homes: tuple[Home, ...], simulator: Simulator
    ) -> tuple[Found, None] | tuple[None, InfeasibleError]:
        """What is found with tables in such memories (T,), as a plan of the task; or why nothing is."""
        try:
            found = self.placing.find(homed(task, homes), simulator)
            return found.changed(lambda plan: rehomed(plan, task, homes)), None
        except InfeasibleError as error:
            return None, error

    def _improved(self, choices: "HomeChoices", found: Found) -> Found:
        """Choose memories anew on every device, and search again, as long as that helps."""
        for _ in range(self.rounds):
            plan = choices.grown(choices.chosen_anew(found.plan))
            again, _ = self._placed(choices.task, plan.homes, choices.simulator)
            others = [replace(found, plan=plan), *([] if again is None else [again])]
            best = min([found, *others], key=choices.cost_ms)
            if best is found:
                break
            found = best
        return found


def _is_ample(task: Task) -> bool:
    """Whether all tables lie on devices with so much memory that no choice puts any elsewhere."""
    taken = int(task.memory.device_bytes(task.loads).sum())
    return not task.loads.tier.any() and taken <= _FILLED[-1] * int(device_memory(task).sum())


class HomeChoices:
    """The memories that the tables of one task may lie in, and plans with them."""

    def __init__(self, task: Task, simulator: Simulator, options: HomeOptions, quick: Start) -> None:
        self.task = task
        self.simulator = simulator
        self._options = options
        self._quick = quick

    def cost_ms(self, found: Found) -> float:
        """Predict the ms of a plan of the task."""
        return self.simulator.cost(self.task, found.plan).total_ms

    def ranked(self) -> Iterator[tuple[Home, ...]]:
        """(T,) choices for several shares of the devices' memory, those first whose columns, quickly placed, cost less.

        Those of which no plan is found so come last: the tightest first.
        """
        chosen = (self._within(share) for share in _FILLED)
        different = {some.tobytes(): some for some in chosen if some is not None}
        homes = [self._homes(some) for some in different.values()]
        placed = [(self._quick_ms(its), -number, its) for number, its in enumerate(homes) if its != self.task.homes]
        return (its for _, _, its in sorted(placed, key=lambda one: one[:2]))

    def _within(self, share: float) -> IntArray | None:
        """(T,) the cheapest choice in such a share of the devices' memory, and all of the hosts'; None if none is."""
        total = int(device_memory(self.task).sum())
        return self._options.cheapest(total * share, self.task.topology.all_host_bytes)

    def _homes(self, chosen: IntArray) -> tuple[Home, ...]:
        return tuple(self._options.homes[option] for option in chosen.tolist())

    def _quick_ms(self, homes: tuple[Home, ...]) -> float:
        """What a choice costs whose columns are placed quickly; infinite where they find no place."""
        try:
            catalog = Catalog.checked(Base.empty(homed(self.task, homes)), self.simulator)
            held = self._quick.first_held(catalog)
        except InfeasibleError:
            return float("inf")
        return float("inf") if held is None else catalog.costs([held])[0].total_ms

    def chosen_anew(self, plan: Plan) -> Plan:
        """The plan, where tables that lie on one device alone take its memory, and what is left, for the least cost."""
        homes, free = list(plan.homes), device_memory(self.task) - np.array(plan.device_bytes)
        devices: dict[int, list[int]] = {}
        for placed in plan.placements:
            devices.setdefault(placed.shard.table, []).append(placed.device)
        hosts = self.task.topology.host_bytes - np.array(plan.host_bytes)
        for device in range(self.task.topology.num_devices):
            own = np.array([table for table, its in devices.items() if its == [device]], dtype=np.int64)
            if not len(own):
                continue
            now = np.array([self._options.homes.index(homes[table]) for table in own.tolist()])
            options, rows = self._options.of_tables(own), np.arange(len(own))
            host = device // self.task.topology.host_size
            on_host = int(options.host_bytes[rows, now].sum())
            room = int(free[device]) + int(options.device_bytes[rows, now].sum())
            chosen = options.cheapest(room, int(hosts[host]) + on_host)
            if chosen is None or options.cost_ms[rows, chosen].sum() >= options.cost_ms[rows, now].sum():
                continue
            hosts[host] -= int(options.host_bytes[rows, chosen].sum()) - on_host
            for table, option in zip(own.tolist(), chosen.tolist(), strict=True):
                homes[table] = self._options.homes[option]
        return rehomed(plan, self.task, tuple(homes))

    def grown(self, plan: Plan) -> Plan:
        """The plan, where tables that lie on several devices have larger caches, or leave the hosts, if all have room.

        The dearest first, each as far as it goes.
        """
        now = np.array([self._options.homes.index(home) for home in plan.homes])
        cost_ms = self._options.cost_ms[np.arange(len(now)), now]
        spread = [t for t in np.argsort(-cost_ms, kind="stable").tolist() if len(plan.by_table[t]) > 1 and now[t] > 0]
        best_ms = self.simulator.cost(self.task, plan).total_ms
        for table in spread[:_MOST_GROWN]:
            for option in np.argsort(self._options.cost_ms[table], kind="stable").tolist():
                if self._options.cost_ms[table, option] >= self._options.cost_ms[table, now[table]]:
                    break
                homes = list(plan.homes)
                homes[table] = self._options.homes[option]
                larger = rehomed(plan, self.task, tuple(homes))
                if larger.fits and (ms := self.simulator.cost(self.task, larger).total_ms) < best_ms:
                    plan, best_ms = larger, ms
                    break
        return plan

    def shortage(self) -> InfeasibleError | None:
        """What is too small if no choice of memories fits; None if some does, though no place was found for it."""
        if self._within(1.0) is not None:
            return None
        memory, hosts = int(device_memory(self.task).sum()), self.task.topology.all_host_bytes
        options = self._options
        may = np.isfinite(options.cost_ms)
        least_device, least_host = (
            int(np.where(may, size, np.iinfo(np.int64).max).min(axis=1).sum())
            for size in (options.device_bytes, options.host_bytes)
        )
        has = f"devices have {readable_bytes(memory)} in all, hosts {readable_bytes(hosts)}"
        if least_device > memory:
            return InfeasibleError(
                f"device memory is short: with all tables on hosts, devices still need {readable_bytes(least_device)} "
                f"for buffers, state and what may not lie elsewhere; {has}; give each device more memory"
            )
        if least_host > hosts:
            return InfeasibleError(
                f"host memory is short: tables that must lie there take {readable_bytes(least_host)}; {has}; raise "
                "topology.host_memory_bytes"
            )
        total = readable_bytes(self.task.total_bytes)
        return InfeasibleError(
            f"device and host memory are both short: the tables take {total}; {has}; raise topology.memory_bytes or "
            "topology.host_memory_bytes"
        )
