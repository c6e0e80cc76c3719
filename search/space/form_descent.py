"""Choices of a form for every table, changed step by step as long as that is estimated to help."""

from collections.abc import Callable, Iterator

import numpy as np

from neuroshard.arrays import BoolArray, FloatArray, IntArray
from neuroshard.plans.form import FORMS

_MOST_STEPS = 100
_ROUNDING = 1e-6  # of costs, relative: less isn't a gain

# Of B choices (B, T): (B,) ms, and (B,) ms to rank by where many cost the same.
Costs = Callable[[IntArray], tuple[FloatArray, FloatArray]]


def descent(first: IntArray, allowed: BoolArray, costs: Costs) -> list[IntArray]:
    """(T,) forms after every step, from `first` on to where no step helps; `allowed` (T, F) holds throughout.

    A step gives one table another form, or those 2, 4, 8, ... that promise most each their own: where many tables hold
    a device up, none of them alone helps.
    """
    path, lowest = [first], float(costs(first[None])[0][0])
    for _ in range(_MOST_STEPS):
        singles, _ = ranked_changes(path[-1], allowed, costs)
        if not len(singles):
            break
        steps = np.concatenate([singles, *_together(path[-1], singles)])
        cost = costs(steps)[0]
        best = int(cost.argmin())
        if not cost[best] < lowest * (1 - _ROUNDING):
            break
        lowest = float(cost[best])
        path.append(steps[best])
    return path


def ranked_changes(forms: IntArray, allowed: BoolArray, costs: Costs) -> tuple[IntArray, FloatArray]:
    """(n, T) every choice that differs from `forms` (T,) in one table, most promising first; (n,) ms of each."""
    tables, others = np.nonzero(allowed & (np.arange(len(FORMS)) != forms[:, None]))
    changed = np.repeat(forms[None], len(tables), axis=0)
    changed[np.arange(len(tables)), tables] = others
    if not len(tables):
        return changed, np.zeros(0)
    cost, evenly = costs(changed)
    order = np.lexsort((cost, evenly))
    return changed[order], cost[order]


def _together(forms: IntArray, singles: IntArray) -> Iterator[IntArray]:
    """(m, T) the first 2, 4, 8, ... of some single changes (n, T) at once: of all, and of those to each form."""
    table = (singles != forms).argmax(axis=1)
    to = singles[np.arange(len(singles)), table]
    for which in (np.ones(len(singles), dtype=np.bool_), *(to == form for form in range(len(FORMS)))):
        _, earliest = np.unique(table[which], return_index=True)  # of two changes of a table, the better one
        its, new = table[which][np.sort(earliest)], to[which][np.sort(earliest)]
        counts = [min(1 << power, len(its)) for power in range(1, len(its).bit_length() + 1)] if len(its) > 1 else []
        joint = np.repeat(forms[None], len(counts), axis=0)
        for row, count in zip(joint, counts, strict=True):
            row[its[:count]] = new[:count]
        yield joint
