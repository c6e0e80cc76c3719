"""Why a plan costs what it does: its devices, its tables, its splits, and what would be next."""

from dataclasses import dataclass

import numpy as np

from neuroshard.cost.cost import Cost
from neuroshard.cost.loads import LoadSets
from neuroshard.layouts import Layout
from neuroshard.models.simulator import Simulator
from neuroshard.plans.moves import TableChange, table_changes
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.errors import UserError
from neuroshard.stages.search.local.local_search import LocalSearch
from neuroshard.stages.search.methods.heuristics import SCORES, Greedy
from neuroshard.stages.search.report.what_if import Change, SplitWorth, changed_compute_ms, split_worths
from neuroshard.stages.search.space.base import Base
from neuroshard.stages.search.space.catalog import Catalog
from neuroshard.stages.search.space.homes import settled
from neuroshard.tables import Table
from neuroshard.words.placement import Placement

_NOTICED = 0.005  # of a plan's cost


@dataclass(frozen=True)
class ShardShare:
    """A shard's share in its device's cost.

    Attributes:
        placed, table, layout: what lies where, and of which table in which layout.
        size_bytes: on the device.
        alone_ms: compute cost of the shard alone.
        saved_ms: what the device would compute less without it.
    """

    placed: Placement
    table: Table
    layout: Layout
    size_bytes: int
    alone_ms: float
    saved_ms: float


@dataclass(frozen=True)
class NextMove:
    """The best single step away from a plan: shards moved, split or swapped.

    Attributes:
        moves: of the tables that it moves.
        total_ms: plan cost after it.
    """

    moves: tuple[TableChange, ...]
    total_ms: float


@dataclass(frozen=True)
class Explanation:
    """What there is to say of one plan, under one set of cost models.

    Attributes:
        cost: predicted.
        shards: of all devices, those that cost their device most first.
        splits: of every table that is split; first those that fit nowhere whole, then those that bought most.
        next_move: or why there is none.
        heuristics: costs of the plans of other methods, or why there is no plan, by name.
        balanced_ms: predicted cost if the plan's compute and columns were spread evenly: a rough estimate of the best
            possible cost. Shards can't be spread that evenly, but other splits may be cheaper.
        exchange_excess_ms: what it would cost less if its columns alone were.
        warnings: what lies outside the models' range, what the plan breaks of its task.
    """

    plan: Plan
    cost: Cost
    shards: tuple[ShardShare, ...]
    splits: tuple[SplitWorth, ...]
    next_move: NextMove | str
    heuristics: dict[str, Cost | str]
    balanced_ms: float
    exchange_excess_ms: float
    warnings: tuple[str, ...]

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
        """Ms by which the compute straggler lies above the mean."""
        return float(self.cost.compute.max() - self.cost.compute.mean())

    @property
    def is_balanced(self) -> bool:
        """Whether no device costs the plan as much as anybody would notice."""
        return max(self.compute_excess_ms, self.exchange_excess_ms) < _NOTICED * self.cost.total_ms

    @property
    def bottleneck(self) -> int:
        """The straggler that costs the plan most: in compute or in the exchanges."""
        return self.slowest if self.compute_excess_ms >= self.exchange_excess_ms else self.widest


def explain(plan: Plan, simulator: Simulator) -> Explanation:
    """Explain a plan from all sides; other plans are ones whose tables lie in the same memories.

    Raises:
        UserError: the models can't serve its task.
    """
    cost, same = simulator.cost(plan.task, plan), settled(plan)
    return Explanation(
        plan,
        cost,
        _shares(plan, cost, simulator),
        split_worths(plan, cost, simulator),
        _next_move(same, simulator),
        {f"{score}_greedy": _heuristic(score, same, simulator) for score in SCORES},
        _even_ms(plan, np.full_like(cost.compute, cost.compute.mean()), simulator),
        cost.total_ms - _even_ms(plan, cost.compute, simulator),
        (*(f"the plan breaks its task: {broken}" for broken in plan.violations), *simulator.warnings(plan)),
    )


def _shares(plan: Plan, cost: Cost, simulator: Simulator) -> tuple[ShardShare, ...]:
    model, loads = simulator.models.compute, plan.device_loads.loads
    devices = [placement.device for placement in plan.by_device]
    gone = [Change(placement.shard.table, placement.device, 0) for placement in plan.by_device]
    saved = cost.compute[devices] - changed_compute_ms(plan, gone, model)
    alone = model.predict(LoadSets.alone(loads))
    shares = []
    for placed, size, alone_ms, saved_ms in zip(plan.by_device, loads.size_bytes, alone, saved, strict=True):
        table = placed.shard.table
        what = placed, plan.task.tables[table], plan.layouts[table]
        shares.append(ShardShare(*what, int(size), float(alone_ms), float(saved_ms)))
    return tuple(sorted(shares, key=lambda share: (-share.saved_ms, share.table.name)))


def _next_move(plan: Plan, simulator: Simulator) -> NextMove | str:
    if plan.violations:
        return "not looked for: the plan breaks its task"
    if not any(layout.free for layout in plan.layouts):
        return "not looked for: steps move columns, and no table lies in columns"
    base = Base.of_plan(plan, simulator.compute_for(plan.task))
    catalog = Catalog.checked(base, simulator)
    held = catalog.items.held(plan)
    local = LocalSearch(catalog, held)
    better = local.best_step(local.costed(held))
    after = plan if better is None else catalog.items.plan(better.held)
    before_ms, after_ms = (cost.total_ms for cost in simulator.costs(plan.task, [plan, after]))
    if after_ms >= before_ms:  # in a whole step the first cut may cost more than any step of local search knows
        return "no single move, split or swap of shards was found that makes the plan cheaper"
    return NextMove(table_changes(plan, after), after_ms)


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
