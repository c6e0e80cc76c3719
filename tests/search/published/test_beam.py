"""Beam search finds the plan of the paper's algorithm, written out slowly with the greedy placement in NumPy."""

from math import inf

import numpy as np
import pytest

from neuroshard.models.interface import ReluHead
from neuroshard.stages.search.published.beam import beam_search, split_candidates
from neuroshard.stages.search.published.greedy import DeviceScore, place_greedily
from neuroshard.stages.search.published.grid import (
    GridSearch,
    GridSettings,
    PlacementProblem,
    caps_of,
    comparable,
    placement_order,
)
from neuroshard.stages.search.published.shard_table import PlacementRules, ShardTable, fewest_shards, least_score

SETTINGS = GridSettings(points=4)
CANDIDATES, WIDTH, SPLITS = 3, 2, 4


def _problem(seed):
    """Make a problem of whole numbers, so that sums are exact in any order; every second one has little memory."""
    rng = np.random.default_rng(seed)
    full_width, num_devices = rng.choice([1, 2, 4, 8], int(rng.integers(3, 8))), int(rng.integers(2, 5))
    num_items = len(full_width)
    rules = PlacementRules(
        np.ones((num_items, num_devices), dtype=np.bool_),
        np.ones(num_items, dtype=np.int64),
        np.minimum(full_width, num_devices),
        np.ones(num_items, dtype=np.int64),
        np.zeros(num_items + 1, dtype=np.int64),
        np.empty(0, dtype=np.int64),
    )
    item = np.repeat(np.arange(num_items), full_width + 1)
    first = np.concatenate([[0], (full_width + 1).cumsum()[:-1]])
    width = np.arange(len(item)) - first[item]
    hot, rows = rng.integers(1, 9, (num_items, 3)), rng.integers(1, 50, num_items)
    vectors = ((width > 0)[:, None] * hot[item] + width[:, None] * hot[item] // 2).astype(np.float32)
    head = ReluHead(rng.integers(-2, 1, 3).astype(np.float32), np.ones(3, np.float32), -1.0, 0.5)
    shards = ShardTable(
        rules, first, width * rows[item], width * rows[item], width.astype(np.float64), vectors,
        head(vectors) * (width > 0), least_score(vectors, head),
    )  # fmt: skip
    room = (1.1, 4.0)[seed % 2]
    memory_bytes = np.full(num_devices, int((full_width * rows).sum() / num_devices * room))
    fixed_ms = rng.integers(0, 3, num_devices).astype(np.float64) * (seed % 3)
    return PlacementProblem(
        shards, head, memory_bytes, fixed_ms, lambda compute_ms, units: _costs(fixed_ms, compute_ms, units)
    )


def _costs(fixed_ms, compute_ms, units):
    """Return the compute of the straggler plus an exchange as long as that of the widest device."""
    return (fixed_ms + compute_ms).max(axis=-1) + 0.7 * units.max(axis=-1)


def _place(problem, splits):
    """Return (cost, widths) of the cheapest greedy placement of splits under all caps; infinity if nothing fits."""
    shards, head = problem.shards, problem.head
    order = placement_order(shards).tolist()
    rows = np.array(sorted(splits, key=order.index))
    score = DeviceScore(head.bias, head.weight, len(head.bias), -head.offset)
    fixed = problem.fixed_ms - problem.fixed_ms.min()
    best = inf, None
    *caps, no_cap = caps_of(shards.total_sent_units, problem.num_devices, SETTINGS).tolist()
    for cap in (*caps, no_cap):
        if cap == no_cap and best[0] < inf:
            break  # only where no cap leaves room
        devices = place_greedily(shards, rows, cap, problem.memory_bytes, fixed / head.scale_ms, score)
        if devices is None:
            continue
        widths = np.zeros((shards.num_items, problem.num_devices), dtype=np.int64)
        np.add.at(widths, (shards.item_of(rows), devices), rows - shards.first[shards.item_of(rows)])
        vectors = shards.vectors[shards.first + widths.T].sum(axis=1)
        units = shards.device_units(widths)
        cost_ms = float(comparable(problem.plan_costs(head(vectors) * (units > 0), units)))
        best = min(best, (cost_ms, widths), key=lambda plan: plan[0])
    return best


def _slow_beam_search(problem):
    shards, start = problem.shards, tuple(fewest_shards(problem.shards).tolist())
    placed = {start: _place(problem, start)}
    beam = [start]
    best = placed[start]
    for _ in range(SPLITS):
        successors = dict.fromkeys(
            _halved(shards, splits, row)
            for splits in beam
            for row in split_candidates(shards, np.array(splits), CANDIDATES).tolist()
        )
        placed = {splits: _place(problem, splits) for splits in successors}
        if not placed:
            break
        beam = sorted(placed, key=lambda splits: _rank(shards, splits, placed[splits][0]))[:WIDTH]
        best = min(best, placed[beam[0]], key=lambda plan: plan[0])
    return best


def _halved(shards, splits, row):
    first = int(shards.first[shards.item_of(np.array(row))])
    left = list(splits)
    left.remove(row)
    return tuple(sorted([*left, first + (row - first) // 2, row - (row - first) // 2]))


def _rank(shards, splits, cost_ms):
    return cost_ms, 0 if cost_ms < inf else int(shards.size_bytes[list(splits)].max())


@pytest.mark.parametrize("seed", range(60))
def test_beam_search_finds_the_plan_of_the_plain_implementation(seed):
    problem = _problem(seed)
    grid = GridSearch(problem, SETTINGS)
    found = beam_search(grid, CANDIDATES, WIDTH, SPLITS)
    cost_ms, widths = _slow_beam_search(problem)
    assert found.cost_ms == cost_ms
    if widths is not None:
        assert grid.widths(found).tolist() == widths.tolist()


def test_problems_for_beam_search_include_splits_and_tasks_without_a_plan():
    """The test above sees all cases."""
    problems = [_problem(seed) for seed in range(60)]
    found = [beam_search(GridSearch(problem, SETTINGS), CANDIDATES, WIDTH, SPLITS) for problem in problems]
    split = [len(plan.splits) > problem.shards.num_items for plan, problem in zip(found, problems, strict=True)]
    fits = [plan.cost_ms < inf for plan in found]
    assert 0 < sum(split) < 60
    assert 0 < sum(fits) < 60
