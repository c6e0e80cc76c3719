"""Measurements of plans are read back unchanged, and files of other plans are refused."""

from dataclasses import replace

import numpy as np
import pytest

from neuroshard.measure.store.plan_measurements import COST, PlanMeasurement, costs_ms, errors_of, passes_in
from neuroshard.testing import toy_task
from tests.kit.messages import refused
from tests.kit.plans import whole

ROWS = (
    PlanMeasurement(0, 0, 0, "input", 1.0, None, "all_to_all", 12.0, 0.0),
    PlanMeasurement(0, 0, 1, "input", 1.5, None, ""),
    PlanMeasurement(0, 0, None, COST, 3.0),
    PlanMeasurement(1, 0, 1, error="MemoryError: too much"),
)


@pytest.fixture
def passes(tmp_path):
    return passes_in(tmp_path, 0, [whole(toy_task(2, num_devices=2))] * 2)


def test_stored_measurement_rows_are_read_back_unchanged(passes):
    passes.write(0, ROWS)
    assert passes.leading() == (ROWS,)


def test_costs_ms_and_errors_of_have_an_entry_for_each_plan():
    again = tuple(replace(row, pass_number=1) for row in ROWS)
    np.testing.assert_array_equal(costs_ms([ROWS, again], 2), [[3.0, 3.0], [np.nan, np.nan]])
    assert errors_of([ROWS, again], 2) == (None, "MemoryError: too much")


@pytest.mark.parametrize(
    "rows",
    [
        ROWS[:3],  # nothing of the second plan
        (*ROWS, replace(ROWS[2], plan=2)),
        (replace(ROWS[0], device=2), *ROWS[1:]),
        (*ROWS[:2], ROWS[3]),  # no cost
        (*ROWS, ROWS[2]),  # two costs
        tuple(replace(row, pass_number=1) for row in ROWS),
    ],
)
def test_reading_measurement_rows_of_other_plans_is_refused(passes, rows):
    passes.write(0, rows)
    with refused("stored-part-wrong", names=[passes.path(0), "2 plans", "2 devices"]):
        passes.leading()


def test_measurement_row_has_either_a_time_or_an_error():
    for wrong in ({"phase": "input"}, {"error": "x", "phase": "input", "ms": 1.0}, {}):
        with pytest.raises(ValueError, match="either a phase"):
            PlanMeasurement(0, 0, **wrong)
