"""Why a plan costs what it does: its devices, its shards, and what heuristics would cost."""

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

_NOTICED = 0.005  # of a plan's cost


@dataclass(frozen=True)
class ShardShare:
    """A shard and its compute cost.

    Attributes:
        placed, table, layout: the placement of the shard, its table and the layout of the table.
        size_bytes: on the device.
        alone_ms: compute cost of the shard alone.
    """

    placed: Placement
    table: Table
    layout: Layout
    size_bytes: int
    alone_ms: float


@dataclass(frozen=True)
class Explanation:
    """What there is to say of one plan, under one set of cost models.

    Attributes:
        cost: predicted.
        shards: of all devices, the most expensive ones first.
        heuristics: costs of the plans of other methods, or why there is no plan, by name.
        balanced_ms: predicted cost if the plan's compute and columns were spread evenly: a rough estimate of the best
            possible cost. Shards can't be spread that evenly, but other splits may be cheaper.
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
        """The straggler of compute: others wait for it, so that sums of parts don't tell it apart."""
        return int(np.argmax(self.cost.compute))

    @property
    def widest(self) -> int:
        """The straggler of the exchanges: the device with the most columns."""
        return int(np.argmax(self.plan.device_dims))

    @property
    def compute_excess_ms(self) -> float:
        """Ms of compute of the straggler above the mean of all devices."""
        return float(self.cost.compute.max() - self.cost.compute.mean())

    @property
    def is_balanced(self) -> bool:
        """True if no device makes the plan cost noticeably more than the other devices do."""
        return max(self.compute_excess_ms, self.exchange_excess_ms) < _NOTICED * self.cost.total_ms

    @property
    def bottleneck(self) -> int:
        """The straggler that costs the plan most: in compute or in the exchanges."""
        return self.slowest if self.compute_excess_ms >= self.exchange_excess_ms else self.widest


def explain(plan: Plan, simulator: Simulator) -> Explanation:
    """Explain a plan; the heuristics that it is compared with keep the tiers of its tables.

    Raises:
        UserError: the models can't serve its task.
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
    """Make the warning that a plan breaks a limit of its task."""
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
    """Predict the plan's cost, ms, with evenly spread columns, and compute costs (D,)."""
    dims = np.full((1, len(compute)), plan.traffic.columns.mean())
    called = simulator.called(plan.device_loads, len(compute))
    return float(simulator.step(called, plan.traffic.with_columns(dims), compute[None]).device_ms.max())
