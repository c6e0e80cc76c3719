"""Greedy grid search (Zha et al. 2023, section 3.3): places shards under several limits on the sent columns."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta

from neuroshard.plumbing.arrays import FloatArray, IntArray
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.schema import MAX_DEVICES
from neuroshard.plumbing.threads import in_threads, useful_threads
from neuroshard.stages.search.published._greedy_jit import place_all_greedily
from neuroshard.stages.search.published.device_room import DeviceRoom
from neuroshard.stages.search.published.greedy import DeviceScore, Placements
from neuroshard.stages.search.published.shard_table import ComputeHead, ShardTable, always_added

# With this many devices or more, shards are placed by the part of the score that is the same on any device. Few devices
# need to be tried then, so the search is faster. Plans are 0.7% cheaper with 64 or 128 devices; with 4 to 16 devices
# they would be 2% to 4% more expensive.
_MANY = 64
_ALIKE = 1e-3  # relative: devices whose fixed compute differs by less, as if blocks differ by a row, count as alike
_COSTED_TOGETHER = 64  # placements, at least, in a call of the communication models


# The predicted costs of n plans, (n,) ms, from the compute time of the shards on each device, (n, D) ms, and the units
# that each device sends for each sample, (n, D).
PlanCosts = Callable[[FloatArray, FloatArray], FloatArray]


@dataclass(frozen=True, eq=False)
class PlacementProblem:
    """A placement problem on D devices: the shards, the memory of the devices, and the costs of plans.

    Attributes:
        shards: every shard that the search may use.
        head: the last layer of the compute model.
        memory_bytes: (D,) memory of each device.
        fixed_ms: (D,) compute time of the tables that are on each device already.
        plan_costs: predicts the costs of plans.
    """

    shards: ShardTable
    head: ComputeHead
    memory_bytes: IntArray
    fixed_ms: FloatArray
    plan_costs: PlanCosts

    @property
    def num_devices(self) -> int:
        """The number of devices, D."""
        return len(self.memory_bytes)


@dataclass(frozen=True)
@checked
class GridSettings:
    """The caps that greedy placement tries: upper limits on the columns that a device sends for each sample.

    Attributes:
        points: number of upper limits on the columns per device that greedy placement tries, from the mean over devices
            to max_factor times the mean; larger values take longer, and 0 places shards without a limit.
        max_factor: loosest upper limit on the columns per device that greedy placement tries, as a multiple of the mean
            over devices (1.5 is 50% above the mean).
    """

    points: Annotated[int, Meta(ge=0, le=10_000)] = 11
    max_factor: Annotated[float, Meta(ge=1, le=MAX_DEVICES)] = 1.5


@dataclass(frozen=True, eq=False)
class PlacedSplits:
    """A column split, which cuts all items (as a rule tables) into S shards, and the cheapest placement that was found.

    Attributes:
        splits: (S,) rows of the shard table.
        shards: (S, 2) item and width of the shards, in another order.
        devices: (S,) device of each of `shards`; -1 for some if nothing fits.
        cost_ms: predicted cost of the plan; infinite if nothing fits.
    """

    splits: IntArray
    shards: IntArray
    devices: IntArray
    cost_ms: float


def comparable(cost_ms: FloatArray) -> FloatArray:
    """Return costs (...,) rounded to six significant digits, to ignore differences that are float32 noise."""
    magnitude = 10.0 ** np.floor(np.log10(np.maximum(cost_ms, 1e-9)))
    rounded: FloatArray = np.round(cost_ms / magnitude, 5) * magnitude
    return rounded


class GridSearch:
    """Places column splits greedily under several caps, and keeps the cheapest placement of each column split.
    A cap is an upper limit on the columns that a device sends for each sample. The paper tries M = 11 caps, because the
    cap that balances compute and communication best is not known beforehand. If no cap leaves room for every shard, a
    placement without a cap counts.
    """

    def __init__(self, problem: PlacementProblem, settings: GridSettings) -> None:
        self.problem = problem
        shards = problem.shards
        self._item = shards.item
        self._order = placement_order(shards)
        self._rank = np.empty_like(self._order)
        self._rank[self._order] = np.arange(len(self._order))
        self._fixed_score = _above_least(problem.fixed_ms) / problem.head.scale_ms
        self._caps = caps_of(shards.total_sent_units, problem.num_devices, settings)
        self.by_whole = (
            shards,
            DeviceScore(problem.head.bias, problem.head.weight, len(problem.head.bias), -problem.head.offset),
        )
        self.by_added = _by_added_score(shards, problem.head) if problem.num_devices >= _MANY else None

    def place(self, splits: IntArray, keep: int = 1) -> list[PlacedSplits]:
        """Place each of P column splits (P, S) under every cap, and return the cheapest placement of each split.
        Only the `keep` lowest costs are exact; the others may be higher than the true cost, or infinite.
        """
        return self._best(splits, self.placements(splits, self._caps, *(self.by_added or self.by_whole)), keep)

    def refined(self, placed: PlacedSplits) -> PlacedSplits:
        """Place the shards of `placed` again, by a score of all vector entries; return the cheaper of both results."""
        if self.by_added is None:
            return placed
        grid = self.placements(placed.splits[None], self._caps, *self.by_whole)
        return min(placed, *self._best([placed.splits], grid, 1), key=lambda plan: plan.cost_ms)

    def widths(self, placed: PlacedSplits) -> IntArray:
        """Return the width of each item on each device, (I, D) units of 4 columns; every shard must have a device."""
        widths = np.zeros((self.problem.shards.num_items, self.problem.num_devices), dtype=np.int64)
        np.add.at(widths, (placed.shards[:, 0], placed.devices), placed.shards[:, 1])
        return widths

    def placements(self, splits: IntArray, caps: IntArray, shards: ShardTable, score: DeviceScore) -> Placements:
        """Place each of P column splits greedily under each of M caps, and return all P * M placements.
        `splits` (P, S) has the indices of rows in `shards`. `caps` (M,) are ascending limits on the units of 4 columns
        that a device sends per sample. `score` compares devices: the lowest score with the new shard is best.
        """
        rows = self._order[np.sort(self._rank[splits], axis=1)]
        item = self._item[rows]
        placed = np.stack([item, rows - shards.first[item]], axis=-1)
        threads = min(useful_threads(splits.size * len(caps)), len(splits))
        parts = in_threads(
            lambda part: self._placed(part, caps, shards, score), np.array_split(placed, threads), threads
        )
        return Placements(*map(np.concatenate, zip(*parts, strict=True)))

    def _placed(self, placed: IntArray, caps: IntArray, shards: ShardTable, score: DeviceScore) -> Placements:
        count, num_shards, _ = placed.shape
        memory_bytes = self.problem.memory_bytes
        shape = (count, len(caps), len(memory_bytes))
        outcome = Placements(
            placed,
            np.empty((count, len(caps), num_shards), dtype=np.int64),
            np.empty(shape),
            np.empty(shape),
            np.empty(shape[:2], dtype=np.bool_),
            np.empty(shape[:2], dtype=np.bool_),
        )
        room = DeviceRoom.empty(shards, memory_bytes)
        place_all_greedily(outcome, caps, memory_bytes, self._fixed_score, room, shards, score)
        return outcome._replace(compute_ms=self.problem.head.finish(outcome.compute_ms) * (outcome.sent_units > 0))

    def _best(self, splits: Iterable[IntArray], grid: Placements, keep: int) -> list[PlacedSplits]:
        total = self._plan_costs(grid, keep)
        best = np.argmin(total, axis=1)
        return [
            PlacedSplits(rows, grid.shards[p], grid.devices[p, best[p]], float(total[p, best[p]]))
            for p, rows in enumerate(splits)
        ]

    def _plan_costs(self, grid: Placements, keep: int) -> FloatArray:
        """Return the predicted cost of each placement, (P, M) ms; infinity for placements that the search can ignore.
        The search can ignore a placement that does not fit, that is the same as under the previous cap, or that has no
        cap although a placement with a cap fits. It can also ignore plans that are not among the `keep` cheapest: a
        plan costs at least the compute time of its slowest device.
        """
        counts = grid.fits & ~grid.repeated
        counts[:, -1] &= ~grid.fits[:, :-1].any(axis=1)
        total = np.full(grid.fits.shape, np.inf)
        row, cap = counts.nonzero()
        least = comparable((grid.compute_ms[row, cap] + self.problem.fixed_ms).max(axis=1))
        order, done, most = np.argsort(least, kind="stable"), 0, np.inf
        while done < len(order) and least[order[done]] <= most:
            some = order[done : done + max(_COSTED_TOGETHER, done)]
            of = row[some], cap[some]
            total[of] = comparable(self.problem.plan_costs(grid.compute_ms[of], grid.sent_units[of]))
            done += len(some)
            if keep <= len(total):
                most = np.partition(total.min(axis=1), keep - 1)[keep - 1]
        return total


def placement_order(shards: ShardTable) -> IntArray:
    """Return all rows of `shards`, (N,), in placement order: `confined` items, then others; each by falling cost."""
    return np.lexsort((-shards.cost_ms, ~shards.rules.confined[shards.item]))


def caps_of(total_units: float, num_devices: int, settings: GridSettings) -> IntArray:
    """Return M + 1 ascending caps on the units of 4 columns that a device sends per sample; the last fits any plan."""
    factors = np.linspace(1.0, settings.max_factor, settings.points)
    # Caps with no sum of widths between them are the same cap.
    caps = np.unique(np.floor(total_units / num_devices * factors + 1e-9).astype(np.int64))
    return np.append(caps, int(np.ceil(total_units)))


def _above_least(fixed_ms: FloatArray) -> FloatArray:
    """Return `fixed_ms` (D,) minus its smallest value; zeros if the values differ by at most 0.1% of the largest."""
    above: FloatArray = fixed_ms - fixed_ms.min()
    return above if above.max() > _ALIKE * fixed_ms.max() else np.zeros_like(above)


def _by_added_score(shards: ShardTable, head: ComputeHead) -> tuple[ShardTable, DeviceScore] | None:
    """Return shards and a score that counts only the vector entries of `always_added`; None if there are none."""
    adding, added_score = always_added(shards.vectors, head)
    if not adding.any():
        return None
    order = np.argsort(~adding, kind="stable")  # the entries that count first
    vectors = np.ascontiguousarray(shards.vectors[:, order])
    score = DeviceScore(head.bias[order], head.weight[order], int(adding.sum()), -head.offset)
    return shards._replace(vectors=vectors, least_score=added_score), score
