"""Why a plan costs what it does: its devices, its tables, its splits, and what would be next."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from neuroshard.arrays import FloatArray, IntArray
from neuroshard.cost import Cost
from neuroshard.errors import UserError
from neuroshard.models import SumModel
from neuroshard.plan import Plan, assemble
from neuroshard.search.catalog import Catalog
from neuroshard.search.heuristics import SCORES, Greedy
from neuroshard.search.local import LocalSearch
from neuroshard.simulator import Simulator
from neuroshard.units import readable_bytes


@dataclass(frozen=True)
class ShardShare:
    """A shard's part in its device's cost.

    Attributes:
        table, device, dim: what and where; `table_dim` columns has the whole table.
        size_bytes: on the device.
        alone_ms: compute cost of the shard alone.
        saved_ms: what the device would compute less without it.
    """

    table: str
    device: int
    dim: int
    table_dim: int
    size_bytes: int
    alone_ms: float
    saved_ms: float


@dataclass(frozen=True)
class SplitWorth:
    """What a split bought.

    Attributes:
        table, dims: that is split, and its shards.
        whole_ms: plan cost if it were whole on that of its devices where it costs least; NaN if it fits on none.
    """

    table: str
    dims: tuple[int, ...]
    whole_ms: float


@dataclass(frozen=True)
class NextMove:
    """The best single step away from a plan: shards moved, split or swapped.

    Attributes:
        moves: one line each.
        total_ms: plan cost after it.
    """

    moves: tuple[str, ...]
    total_ms: float


@dataclass(frozen=True)
class Explanation:
    """What there is to say of one plan, under one set of cost models.

    Attributes:
        cost: predicted.
        shards: of all devices, those that cost their device most first.
        splits: of every table that is split.
        next_move: None if no single step makes the plan cheaper.
        heuristics: plan costs, ms, or why there is no plan, by name.
        balanced_ms: what the plan would cost if its compute and its columns were spread evenly.
        exchange_excess_ms: what it would cost less if its columns alone were.
        warnings: what lies outside the models' range, what the plan breaks of its task.
    """

    plan: Plan
    cost: Cost
    shards: tuple[ShardShare, ...]
    splits: tuple[SplitWorth, ...]
    next_move: NextMove | None
    heuristics: dict[str, float | str]
    balanced_ms: float
    exchange_excess_ms: float
    warnings: tuple[str, ...]

    @property
    def slowest(self) -> int:
        """The device that computes longest: the others wait for it, so that sums of parts don't tell it apart."""
        return int(np.argmax(self.cost.compute))

    @property
    def widest(self) -> int:
        """The device with the most columns: it takes longest in the exchanges."""
        return int(np.argmax(self.plan.device_dims))

    @property
    def compute_excess_ms(self) -> float:
        """How far the slowest device lies above the mean."""
        return float(self.cost.compute.max() - self.cost.compute.mean())

    @property
    def bottleneck(self) -> int:
        """The device that costs the plan most: the slowest or the widest."""
        return self.slowest if self.compute_excess_ms >= self.exchange_excess_ms else self.widest


def explain(plan: Plan, simulator: Simulator) -> Explanation:
    """Look at a plan from all sides.

    Raises:
        UserError: the models can't serve its task.
    """
    cost = simulator.cost(plan.task, plan)
    return Explanation(
        plan,
        cost,
        _shares(plan, cost, simulator),
        tuple(_splits(plan, simulator)),
        _next_move(plan, simulator),
        {f"{score}_greedy": _heuristic(score, plan, simulator) for score in SCORES},
        _even_ms(plan, np.full_like(cost.compute, cost.compute.mean()), simulator),
        cost.total_ms - _even_ms(plan, cost.compute, simulator),
        (*simulator.warnings(plan), *(f"the plan breaks its task: {broken}" for broken in plan.violations)),
    )


