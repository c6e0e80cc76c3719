"""Estimates of choices of sharding types, compared with the costs of whole plans."""

from dataclasses import replace

import numpy as np
import pytest

from neuroshard import Constraints, CostModels, Plan, Simulator, Task, Topology
from neuroshard.layouts import LAYOUTS, place_column_wise, place_data_parallel, place_row_wise, placed_loads
from neuroshard.models.parts import Framework
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.options import estimates
from neuroshard.stages.search.options.choices import ChangedChoices, TypeChoices
from neuroshard.stages.search.options.estimates import CostEstimates, slowest_loads
from neuroshard.stages.search.options.sharding_types import SpreadPlacements, allowed_types
from neuroshard.stages.search.space.fixed_load import FixedLoad
from neuroshard.testing import constrained_task
from neuroshard.words.form import CALLS, FORMS, Form
from tests.kit.random_models import random_by_form
from tests.kit.searches import H100, costed_space_of, ms_of
from tests.kit.tasks import hot_table

COLUMN_WISE, ROW_WISE, DATA_PARALLEL = map(FORMS.index, ("column_wise", "row_wise", "data_parallel"))
BATCH = 65536
BY_FORM = Simulator(replace(H100.models, compute=random_by_form(), margins=None))
WORK = {
    "step": 0.5,
    "calls": 0.3,
    "calls except data-parallel x devices": 0.1,
    "own lookups": 1e-5,
    "mean lookups": 1e-5,
}
WORK |= {
    "own data-parallel lookups": 1e-5,
    "own data-parallel tables": 0.1,
    "MB of outputs of several sharding types": 0.2,
}
# Most devices of these tests are ready before their host is.
HOST = {"step": 9.0, "calls": 1.0, "own data-parallel tables": 0.2, "mean row-wise lookups": 1e-6}
IN_STEPS = replace(H100.models, framework=Framework(0.8, WORK, {"mean row-wise lookups": 2e-5}, {})).in_torchrec()
ON_HOSTS = replace(H100.models, framework=Framework(0.8, WORK, {}, {}, HOST)).in_torchrec()


def _task(count=12, num_devices=4, memory_bytes="80GiB"):
    rng = np.random.default_rng(0)
    tables = tuple(
        hot_table(f"t{i}", int(rng.integers(1, 1e4)) * 8, int(rng.choice([16, 64, 128])), rng.uniform(1, 30))
        for i in range(count)
    )
    return Task(tables, Topology(num_devices, memory_bytes, devices_per_host=2), BATCH)


def _estimates(task, simulator=H100):
    return CostEstimates.of(task, simulator, allowed_types(task, CALLS), costed_space_of(task, simulator))


def _cost(task, forms):
    base = FixedLoad.of(task, SpreadPlacements(task).others(forms), H100.models.compute)
    plan = NeuroShard().column_search.found(base, H100).plan if len(base.column_wise) else base.plan()
    return ms_of(plan)


@pytest.mark.parametrize(
    "simulator",
    [H100, BY_FORM, *(Simulator(IN_STEPS, count_input=its) for its in (False, True)), Simulator(ON_HOSTS)],
    ids=[
        "kernels",
        "a model for each sharding type",
        "whole steps",
        "whole steps with their input",
        "waiting for hosts",
    ],
)
@pytest.mark.parametrize("forms", [[ROW_WISE] * 12, [DATA_PARALLEL] * 12, [ROW_WISE, DATA_PARALLEL] * 6])
def test_estimates_of_row_wise_and_data_parallel_tables_are_exact(forms, simulator):
    task, forms = _task(), np.array(forms)
    plan = Plan(task, tuple(SpreadPlacements(task).others(forms)))
    held_up, evenly = _estimates(task, simulator).costs(TypeChoices(forms[None]))
    assert held_up[0] == pytest.approx(ms_of(plan, simulator), rel=1e-4)
    assert evenly[0] == pytest.approx(held_up[0])
    assert simulator.models.framework is None or held_up[0] > ms_of(plan) + 0.5


@pytest.mark.parametrize("simulator", [H100, BY_FORM], ids=["kernels", "a model for each sharding type"])
@pytest.mark.parametrize("sequences", [[False] * 12, [True, False] * 6, [True] * 12], ids=["none", "some", "all"])
def test_placed_column_wise_tables_cost_what_their_plan_does_beside_any_sharding_types(sequences, simulator):
    """Row-wise sequence tables have separate kernel calls, and share the all-to-all of column-wise tables."""
    base, rng = _task(), np.random.default_rng(5)
    tables = tuple(replace(t, pooled=not its) for t, its in zip(base.tables, sequences, strict=True))
    task, one_in_columns = replace(base, tables=tables), np.where(np.arange(12) == 1, COLUMN_WISE, ROW_WISE)
    space, estimates = costed_space_of(task, simulator), _estimates(task, simulator)
    for choice in (np.full(12, ROW_WISE), one_in_columns, *rng.choice(len(FORMS), (4, 12))):
        forms = np.where(sequences & (choice == DATA_PARALLEL), COLUMN_WISE, choice)
        in_one = np.flatnonzero(forms == COLUMN_WISE).tolist()
        places = [(table, tables[table].dim, int(rng.integers(4))) for table in in_one]
        plan = Plan(task, (*place_column_wise(task, places), *SpreadPlacements(task).others(forms)))
        units, given = np.zeros((4, 12), dtype=np.int64), np.zeros(4)
        for index, dim, device in places:
            units[device, index] = dim // 4
            given[device] += tables[index].output_columns
        compute = space.model.predict(space.device_loads(units.T))
        total = estimates.fixed_load(forms).step(simulator, compute[None], given[None] / 4)[1].max()
        assert total == pytest.approx(ms_of(plan, simulator), rel=1e-4)
        assert np.isfinite(estimates.costs(TypeChoices(forms[None]))[0][0])


