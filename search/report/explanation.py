"""The explanation of a plan: the cost of each device and shard, and the costs of other plans for comparison."""

from dataclasses import dataclass

import numpy as np

from neuroshard.cost.cost import Cost
from neuroshard.cost.loads import LoadSets
from neuroshard.layouts import Layout
from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.messages import Message
from neuroshard.stages.search.methods.heuristics import SCORES, Greedy
from neuroshard.stages.search.options.tier_changes import fix_tiers
from neuroshard.tables import Table
from neuroshard.words.placement import Placement

_NOTICED = 0.005  # smaller shares of a plan's cost are not noticeable


@dataclass(frozen=True)
class ShardShare:
    """A shard of a plan, and the compute cost that the shard would have as the only shard on a device.

    Attributes:
        placed, table, layout: the placement of the shard, its table and the layout of the table.
        size_bytes: bytes of the shard on the device.
        alone_ms: compute cost of the shard alone.
    """

    placed: Placement
    table: Table
    layout: Layout
    size_bytes: int
    alone_ms: float


@dataclass(frozen=True)
class Explanation:
    """The explanation of a plan's cost: the costs of the plan's devices and shards, and the costs of other plans for
    comparison. One set of cost models predicts all costs. The other plans are plans that heuristics find for the same
    task.

    Attributes:
        plan: the plan.
        cost: predicted cost of the plan.
        shards: shards of all devices, the most expensive ones first.
        heuristics: costs of the plans of other methods, by name; or the reason why a method found no plan.
        balanced_ms: predicted cost if the plan's compute and columns were spread evenly: a rough estimate of the best
            possible cost. Shards cannot be spread that evenly, but other splits may be cheaper.
        exchange_excess_ms: predicted saving if only the plan's columns were spread evenly.
        warnings: tables and exchanges outside the training range, and limits of the task that the plan breaks.
    """

    plan: Plan
    cost: Cost
    shards: tuple[ShardShare, ...]
    heuristics: dict[str, Cost | str]
    balanced_ms: float
    exchange_excess_ms: float
    warnings: tuple[Message, ...]

    @property
    def slowest(self) -> int:
        """The device with the longest compute time of all devices.

        The other devices wait for it, so that the sums of parts do not show which device it is.
        """
        return int(np.argmax(self.cost.compute))

    @property
    def widest(self) -> int:
        """The device with the most columns, which determines the time of the exchanges."""
        return int(np.argmax(self.plan.device_dims))

    @property
    def compute_excess_ms(self) -> float:
        """The difference between the longest compute time and the mean compute time of all devices, in ms."""
        return float(self.cost.compute.max() - self.cost.compute.mean())

    @property
    def is_balanced(self) -> bool:
        """True if no device makes the plan noticeably more expensive. Then the longest compute time is above the mean
        by less than 0.5% of the plan's cost, and an even spread of the columns would save less than 0.5% of the cost.
        """
        return max(self.compute_excess_ms, self.exchange_excess_ms) < _NOTICED * self.cost.total_ms

    @property
    def bottleneck(self) -> int:
        """The device that adds the most to the plan's cost: the device with the longest compute time, or the device
        with the most columns. The result is the device with the longest compute time if this time is above the mean by
        at least as many ms as an even spread of the columns would save.
        """
        return self.slowest if self.compute_excess_ms >= self.exchange_excess_ms else self.widest


def explain(plan: Plan, simulator: Simulator) -> Explanation:
    """Return the explanation of a plan. For comparison, the explanation has the costs of plans that heuristics find for
    the same task; the heuristics keep each table in the memory tier that the table has in the explained plan.

    Raises:
        UserError: the cost models do not support the plan's task.
    """
    cost, same = simulator.cost(plan.task, plan), fix_tiers(plan)
    return Explanation(
        plan,
        cost,
        _shares(plan, simulator),
        {f"{score}_greedy": _heuristic(score, same, simulator) for score in SCORES},
        _even_ms(plan, np.full_like(cost.compute, cost.compute.mean()), simulator),
        cost.total_ms - _even_ms(plan, cost.compute, simulator),
        (*(_broken(str(limit)) for limit in plan.violations), *simulator.warnings(plan)),
    )


def _broken(limit: str) -> Message:
    """Return the warning that a plan breaks a limit of its task."""
    return Message(
        "explained-plan-violation", f"the plan doesn't fit its task: {limit}", remedy="Search again, or change the task"
    )


def _shares(plan: Plan, simulator: Simulator) -> tuple[ShardShare, ...]:
    loads = plan.device_loads.loads
    alone = simulator.models.compute.predict(LoadSets.alone(loads))
    shares = []
    for placed, size, alone_ms in zip(plan.by_device, loads.size_bytes, alone, strict=True):
        table = placed.shard.table
        shares.append(ShardShare(placed, plan.task.tables[table], plan.layouts[table], int(size), float(alone_ms)))
    return tuple(sorted(shares, key=lambda share: (-share.alone_ms, share.table.name)))


def _heuristic(score: str, plan: Plan, simulator: Simulator) -> Cost | str:
    try:
        return simulator.cost(plan.task, Greedy(score).find(plan.task, simulator).plan)
    except UserError as error:
        return str(error)


def _even_ms(plan: Plan, compute: FloatArray, simulator: Simulator) -> float:
    """Return the predicted cost in ms that `plan` would have if every device sent the mean number of columns of all
    devices, and if the compute times of the D devices were `compute` (D,).
    """
    dims = np.full((1, len(compute)), plan.traffic.columns.mean())
    times = simulator.kernel_times(plan.device_loads, len(compute))
    return float(simulator.step(times, plan.traffic.with_columns(dims), compute[None]).device_ms.max())
