"""Whether anything fits at all, by integer programming: the one place that may say "impossible", in which forms.

Bytes of a shard are a fixed amount (buffers, rowwise state) and an amount for every unit of 4 columns, so a plan is a
whole number of units of each item on each device, and a 0 or 1 that says whether there are any.
"""

from collections.abc import Iterator
from math import gcd
from typing import Any

import numpy as np

from neuroshard.plumbing.arrays import BoolArray, IntArray
from neuroshard.stages.search.space.items import Items, keeps_limits
from neuroshard.stages.search.space.sizes import Sizes

_MOST_UNKNOWNS = 4000  # beyond that a single node of the solver's tree takes long
_EFFORT = 200_000  # unknowns x nodes: counted, so that every machine gives the same answer
_SCALE = 1 << 20  # memory as the solver sees it at most: it holds whole numbers up to there exactly
_ROUNDING = 4  # of _SCALE, that its answers may be wrong by where bytes are rounded to that
_INFEASIBLE = 2


_Row = tuple[IntArray, Any, float, float]  # unknowns (n,), their weights, and what the sum is at least and at most


def ways_that_fit(
    sizes: Sizes, memory_bytes: IntArray, item: IntArray, size_bytes: IntArray
) -> tuple[IntArray | None, bool]:
    """Find (n,) ways to leave columns so that the rest should fit in memory_bytes (D,); or prove that there are none.

    In each of K ways all of an `item` (K,) lies in rows or copies, and takes size_bytes (K, D) of the devices' memory.
    Neither, where the task is large or the solver's budget runs out before it knows. Rounding may make it too hopeful.
    """
    program = _Program(sizes, memory_bytes, _ROUNDING, item, size_bytes)
    values, proven = program.solve()
    return (None, proven) if values is None else (program.ways(values), False)


def pack_exactly(sizes: Sizes, memory_bytes: IntArray) -> tuple[IntArray | None, bool]:
    """Find a packing (I, D) that keeps within memory_bytes (D,) and the items' limits, or prove that there is none.

    Neither, where the task is large or the solver's budget runs out before it knows.
    """
    nowhere = np.zeros(0, dtype=np.int64), np.zeros((0, len(memory_bytes)), dtype=np.int64)
    for sign in (1, -1):
        program = _Program(sizes, memory_bytes, sign * _ROUNDING, *nowhere)
        values, proven = program.solve()
        if values is None:
            return None, proven and sign > 0
        held = program.held(values)
        if keeps(sizes, held, memory_bytes):
            return held, False
        # Too large, within the room that rounding has: with as much less room it isn't.
    return None, False


