"""Sums over the tables of a form: of changes of one choice as of the choices themselves."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuroshard.stages.search.space.forms import Changes, Forms, Members, total_by_form
from neuroshard.words.form import FORMS


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12))
def test_changes_give_what_the_choices_give(seed, num_tables):
    rng = np.random.default_rng(seed)
    before = rng.integers(len(FORMS), size=num_tables)
    changes = np.column_stack([rng.integers(num_tables, size=20), rng.integers(len(FORMS), size=20)])
    choices = Changes(before, changes)
    assert choices.forms.shape == (20, num_tables)
    for row, (table, form) in zip(choices.forms, changes, strict=True):
        assert row[table] == form
        assert np.delete(row == before, table).all()
    numbers = rng.integers(0, 4, size=(num_tables, 3)).astype(float)
    by_form = rng.integers(0, 4, size=(num_tables, len(FORMS), 3)).astype(float)
    expected = by_form[np.arange(num_tables), choices.forms].sum(axis=1).tolist()
    assert total_by_form(choices, by_form).tolist() == total_by_form(Forms(choices.forms), by_form).tolist() == expected
    for form in range(len(FORMS)):
        one, other = choices.at(form), Forms(choices.forms).at(form)
        assert (one.total(np.ones(num_tables)) > 0).tolist() == (choices.forms == form).any(axis=1).tolist()
        assert one.total(numbers).tolist() == other.total(numbers).tolist()
        assert one.total(numbers[:, 0]).tolist() == other.total(numbers[:, 0]).tolist()
        assert one.total(numbers[:, :, None]).shape == (20, 3, 1)
        assert one.largest(numbers).tolist() == other.largest(numbers).tolist()


@pytest.mark.parametrize("of", [Forms, lambda forms: Changes(forms[0], np.array([[0, 0], [1, 1], [1, 2]]))])
def test_some_choices_are_those_of_their_places(of):
    choices = of(np.array([[0, 1], [2, 1], [0, 0]]))
    assert len(choices) == 3
    assert choices.some(slice(1, 3)).forms.tolist() == choices.forms[1:].tolist()


@pytest.mark.parametrize("always", [0, 5, 40])
def test_the_largest_of_some_are_found(always):
    """Also where some tables are in all choices, or none in one, or choices are alike."""
    rng = np.random.default_rng(4)
    numbers = rng.uniform(size=(40, 3))
    chosen = rng.uniform(size=(30, 40)) < rng.uniform(size=(30, 1)) ** 3
    chosen[:, :always], chosen[0] = True, always > 0
    expected = np.where(chosen[:, :, None], numbers, 0).max(axis=1)
    np.testing.assert_array_equal(Members(chosen).largest(numbers), expected)
