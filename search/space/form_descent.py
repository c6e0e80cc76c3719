"""Choices of a form for every table, changed step by step as long as that is estimated to help."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from neuroshard.plumbing.arrays import BoolArray, FloatArray, IntArray
from neuroshard.stages.search.space.chosen_forms import Changes, Choices, Forms
from neuroshard.words.form import FORMS

_MOST_STEPS = 100
_LIKELY = 64  # changes that promised most when all were looked at: as long as some of them help, others are not
_ROUNDING = 1e-6  # of costs, relative: less isn't a gain

# Of B choices: (B,) ms, and (B,) ms to rank by where many cost the same.
Costs = Callable[[Choices], tuple[FloatArray, FloatArray]]


class Ranked(NamedTuple):
    """n changes of a choice, each of one table, most promising first.

    Attributes:
        changes: (n, 2) a table and its new form.
        cost_ms: (n,) of the choice after each alone.
    """

    changes: IntArray
    cost_ms: FloatArray


def descent(first: IntArray, allowed: BoolArray, costs: Costs) -> list[IntArray]:
    """(T,) forms after every step, from `first` on to where no step helps; `allowed` (T, F) holds throughout.

    A step gives one table another form, or those 2, 3, 4, 6, 8, ... that promise most each their own: where many tables
    make a straggler, none of them alone helps.
    """
    path, lowest = [first], float(costs(Forms(first[None]))[0][0])
    likely = np.empty((0, 2), dtype=np.int64)
    for _ in range(_MOST_STEPS):
        step = _best_step(path[-1], _ranked(path[-1], likely, costs), costs, lowest)
        if step is None:
            everything = ranked_changes(path[-1], allowed, costs)
            step = _best_step(path[-1], everything, costs, lowest)
            likely = everything.changes
        if step is None:
            break
        lowest, forms = step
        likely = likely[forms[likely[:, 0]] == path[-1][likely[:, 0]]][:_LIKELY]  # of tables that are as they were
        path.append(forms)
    return path


def ranked_changes(forms: IntArray, allowed: BoolArray, costs: Costs) -> Ranked:
    """Every change of `forms` (T,) in one table."""
    return _ranked(forms, np.argwhere(allowed & (np.arange(len(FORMS)) != forms[:, None])), costs)


def _ranked(forms: IntArray, changes: IntArray, costs: Costs) -> Ranked:
    if not len(changes):
        return Ranked(changes, np.zeros(0))
    cost, evenly = costs(Changes(forms, changes))
    order = np.lexsort((cost, evenly))
    return Ranked(changes[order], cost[order])


def _best_step(forms: IntArray, ranked: Ranked, costs: Costs, lowest_ms: float) -> tuple[float, IntArray] | None:
    """(ms, (T,) forms) after the best step among such changes; None if none costs less than `lowest_ms`."""
    if not len(ranked.changes):
        return None
    together = np.concatenate(list(_together(forms, ranked.changes)))
    joint_ms = costs(Forms(together))[0] if len(together) else np.zeros(0)
    cost_ms = np.concatenate([ranked.cost_ms, joint_ms])
    best = int(cost_ms.argmin())
    if not cost_ms[best] < lowest_ms * (1 - _ROUNDING):
        return None
    alone = best < len(ranked.changes)
    after = Changes(forms, ranked.changes[best : best + 1]).forms[0] if alone else together[best - len(ranked.changes)]
    return float(cost_ms[best]), after


def _together(forms: IntArray, changes: IntArray) -> Iterator[IntArray]:
    """(m, T) a choice (T,) after the first 2, 3, 4, 6, 8, ... of some changes at once, of all and of each form's."""
    for form in (None, *range(len(FORMS))):
        table, new = (changes if form is None else changes[changes[:, 1] == form]).T
        _, earliest = np.unique(table, return_index=True)  # of two changes of a table, the better one
        its, new = table[np.sort(earliest)], new[np.sort(earliest)]
        powers = (1 << power for power in range(1, len(its).bit_length()))
        counts = sorted({min(count, len(its)) for power in powers for count in (power, power * 3 // 2, power * 2)})
        joint = np.repeat(forms[None], len(counts), axis=0)
        for row, count in zip(joint, counts, strict=True):
            row[its[:count]] = new[:count]
        yield joint