def _shares(plan: Plan, cost: Cost, simulator: Simulator) -> tuple[ShardShare, ...]:
    places = [(table, device) for device, tables in enumerate(plan.device_tables) for table in tables]
    whole = {table.name: table.dim for table in plan.task.tables}
    others = [[other for other in plan.device_tables[device] if other.name != table.name] for table, device in places]
    model, batch_size = simulator.models.compute, plan.task.batch_size
    alone = model.predict([[table] for table, _ in places], batch_size)
    without = model.predict(others, batch_size)
    found = [
        ShardShare(
            table.name,
            device,
            table.dim,
            whole[table.name],
            table.size_bytes,
            float(ms),
            float(cost.compute[device] - left),
        )
        for (table, device), ms, left in zip(places, alone, without, strict=True)
    ]
    return tuple(sorted(found, key=lambda share: (-share.saved_ms, share.table)))


def _splits(plan: Plan, simulator: Simulator) -> Iterator[SplitWorth]:
    placed = [(shard.table, shard.dim, device) for shard, device in zip(plan.shards, plan.devices, strict=True)]
    for index, table in enumerate(plan.task.tables):
        own = [(dim, device) for number, dim, device in placed if number == index]
        if len(own) < 2:
            continue
        rest = [place for place in placed if place[0] != index]
        wholes = [assemble(plan.task, [*rest, (index, table.dim, device)]) for _, device in own]
        fitting = [whole for whole in wholes if whole.fits]
        costs = [cost.total_ms for cost in simulator.costs(plan.task, fitting)] if fitting else []
        yield SplitWorth(table.name, tuple(dim for dim, _ in own), min(costs, default=float("nan")))


def _next_move(plan: Plan, simulator: Simulator) -> NextMove | None:
    """None too for models that the local search can't look into, and for plans that break their task."""
    model = simulator.models.compute
    if not isinstance(model, SumModel) or plan.violations:
        return None
    catalog = Catalog.checked(plan.task, simulator)
    local = LocalSearch(catalog, simulator, model)
    state = local.best_step(local.state(catalog.items.held(plan)))
    if state is None:
        return None
    after = catalog.items.plan(state.held)
    return NextMove(tuple(moves(plan, after)), simulator.cost(plan.task, after).total_ms)


def moves(before: Plan, after: Plan) -> Iterator[str]:
    """What has to be moved from one plan to the other, table by table; both of the same tables."""
    devices = max(before.task.topology.num_devices, after.task.topology.num_devices)
    held = [np.zeros((len(before.task.tables), devices), dtype=np.int64) for _ in range(2)]
    for plan, columns in zip((before, after), held, strict=True):
        for shard, device in zip(plan.shards, plan.devices, strict=True):
            columns[shard.table, device] = shard.dim
    for index in np.flatnonzero((held[0] != held[1]).any(axis=1)).tolist():
        table = before.task.tables[index]
        come = np.maximum(held[1][index] - held[0][index], 0)
        size = int(come.sum()) * table.rows * table.bytes_per_element
        places = [_described(columns[index]) for columns in held]
        yield f"{table.name}: {places[0]} -> {places[1]} ({readable_bytes(size)})"


def _described(columns: IntArray) -> str:
    """Columns by device."""
    return ", ".join(f"{columns[device]} on {device}" for device in np.flatnonzero(columns))


def _heuristic(score: str, plan: Plan, simulator: Simulator) -> float | str:
    try:
        return simulator.cost(plan.task, Greedy(score).search(plan.task, simulator)).total_ms
    except UserError as error:
        return str(error)


def _even_ms(plan: Plan, compute: FloatArray, simulator: Simulator) -> float:
    """The plan's cost with evenly spread columns, and compute costs (D,)."""
    dims = np.full((1, len(compute)), np.mean(plan.device_dims))
    forward, backward = simulator.communication(dims, compute[None], plan.task.batch_size)
    return float((compute + forward + backward).max())