class _Program:
    """An integer program: (I, D) units, where an item may be cut, and (I, D) presence, where it matters, are unknown.

    Others of these stay 0. Unknown too is (K,) whether an item lies elsewhere, in each of some ways.
    """

    def __init__(
        self, sizes: Sizes, memory_bytes: IntArray, margin: int, way_item: IntArray, way_bytes: IntArray
    ) -> None:
        """Enumerate unknowns; `margin`: room beyond memory_bytes (D,) where bytes are rounded, in units of that.

        In a way all of way_item (K,) lies elsewhere, and takes way_bytes (K, D).
        """
        self._sizes, self._memory, self._margin = sizes, memory_bytes, margin
        limits, width = sizes.items.limits, sizes.full_width
        slice_bytes = sizes.size_bytes[sizes.first + np.minimum(2, width)] - sizes.size_bytes[sizes.first + 1]
        whole = np.minimum(limits.max_shards, limits.allowed.sum(axis=1)) == 1
        self._whole: BoolArray = whole | (width == 1)
        self._unit_bytes: IntArray = np.where(self._whole, 0, slice_bytes)
        self._fixed_bytes: IntArray = np.where(
            self._whole, sizes.size_bytes[sizes.whole], sizes.size_bytes[sizes.first + 1] - slice_bytes
        )
        free = (
            (self._fixed_bytes == 0)
            & (limits.min_shards <= 1)
            & (limits.min_width <= 1)
            & (limits.max_shards >= np.minimum(width, limits.allowed.sum(axis=1)))
            & (np.diff(limits.rival_first) == 0)
        )
        cut, told = limits.allowed & ~self._whole[:, None], limits.allowed & ~free[:, None]
        self._units, count = _numbered(cut, 0)
        self._presence, count = _numbered(told, count)
        self._way_item, self._way_bytes, self._ways = way_item, way_bytes, count + np.arange(len(way_item))
        self._num_unknowns = count + len(way_item)

    def solve(self) -> tuple[IntArray | None, bool]:
        """Find a solution (n,), up to the solver's rounding, or None; tell whether it proves that there is none."""
        from scipy.optimize import Bounds, LinearConstraint, milp  # slow to import: only where it is used
        from scipy.sparse import coo_array

        if self._num_unknowns > _MOST_UNKNOWNS:
            return None, False
        most = np.ones(self._num_unknowns)
        item, device = np.nonzero(self._units >= 0)
        most[self._units[item, device]] = self._sizes.full_width[item]
        rows = [*self._shards_make_items(), *self._rivals_are_apart(), *self._bytes_fit()]
        unknowns, weights, lower, upper = zip(*rows, strict=True)
        weight = [np.broadcast_to(its, some.shape) for its, some in zip(weights, unknowns, strict=True)]
        row = np.repeat(np.arange(len(rows)), [len(some) for some in unknowns])
        cells = np.concatenate(weight, dtype=np.float64), (row, np.concatenate(unknowns))
        matrix = coo_array(cells, shape=(len(rows), len(most))).tocsr()
        answer: Any = milp(
            np.zeros(len(most)),
            integrality=np.ones(len(most), dtype=np.int64),
            bounds=Bounds(0, most),
            constraints=LinearConstraint(matrix, np.array(lower, np.float64), np.array(upper, np.float64)),
            options={"node_limit": max(1, _EFFORT // max(len(most), 1))},
        )
        if answer.x is None:
            return None, answer.status == _INFEASIBLE
        return np.round(answer.x).astype(np.int64), False

    def ways(self, values: IntArray) -> IntArray:
        """Find which items lie elsewhere, and how, in a solution (n,)."""
        return np.flatnonzero(values[self._ways])

    def held(self, values: IntArray) -> IntArray:
        """Count the units of each item on each device, (I, D), in a solution (n,)."""
        units = np.where(self._units >= 0, values[self._units], 0)
        there = np.where(self._presence >= 0, values[self._presence], 0) * self._sizes.full_width[:, None]
        return np.where(self._whole[:, None], there, units)

    def _shards_make_items(self) -> Iterator[_Row]:
        """Require widths that sum to the item's, and as many shards as there may be, each as wide as it must be."""
        limits, width = self._sizes.items.limits, self._sizes.full_width
        for item in range(self._sizes.num_items):
            units, presence = (one[item][one[item] >= 0] for one in (self._units, self._presence))
            ways = self._ways[self._way_item == item]
            if self._whole[item]:
                yield np.concatenate([presence, ways]), 1, 1, 1
                continue
            yield *_joined(units, ways, width[item]), width[item], width[item]
            if not len(presence):
                continue
            least, most, narrowest = limits.min_shards[item], limits.max_shards[item], limits.min_width[item]
            yield *_joined(presence, ways, least), least, most
            widest = width[item] - narrowest * (max(least, 1) - 1)
            for unit, there in zip(units, presence, strict=True):
                yield np.array([unit, there]), np.array([1, -widest]), -np.inf, 0
                yield np.array([unit, there]), np.array([1, -narrowest]), 0, np.inf

    def _rivals_are_apart(self) -> Iterator[_Row]:
        for group in _groups_of_rivals(self._sizes.items):
            for there in self._presence[group].T:
                yield there[there >= 0], 1, 0, 1

    def _bytes_fit(self) -> Iterator[_Row]:
        units, fixed, ways = self._unit_bytes, self._fixed_bytes, self._way_bytes
        common = gcd(*np.concatenate([units, fixed, ways.ravel()]).tolist()) or 1
        for device, memory in enumerate((self._memory // common).tolist()):  # less than the common divisor is of no use
            cut, told = self._units[:, device] >= 0, self._presence[:, device] >= 0
            unknowns = np.concatenate([self._units[cut, device], self._presence[told, device], self._ways])
            size = np.concatenate([units[cut], fixed[told], ways[:, device]]) // common
            scale = max(1.0, memory / _SCALE)
            room = memory / scale + (self._margin if scale > 1 else 0)
            yield unknowns, np.minimum(size / scale, 2 * _SCALE), -np.inf, room  # beyond that nothing fits anyway


def _joined(unknowns: IntArray, ways: IntArray, weight: int) -> tuple[IntArray, IntArray]:
    """Join unknowns that count once, and ways that each count for so many of them, with their weights."""
    return np.concatenate([unknowns, ways]), np.repeat([1, weight], [len(unknowns), len(ways)])


def keeps(sizes: Sizes, held: IntArray, memory_bytes: IntArray) -> bool:
    """Tell whether `held` (I, D) places all columns in memory_bytes (D,) and the items' limits, in whole numbers."""
    size = [sum(column) for column in sizes.size_bytes[sizes.first[:, None] + held].T.tolist()]
    return bool(
        (held.sum(axis=1) == sizes.full_width).all()
        and keeps_limits(sizes.items.limits, held)
        and all(used <= room for used, room in zip(size, memory_bytes.tolist(), strict=True))
    )


def _numbered(some: BoolArray, start: int) -> tuple[IntArray, int]:
    """Enumerate the true cells from `start` on, others -1; return the next number too."""
    numbers: IntArray = np.where(some, start + some.cumsum().reshape(some.shape) - 1, -1)
    return numbers, start + int(some.sum())


def _groups_of_rivals(items: Items) -> list[list[int]]:
    """Group items of which no two may share a device, so that all such pairs are covered: tighter than pairs alone."""
    rivals = [set(items.rivals_of(item).tolist()) for item in range(len(items))]
    left = [{other for other in some if other > item} for item, some in enumerate(rivals)]
    groups = []
    for item in range(len(items)):
        while left[item]:
            group, common = [item], set(rivals[item])
            for other in sorted(left[item]):
                if other in common:
                    group.append(other)
                    common &= rivals[other]
            for one in group:
                left[one].difference_update(group)
            groups.append(group)
    return groups
