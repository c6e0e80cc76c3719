"""Choices of sharding types (one type for every table) as arrays, and a local search that improves a choice."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from neuroshard.plumbing.arrays import BoolArray, FloatArray, IntArray
from neuroshard.stages.search.options.settings import SETTINGS
from neuroshard.words.form import FORMS

_ROUNDING = 1e-6  # relative difference of costs below which there is no gain
Numbers = FloatArray | IntArray | BoolArray


@dataclass(frozen=True, eq=False)
class TypeChoices:
    """B choices of sharding types, one type per table. `types` (B, T) has the index of the sharding type of each of T
    tables.
    """

    types: IntArray

    def __len__(self) -> int:
        """Return the number of choices."""
        return len(self.types)

    def some(self, which: slice) -> "TypeChoices":
        """Return the choices that the slice `which` selects."""
        return TypeChoices(self.types[which])

    def total(self, form: int, numbers: Numbers) -> FloatArray:
        """For each of B choices, return the sum of `numbers` over the tables with the sharding type `form`, (B, ...).
        `numbers` (T, ...) has a number or an array for each of T tables.
        """
        return np.tensordot((self.types == form).astype(np.float64), numbers, 1)

    def largest(self, form: int, numbers: FloatArray) -> FloatArray:
        """Return the maximum of each column of `numbers` (T, Q) over the tables with the sharding type `form`, for each
        of B choices, (B, Q). The row of a table in `numbers` has Q nonnegative values, such as the bytes of the table's
        largest shard for each of Q ways to split the table. If a choice has no table with this sharding type, the
        maxima of the choice are 0.

        The choices of one call differ in few tables. Only these tables are compared choice by choice.
        """
        tables = self.types == form
        always = tables.all(axis=0)
        sometimes = tables.any(axis=0) & ~always
        chosen, some, least = tables[:, sometimes], numbers[sometimes], numbers[always].max(axis=0, initial=0.0)
        each = (np.where(chosen, number, 0.0).max(axis=1, initial=0.0) for number in some.T)
        largest: FloatArray = np.maximum(np.stack(list(each), axis=1), least)
        return largest


@dataclass(frozen=True, eq=False)
class ChangedChoices:
    """B choices of sharding types, which differ from the choice `before` in the sharding type of one table each.
    `before` (T,) has the sharding types of T tables. Row b of `changes` (B, 2) has the table that changes in choice b,
    and the new sharding type of this table.
    """

    before: IntArray
    changes: IntArray

    def __len__(self) -> int:
        """Return the number of choices."""
        return len(self.changes)

    @property
    def types(self) -> IntArray:
        """The sharding type of each of T tables in each of B choices, as indices, (B, T)."""
        after = np.repeat(self.before[None], len(self.changes), axis=0)
        after[np.arange(len(self.changes)), self.changes[:, 0]] = self.changes[:, 1]
        return after

    def some(self, which: slice) -> "ChangedChoices":
        """Return the choices that the slice `which` selects."""
        return ChangedChoices(self.before, self.changes[which])

    def _more(self, form: int) -> IntArray:
        """Return how many more tables with the sharding type `form` each of B choices has than the choice `before`,
        (B,). The number is 1 if the changed table gets this sharding type, -1 if the changed table loses this sharding
        type, and 0 otherwise.
        """
        table, new = self.changes.T
        more: IntArray = (new == form).astype(np.int64) - (self.before[table] == form)
        return more

    def total(self, form: int, numbers: Numbers) -> FloatArray:
        """For each of B choices, return the sum of `numbers` over the tables with the sharding type `form`, (B, ...).
        `numbers` (T, ...) has a number or an array for each of T tables.
        """
        flat, table = numbers.reshape(len(numbers), -1), self.changes[:, 0]
        total: FloatArray = (self.before == form).astype(np.float64) @ flat
        after = total + self._more(form)[:, None] * flat[table]
        return after.reshape(len(table), *numbers.shape[1:])

    def largest(self, form: int, numbers: FloatArray) -> FloatArray:
        """Return the maximum of each column of `numbers` (T, Q) over the tables with the sharding type `form`, for each
        of B choices, (B, Q). The row of a table in `numbers` has Q nonnegative values, such as the bytes of the table's
        largest shard for each of Q ways to split the table. If a choice has no table with this sharding type, the
        maxima of the choice are 0.
        """
        table, more = self.changes[:, 0], self._more(form)[:, None]
        chosen = np.where((self.before == form)[:, None], numbers, 0.0)
        where = chosen.argmax(axis=0)
        first = chosen.max(axis=0)
        chosen[where, np.arange(len(where))] = 0.0
        leaves = (table[:, None] == where) & (more < 0)
        joins = np.where(more > 0, numbers[table], 0.0)
        largest: FloatArray = np.maximum(np.where(leaves, chosen.max(axis=0), first), joins)
        return largest


Choices = TypeChoices | ChangedChoices


def total_by_type(choices: Choices, numbers: Numbers) -> FloatArray:
    """For each of B choices of sharding types, return the sum of a value over all T tables, (B, ...).
    `numbers` (T, F, ...) has the value of each table with each of F sharding types. A value is a number or an array.
    For example, if the value is the bytes that a device receives for a table, the sum is the bytes for all tables.
    """
    total: FloatArray = np.sum([choices.total(form, numbers[:, form]) for form in range(numbers.shape[1])], axis=0)
    return total


# Of B choices: (B,) ms, and (B,) ms to rank by where many cost the same.
Costs = Callable[[Choices], tuple[FloatArray, FloatArray]]
# n changes of a choice, the most promising first: (n, 2) a table and its new sharding type, (n,) ms after each alone.
Ranked = tuple[IntArray, FloatArray]


def search_choices(first: IntArray, allowed: BoolArray, costs: Costs) -> list[IntArray]:
    """Improve the choice `first` (T,) of sharding types by local search, until no step lowers the cost or the maximum
    number of steps is reached. Return the list of choices: `first`, and then the choice (T,) after each step.

    Tables keep to the sharding types `allowed` (T, F). A step changes the sharding type of one table, or
    of the 2, 3, 4, 6, 8, ... most promising tables at once: if many tables make a device the straggler, changing one of
    them does not help.
    """
    path, lowest = [first], float(costs(TypeChoices(first[None]))[0][0])
    likely = np.empty((0, 2), dtype=np.int64)
    for _ in range(SETTINGS.steps):
        step = _best_step(path[-1], _ranked(path[-1], likely, costs), costs, lowest)
        if step is None:
            everything = rank_changes(path[-1], allowed, costs)
            step = _best_step(path[-1], everything, costs, lowest)
            likely = everything[0]
        if step is None:
            break
        lowest, types = step
        unchanged = types[likely[:, 0]] == path[-1][likely[:, 0]]
        likely = likely[unchanged][: SETTINGS.likely_changes]
        path.append(types)
    return path


def rank_changes(types: IntArray, allowed: BoolArray, costs: Costs) -> Ranked:
    """Return all n allowed changes of one table's sharding type, the most promising change first, as two arrays.
    The first array (n, 2) has the table and the new sharding type of each change. The second array (n,) has the cost in
    ms if only this change is made. `types` (T,) has the present sharding type of each of T tables.
    """
    return _ranked(types, np.argwhere(allowed & (np.arange(len(FORMS)) != types[:, None])), costs)


def _ranked(types: IntArray, changes: IntArray, costs: Costs) -> Ranked:
    if not len(changes):
        return changes, np.zeros(0)
    cost, evenly = costs(ChangedChoices(types, changes))
    order = np.lexsort((cost, evenly))
    return changes[order], cost[order]


def _best_step(types: IntArray, ranked: Ranked, costs: Costs, lowest_ms: float) -> tuple[float, IntArray] | None:
    """Find the step from the choice `types` (T,) of sharding types that leads to the lowest cost. Return this cost in
    ms, and the choice after the step, (T,). Return None if no step leads to a cost below `lowest_ms`.
    A step changes the sharding type of one table, or of several tables at once. `ranked` has the changes to try, and
    the cost after each change alone.
    """
    changes, alone_ms = ranked
    if not len(changes):
        return None
    together = np.concatenate(list(_together(types, changes)))
    joint_ms = costs(TypeChoices(together))[0] if len(together) else np.zeros(0)
    cost_ms = np.concatenate([alone_ms, joint_ms])
    best = int(cost_ms.argmin())
    if not cost_ms[best] < lowest_ms * (1 - _ROUNDING):
        return None
    alone = best < len(changes)
    after = ChangedChoices(types, changes[best : best + 1]).types[0] if alone else together[best - len(changes)]
    return float(cost_ms[best]), after


def _together(types: IntArray, changes: IntArray) -> Iterator[IntArray]:
    """Yield arrays (m, T) of m choices of sharding types, which apply several changes to the choice `types` (T,).
    Each row of `changes` (n, 2) has a table and the new sharding type of the table, the most promising change first.
    The m choices of an array apply the first 2, 3, 4, 6, 8, ... changes of a list, and finally all changes of the list.

    For the first array, the list has all changes. For each further array, the list has only the changes to one sharding
    type. If a list has several changes of a table, only the first of these changes is applied.
    """
    for form in (None, *range(len(FORMS))):
        table, new = (changes if form is None else changes[changes[:, 1] == form]).T
        _, earliest = np.unique(table, return_index=True)  # of two changes of a table, the better one
        tables, new = table[np.sort(earliest)], new[np.sort(earliest)]
        powers = (1 << power for power in range(1, len(tables).bit_length()))
        counts = sorted({min(count, len(tables)) for power in powers for count in (power, power * 3 // 2, power * 2)})
        joint = np.repeat(types[None], len(counts), axis=0)
        for row, count in zip(joint, counts, strict=True):
            row[tables[:count]] = new[:count]
        yield joint
