"""Sharding types that tables may have, sums over the tables of one type, and steps from choice to choice."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuroshard import Constraints, PinnedShard, TableRule, Task, Topology
from neuroshard.stages.search.options.choices import (
    ChangedChoices,
    TypeChoices,
    rank_changes,
    search_choices,
    total_by_type,
)
from neuroshard.stages.search.options.sharding_types import allowed_types, known_calls
from neuroshard.words.form import CALLS, COLUMN_WISE_CALL, FORMS, Call, Form
from tests.kit.random_models import random_form_models
from tests.kit.tasks import plain_tables

TABLES = plain_tables([16] * 4, 100)
TASK = Task(TABLES, Topology(4, 1 << 20, devices_per_host=2), 64)
COLUMN_WISE, ROW_WISE, DATA_PARALLEL = map(FORMS.index, ("column_wise", "row_wise", "data_parallel"))
ALL = np.ones((6, 3), dtype=np.bool_)
FIRST = np.full(6, COLUMN_WISE)


def _allowed(task, calls=CALLS):
    """Initials of the sharding types of each table: m for column-wise, r for row-wise, p for data-parallel."""
    letters = np.array(["m", "r", "p"])
    return ["".join(letters[may]) for may in allowed_types(task, calls)]


@pytest.mark.parametrize(
    ("constraints", "first"),
    [
        (Constraints(), "mrp"),
        (Constraints((TableRule("t0", sharding_types=("column_wise", "data_parallel")),)), "mp"),
        (Constraints((TableRule("t0", sharding_types=("row_wise",)),)), "r"),
        (Constraints((TableRule("t0", devices=(0, 1, 2)),)), "m"),
        (Constraints((TableRule("t0", devices=(0, 1, 2, 3)),)), "mrp"),
        (Constraints((TableRule("t0", max_shards=3),)), "mp"),
        (Constraints((TableRule("t0", min_shards=2),)), "mr"),
        (Constraints(pinned=(PinnedShard("t0", 4, (0,)),)), "m"),
        (Constraints(together=(("t0", "t1"),)), "mp"),
        (Constraints((TableRule("t1", sharding_types=("column_wise",)),), together=(("t0", "t1"),)), "m"),
        (Constraints(apart=(("t0", "t1"),)), "m"),
    ],
)
def test_constraints_limit_the_sharding_types_of_a_table(constraints, first):
    found = _allowed(replace(TASK, constraints=constraints))
    assert found[0] == first
    assert found[2:] == ["mrp", "mrp"]


@pytest.mark.parametrize(("rows", "may"), [(1, "mp"), (3, "mp"), (4, "mrp"), (5, "mp"), (7, "mrp")])
def test_tables_are_row_wise_only_with_enough_rows_for_blocks(rows, may):
    """Five rows on four devices make blocks of two, two and one row: the fourth block would be empty."""
    assert _allowed(Task((replace(TABLES[0], rows=rows),), TASK.topology, 64)) == [may]


def test_allowed_types_on_one_device_or_by_settings_are_column_wise_only():
    assert _allowed(Task(TABLES, Topology(1, 1 << 20), 64)) == ["m"] * 4
    assert _allowed(TASK, {COLUMN_WISE_CALL}) == ["m"] * 4


def test_sequence_tables_are_never_data_parallel():
    task = replace(TASK, tables=(replace(TABLES[0], pooled=False), *TABLES[1:]))
    assert _allowed(task) == ["mr", "mrp", "mrp", "mrp"]
    assert _allowed(task, {*map(Call, Form), Call(Form.COLUMN_WISE, False)}) == ["m", "mrp", "mrp", "mrp"]


def test_known_calls_are_those_whose_exchanges_the_models_know():
    models = random_form_models()
    assert known_calls(models) == set(CALLS)
    assert known_calls(models, ["column_wise"]) == {call for call in CALLS if call.form is Form.COLUMN_WISE}
    backward = replace(models.backward, serves=frozenset({Form.COLUMN_WISE, Form.ROW_WISE}))
    assert known_calls(replace(models, backward=backward)) == {*CALLS} - {Call(Form.DATA_PARALLEL)}


@given(st.integers(0, 2**32 - 1), st.integers(1, 12))
def test_changed_choices_have_the_types_and_totals_of_whole_choices(seed, num_tables):
    rng = np.random.default_rng(seed)
    before = rng.integers(len(FORMS), size=num_tables)
    changes = np.column_stack([rng.integers(num_tables, size=20), rng.integers(len(FORMS), size=20)])
    choices = ChangedChoices(before, changes)
    assert choices.types.shape == (20, num_tables)
    for row, (table, form) in zip(choices.types, changes, strict=True):
        assert row[table] == form
        assert np.delete(row == before, table).all()
    numbers = rng.integers(0, 4, size=(num_tables, 3)).astype(float)
    by_form = rng.integers(0, 4, size=(num_tables, len(FORMS), 3)).astype(float)
    expected = by_form[np.arange(num_tables), choices.types].sum(axis=1).tolist()
    assert (
        total_by_type(choices, by_form).tolist()
        == total_by_type(TypeChoices(choices.types), by_form).tolist()
        == expected
    )
    for form in range(len(FORMS)):
        other = TypeChoices(choices.types)
        assert (choices.total(form, np.ones(num_tables)) > 0).tolist() == (choices.types == form).any(axis=1).tolist()
        assert choices.total(form, numbers).tolist() == other.total(form, numbers).tolist()
        assert choices.total(form, numbers[:, 0]).tolist() == other.total(form, numbers[:, 0]).tolist()
        assert choices.total(form, numbers[:, :, None]).shape == (20, 3, 1)
        assert choices.largest(form, numbers).tolist() == other.largest(form, numbers).tolist()


@pytest.mark.parametrize(
    "of", [TypeChoices, lambda forms: ChangedChoices(forms[0], np.array([[0, 0], [1, 1], [1, 2]]))]
)
def test_slice_of_choices_has_the_types_at_these_positions(of):
    choices = of(np.array([[0, 1], [2, 1], [0, 0]]))
    assert len(choices) == 3
    assert choices.some(slice(1, 3)).types.tolist() == choices.types[1:].tolist()


@pytest.mark.parametrize("always", [0, 5, 40])
def test_largest_of_choices_equals_the_largest_number_of_the_chosen_tables(always):
    """Some tables may be chosen by all choices, and one choice may choose all tables or none."""
    rng = np.random.default_rng(4)
    numbers = rng.uniform(size=(40, 3))
    chosen = rng.uniform(size=(30, 40)) < rng.uniform(size=(30, 1)) ** 3
    chosen[:, :always], chosen[0] = True, always > 0
    expected = np.where(chosen[:, :, None], numbers, 0).max(axis=1)
    np.testing.assert_array_equal(TypeChoices(chosen.astype(int)).largest(1, numbers), expected)


def _weights(choices):
    """Every table has its own cheapest sharding type."""
    forms = choices.types
    wanted = np.arange(6) % 3
    cost = (forms != wanted) @ np.arange(1.0, 7.0)
    return cost, cost


def _held_up(choices):
    """The most expensive column-wise table counts, and row-wise calls cost: one row-wise table alone never helps."""
    forms = choices.types
    ms = np.array([5.0, 5.0, 5.0, 1.0, 1.0, 1.0])
    columns = np.where(forms == COLUMN_WISE, ms, 0)
    calls = (
        0.5 * (forms == ROW_WISE).any(axis=1)
        + 9.0 * (forms == DATA_PARALLEL).any(axis=1)
        + 0.4 * (forms == ROW_WISE).sum(axis=1)
    )
    return columns.max(axis=1) + calls, columns.mean(axis=1) + calls


def test_search_choices_gives_each_table_the_best_sharding_type():
    path = search_choices(FIRST, ALL, _weights)
    assert path[-1].tolist() == [0, 1, 2, 0, 1, 2]
    costs = _weights(TypeChoices(np.array(path)))[0]
    assert (np.diff(costs) < 0).all()


def test_search_choices_changes_several_tables_if_one_change_alone_does_not_help():
    changes, cost_ms = rank_changes(FIRST, ALL, _held_up)
    assert len(changes) == 12
    assert cost_ms.min() > _held_up(TypeChoices(FIRST[None]))[0][0]
    assert _held_up(ChangedChoices(FIRST, changes))[0].tolist() == cost_ms.tolist()
    last = search_choices(FIRST, ALL, _held_up)[-1]
    assert set(last[:3]) == {ROW_WISE}
    assert _held_up(TypeChoices(last[None]))[0][0] < 4


def test_sharding_types_that_are_not_allowed_are_never_taken():
    allowed = ALL.copy()
    allowed[1] = [True, False, True]
    last = search_choices(FIRST, allowed, _weights)[-1]
    assert last[1] != ROW_WISE
    assert np.delete(last, 1).tolist() == [0, 2, 0, 1, 2]
    none = np.zeros_like(ALL)
    none[:, COLUMN_WISE] = True
    assert len(search_choices(FIRST, none, _weights)) == 1


def test_search_choices_avoids_infinite_costs_if_it_can():
    def never(choices):
        return np.full(len(choices), np.inf), np.full(len(choices), np.inf)

    def row_wise_only(choices):
        cost = np.where((choices.types == ROW_WISE).sum(axis=1) >= 4, 1.0, np.inf)
        return cost, cost

    assert len(search_choices(FIRST, ALL, never)) == 1
    assert row_wise_only(TypeChoices(search_choices(FIRST, ALL, row_wise_only)[-1][None]))[0][0] == pytest.approx(1.0)


def test_search_choices_rarely_ranks_all_changes_of_400_tables():
    """400 tables that each help, by ever less: all get their best sharding type, and all changes are rarely ranked."""
    wanted, weight, looked = np.arange(400) % 3, 0.97 ** np.arange(400), []

    def costs(choices):
        forms = choices.types
        looked.append(len(forms))
        cost = 1 + (forms != wanted) @ weight - 0.5 * np.minimum((forms == wanted).sum(axis=1), 390) / 400
        return cost, cost

    path = search_choices(np.full(400, COLUMN_WISE), np.ones((400, 3), dtype=np.bool_), costs)
    assert (path[-1] == wanted).sum() >= 390
    assert len(path) > 3
    assert sum(count >= 400 for count in looked) < len(path)
