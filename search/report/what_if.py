"""What devices would compute if they held other columns of one table: asked many times at once, no plan is built."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from neuroshard.cost.loads import Loads, LoadSets
from neuroshard.models import ComputeModel, SumModel
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import FloatArray, IntArray
from neuroshard.words.form import CALLS


class Change(NamedTuple):
    """A device that holds `dim` columns of a table, by its index, instead of what it holds of it now; 0 for none.

    What it holds now may be columns, a block of rows or a copy.
    """

    table: int
    device: int
    dim: int


def changed_compute_ms(plan: Plan, changes: Sequence[Change], model: ComputeModel) -> FloatArray:
    """(n,) compute cost, ms, of each change's device after that change alone."""
    if not changes:
        return np.zeros(0)
    return _of_sums(plan, changes, model) if isinstance(model, SumModel) else _of_sets(plan, changes, model)


def _of_sets(plan: Plan, changes: Sequence[Change], model: ComputeModel) -> FloatArray:
    """Every changed device's loads, put together anew."""
    placed, (rows, added) = plan.device_loads, _added(plan, changes)
    loads = LoadSets.joined([LoadSets.alone(placed.loads), LoadSets.alone(added)]).loads
    number = dict(zip(rows.tolist(), range(len(placed.loads), len(loads)), strict=True))
    ends, gone = placed.counts.cumsum(), _gone(plan, changes)
    chosen = []
    for row, change in enumerate(changes):
        here = np.arange(ends[change.device] - placed.counts[change.device], ends[change.device])
        kept = here[here != gone[row]]
        chosen.append(np.append(kept, number[row]) if row in number else kept)
    counts = np.array([len(numbers) for numbers in chosen])
    return model.device_ms(LoadSets(loads.take(np.concatenate(chosen)), counts))


def _of_sums(plan: Plan, changes: Sequence[Change], model: SumModel) -> FloatArray:
    """All kernel calls, one after the other; those that there is nothing for cost nothing."""
    loads, (rows, added), gone = plan.device_loads.loads, _added(plan, changes), _gone(plan, changes)
    cost = np.zeros(len(changes))
    for number in np.unique(np.append(loads.call, added.call)).tolist():
        its, new = np.flatnonzero(loads.call == number), np.flatnonzero(added.call == number)
        cost += _of_calls(plan, changes, its, gone, (rows[new], added.take(new)), model.of_call(CALLS[number]))
    return cost


def _of_calls(
    plan: Plan,
    changes: Sequence[Change],
    its: IntArray,
    gone: IntArray,
    new: tuple[IntArray, Loads],
    model: SumModel,
) -> FloatArray:
    """(n,) ms of one kernel call, of the plan's loads at `its`: a device's sum of vectors, less that of what it holds
    of the table plus that of what it would, in 64 bits.
    """
    placed, rows = plan.device_loads, new[0]
    devices = np.repeat(np.arange(len(placed)), placed.counts)[its]
    vectors = model.embed(placed.loads.take(its)).astype(np.float64)
    sums, counts = np.zeros((len(placed), vectors.shape[1])), np.bincount(devices, minlength=len(placed))
    np.add.at(sums, devices, vectors)
    changed = np.array([change.device for change in changes])
    after, left = sums[changed], counts[changed]
    had = np.flatnonzero(np.isin(gone, its))
    after[had] -= vectors[np.searchsorted(its, gone[had])]
    left[had] -= 1
    after[rows] += model.embed(new[1])
    left[rows] += 1
    cost: FloatArray = model.head(after.astype(np.float32)) * (left > 0)
    return cost


def _added(plan: Plan, changes: Sequence[Change]) -> tuple[IntArray, Loads]:
    """Which changes leave columns on their devices, (m,), and those columns' loads."""
    rows = np.array([row for row, change in enumerate(changes) if change.dim], dtype=np.int64)
    table, dim = (np.array([getattr(changes[row], name) for row in rows], dtype=np.int64) for name in ("table", "dim"))
    return rows, plan.table_loads.take(table).columns(dim)


def _gone(plan: Plan, changes: Sequence[Change]) -> IntArray:
    """(n,) number, among the plan's loads, of what each change takes away; -1 for nothing."""
    numbers = {(placed.shard.table, placed.device): number for number, placed in enumerate(plan.by_device)}
    return np.array([numbers.get((change.table, change.device), -1) for change in changes], dtype=np.int64)
