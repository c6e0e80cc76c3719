"""Beam search over column splits (Zha et al. 2023, section 3.3): split shards one at a time, and keep the cheapest."""

import numpy as np

from neuroshard.plumbing.arrays import IntArray
from neuroshard.stages.search.published.grid import GridSearch, PlacedSplits
from neuroshard.stages.search.published.shard_table import ShardTable, fewest_shards, split_each, splittable


def beam_search(grid: GridSearch, num_candidates: int, beam_width: int, max_splits: int) -> PlacedSplits:
    """Run beam search over column splits; return the cheapest split and its placement (the first found among equals).

    Args:
        grid: places column splits on devices.
        num_candidates: N; each step tries to split the N largest and the N most expensive shards.
        beam_width: K, the number of column splits that are kept after each step.
        max_splits: L, the number of steps; each splits one shard into halves.
    """
    shards = grid.problem.shards
    beam = grid.place(fewest_shards(shards)[None])
    best = beam[0]
    for _ in range(max_splits):
        successors = one_more_split(shards, [placed.splits for placed in beam], num_candidates)
        if not len(successors):
            break
        placed = grid.place(successors, keep=beam_width)
        beam = sorted(placed, key=lambda plan: _rank(shards, plan))[:beam_width]
        best = min(best, beam[0], key=lambda plan: plan.cost_ms)
    return best


def one_more_split(shards: ShardTable, beam: list[IntArray], num_candidates: int) -> IntArray:
    """Return the P different splits, (P, S + 1), made by halving one candidate shard of a split (S,) in `beam`."""
    successors = np.concatenate(
        [split_each(shards, splits, split_candidates(shards, splits, num_candidates)) for splits in beam]
    )
    first_row = {splits.tobytes(): row for row, splits in reversed(list(enumerate(successors)))}
    return successors[sorted(first_row.values())]


def split_candidates(shards: ShardTable, splits: IntArray, count: int) -> IntArray:
    """Return the `count` largest (bytes) and the `count` most expensive shards in `splits` that may be halved, (n,)."""
    rows = splittable(shards, splits)
    largest = rows[np.argsort(-shards.size_bytes[rows], kind="stable")[:count]]
    most_expensive = rows[np.argsort(-shards.cost_ms[rows], kind="stable")[:count]]
    chosen = np.concatenate([largest, most_expensive])
    _, earliest = np.unique(chosen, return_index=True)
    return chosen[np.sort(earliest)]


def _rank(shards: ShardTable, placed: PlacedSplits) -> tuple[float, int]:
    """Return a sort key: plans that fit come first, by cost; then all others, by the bytes of the largest shard."""
    fits = placed.cost_ms < float("inf")
    return placed.cost_ms, 0 if fits else int(shards.size_bytes[placed.splits].max())
