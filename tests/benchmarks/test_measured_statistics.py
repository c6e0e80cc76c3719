import sys
from pathlib import Path

import numpy as np
import pytest

import neuroshard as ns
from neuroshard.testing import linear_models

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from measured_statistics import TOLD, draw_laws, plans_of, rows, told


def test_batches_tell_what_the_laws_say():
    laws = draw_laws(8, np.random.default_rng(0))
    known = told(laws, 1024, 2, 3, np.random.default_rng(1))
    guessed, pooled, counted, true = (known[name] for name in TOLD)
    assert {table.reuse_batch_size for tables in known.values() for table in tables} == {1024}
    for law, one, other, found, table in zip(laws, guessed, pooled, counted, true, strict=True):
        assert (one.pooling_factor, other.pooling_factor) == (1.0, law.pooling_factor)
        assert found.pooling_factor == pytest.approx(table.pooling_factor, rel=0.1)
        assert np.abs(np.subtract(found.reuse, table.reuse)).sum() < 0.1
        assert np.abs(np.subtract(found.row_lookups, table.row_lookups)).sum() < 0.3
        assert np.argmax(table.row_lookups) == 0 or law.exponent < 0.05


def test_every_plan_is_one_of_the_true_tables():
    known = told(draw_laws(6, np.random.default_rng(0)), 256, 2, 2, np.random.default_rng(1))
    task = ns.Task(known[TOLD[-1]], ns.Topology(2, "1GiB"), 256)
    plans = plans_of(known, task, ns.Simulator(linear_models(2)))
    assert len(plans) == len(TOLD)
    assert all(plan.task is task and not plan.violations for plan in plans)


def test_rows_compare_with_what_is_guessed():
    predicted, measured = np.array([[4.0, 3, 2, 1]] * 2), np.array([[10.0, 9, 8, 10]] * 2)
    found = list(rows(predicted, measured))
    assert found[0] == "| 0 | 4.0 / 10.0 | 3.0 / 9.0 | 2.0 / 8.0 | 1.0 / 10.0 |"
    assert found[-1] == (
        "| mean | +0.0% / +0.0% ± 0.0% | -25.0% / -10.0% ± 0.0% | -50.0% / -20.0% ± 0.0% | -75.0% / +0.0% ± 0.0% |"
    )