def test_estimates_of_column_wise_tables_are_near_their_cost():
    """Many tables on few devices can be spread nearly evenly, as estimates assume."""
    task, rng = _task(), np.random.default_rng(1)
    choices = np.stack([np.full(12, COLUMN_WISE), *rng.choice(len(FORMS), (8, 12), p=[0.6, 0.2, 0.2])])
    costs = np.array([_cost(task, forms) for forms in choices])
    held_up, evenly = _estimates(task).costs(TypeChoices(choices))
    assert held_up == pytest.approx(costs, rel=0.05)
    assert (evenly <= held_up * (1 + 1e-9)).all()


def test_estimate_of_a_hot_narrow_table_exceeds_the_estimate_without_stragglers():
    base = _task().tables
    hot = replace(base[0], name="hot", dim=4, pooling_factor=2000.0)
    task = Task((hot, *base[1:]), Topology(4, "80GiB"), BATCH)
    held_up, evenly = _estimates(task).costs(TypeChoices(np.full((1, 12), COLUMN_WISE)))
    assert held_up[0] > 1.3 * evenly[0]
    assert held_up[0] == pytest.approx(_cost(task, np.full(12, COLUMN_WISE)), rel=0.05)


def test_choices_that_exceed_memory_cost_infinity():
    task = _task()
    tight = Task(task.tables, Topology(4, int(task.size_bytes * 0.4)), BATCH)
    held_up, evenly = _estimates(tight).costs(
        TypeChoices(np.array([[COLUMN_WISE] * 12, [ROW_WISE] * 12, [DATA_PARALLEL] * 12]))
    )
    assert np.isfinite(held_up).tolist() == [True, True, False]
    assert np.isfinite(evenly).tolist() == [True, True, False]


def test_estimates_of_many_choices_equal_estimates_of_each_alone():
    task = _task()
    choices = np.random.default_rng(2).choice(len(FORMS), (600, 12))
    together = np.array(_estimates(task).costs(TypeChoices(choices)))
    alone = np.array([_estimates(task).costs(TypeChoices(choices[i : i + 1])) for i in (0, 300, 599)])[..., 0].T
    assert together[:, [0, 300, 599]] == pytest.approx(alone)


@pytest.mark.parametrize("simulator", [H100, Simulator(CostModels.load("cpu", framework="torchrec"))])
def test_estimates_of_changed_choices_equal_estimates_of_whole_choices(simulator):
    task = _task()
    estimates, rng = _estimates(task, simulator), np.random.default_rng(4)
    for before in (np.full(12, COLUMN_WISE), rng.integers(len(FORMS), size=12)):
        changes = ChangedChoices(before, np.argwhere(np.arange(len(FORMS)) != before[:, None]))
        for one, other in zip(estimates.costs(changes), estimates.costs(TypeChoices(changes.types)), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9)


def test_estimates_with_constraints_are_finite_and_no_lower_than_without():
    for seed in range(6):
        task = constrained_task(seed)
        forms = np.full((1, len(task.tables)), COLUMN_WISE)
        held_up, _ = _estimates(task).costs(TypeChoices(forms))
        free, _ = _estimates(replace(task, constraints=Constraints())).costs(TypeChoices(forms))
        assert np.isfinite(held_up[0])
        assert held_up[0] >= free[0] * (1 - 1e-6)


def test_estimates_are_unchanged_by_leaving_out_beaten_cuts(monkeypatch):
    """Of cuts that are no more expensive and no wider than others, one is costed."""
    task = _task(30, 16)
    choices = np.random.default_rng(3).choice(len(FORMS), (50, 30), p=[0.8, 0.1, 0.1])
    few = _estimates(task).costs(TypeChoices(choices))
    monkeypatch.setattr(estimates, "_unbeaten", lambda cost_ms, columns: np.isfinite(cost_ms))
    np.testing.assert_allclose(_estimates(task).costs(TypeChoices(choices)), few, rtol=1e-12)


def test_unbeaten_keeps_only_the_first_of_equal_cuts():
    cost = np.array([[2.0, 2.0, 1.0, 3.0, np.inf], [np.inf] * 5])
    columns = np.array([[4.0, 4.0, 8.0, 8.0, 0.0], [1.0] * 5])
    assert estimates._unbeaten(cost, columns).tolist() == [[True, False, True, False, False], [False] * 5]


def _same_loads(one, other):
    for name in ("rows", "dim", "lookups", "samples", "outputs", "reuse", "form", "sharers"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-12, err_msg=name)


def test_slowest_loads_equal_the_loads_of_placed_tables():
    """The slowest block of a row-wise table has the most lookups; without `row_lookups` it is the first."""
    base = _task()
    hot = replace(base.tables[2], row_lookups=(0.1, 0.1, 0.7, 0.1))
    task = replace(base, tables=(*base.tables[:2], hot, *base.tables[3:]))
    tables = np.array([0, 2, 5])
    blocks = [placed for table in tables.tolist() for placed in place_row_wise(task, table, range(4))]
    data_parallel = [placed for table in tables.tolist() for placed in place_data_parallel(task, table)]
    for form, placed, which in ((Form.ROW_WISE, blocks, [0, 4 + 2, 8]), (Form.DATA_PARALLEL, data_parallel, [0, 4, 8])):
        loads = placed_loads(task.tables, placed, task.batch_size, 4).take(np.array(which))
        _same_loads(slowest_loads(task, tables, LAYOUTS[form]), loads)
