"""Steps from choice to choice of forms, on costs that are known."""

import numpy as np
import pytest

from neuroshard.stages.search.space.forms import Changes, Forms, descent, ranked_changes
from neuroshard.words.form import FORMS

COLUMNS, ROWS, COPIES = map(FORMS.index, ("columns", "rows", "copies"))
ALL = np.ones((6, 3), dtype=np.bool_)
FIRST = np.full(6, COLUMNS)


def _weights(choices):
    """Every table has a form of its own that is cheapest."""
    forms = choices.forms
    wanted = np.arange(6) % 3
    cost = (forms != wanted) @ np.arange(1.0, 7.0)
    return cost, cost


def _held_up(choices):
    """The dearest table in columns counts, and a call of rows costs something: one table in rows alone never helps."""
    forms = choices.forms
    ms = np.array([5.0, 5.0, 5.0, 1.0, 1.0, 1.0])
    columns = np.where(forms == COLUMNS, ms, 0)
    calls = 0.5 * (forms == ROWS).any(axis=1) + 9.0 * (forms == COPIES).any(axis=1) + 0.4 * (forms == ROWS).sum(axis=1)
    return columns.max(axis=1) + calls, columns.mean(axis=1) + calls


def test_every_table_gets_its_best_form():
    path = descent(FIRST, ALL, _weights)
    assert path[-1].tolist() == [0, 1, 2, 0, 1, 2]
    costs = _weights(Forms(np.array(path)))[0]
    assert (np.diff(costs) < 0).all()


def test_tables_are_changed_together_where_one_alone_does_not_help():
    ranked = ranked_changes(FIRST, ALL, _held_up)
    assert len(ranked.changes) == 12
    assert ranked.cost_ms.min() > _held_up(Forms(FIRST[None]))[0][0]
    assert _held_up(Changes(FIRST, ranked.changes))[0].tolist() == ranked.cost_ms.tolist()
    last = descent(FIRST, ALL, _held_up)[-1]
    assert set(last[:3]) == {ROWS}
    assert _held_up(Forms(last[None]))[0][0] < 4


def test_forms_that_are_not_allowed_are_never_taken():
    allowed = ALL.copy()
    allowed[1] = [True, False, True]
    last = descent(FIRST, allowed, _weights)[-1]
    assert last[1] != ROWS
    assert np.delete(last, 1).tolist() == [0, 2, 0, 1, 2]
    none = np.zeros_like(ALL)
    none[:, COLUMNS] = True
    assert len(descent(FIRST, none, _weights)) == 1


def test_what_fits_nowhere_stays_and_what_fits_somewhere_is_found():
    def never(choices):
        return np.full(len(choices), np.inf), np.full(len(choices), np.inf)

    def in_rows_only(choices):
        cost = np.where((choices.forms == ROWS).sum(axis=1) >= 4, 1.0, np.inf)
        return cost, cost

    assert len(descent(FIRST, ALL, never)) == 1
    assert in_rows_only(Forms(descent(FIRST, ALL, in_rows_only)[-1][None]))[0][0] == pytest.approx(1.0)


def test_not_all_changes_are_looked_at_as_long_as_likely_ones_help():
    """400 tables that each help by themselves, by ever less: all get their best form, in few looks at all changes."""
    wanted, weight, looked = np.arange(400) % 3, 0.97 ** np.arange(400), []

    def costs(choices):
        forms = choices.forms
        looked.append(len(forms))
        cost = 1 + (forms != wanted) @ weight - 0.5 * np.minimum((forms == wanted).sum(axis=1), 390) / 400
        return cost, cost

    path = descent(np.full(400, COLUMNS), np.ones((400, 3), dtype=np.bool_), costs)
    assert (path[-1] == wanted).sum() >= 390
    assert len(path) > 3
    assert sum(count >= 400 for count in looked) < len(path)
