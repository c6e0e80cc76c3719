"""Fixed loads: column-wise tables get the memory that is left, and costs equal those of whole plans."""

from dataclasses import replace

import numpy as np
import pytest

from neuroshard import Constraints, InfeasibleError, MemoryUse, Plan, Simulator, Task, Topology
from neuroshard.layouts import place_column_wise, place_data_parallel, place_row_wise
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.stages.search.options.sharding_types import SpreadPlacements, allowed_types, known_calls, leaders
from neuroshard.stages.search.published.grid import GridSettings
from neuroshard.stages.search.space.costed_space import CostedSpace
from neuroshard.stages.search.space.fixed_load import FixedLoad, device_memory
from neuroshard.testing import OpaqueCompute, constrained_task, linear_models, toy_task
from neuroshard.words.form import FORMS, Form
from tests.kit.messages import refused
from tests.kit.plans import laid_out
from tests.kit.random_models import random_form_models
from tests.kit.searches import H100, costed_space_of
from tests.kit.tasks import plain_tables

COLUMN_WISE, ROW_WISE, DATA_PARALLEL = map(FORMS.index, ("column_wise", "row_wise", "data_parallel"))
TABLES = plain_tables([16] * 4, 400)
TASK = Task(TABLES, Topology(4, 1 << 20, devices_per_host=2), 64)
LINEAR = Simulator(replace(linear_models(4), batch_size=None))


def _mixed(task):
    """The first table data-parallel, the second and fourth column-wise, the third row-wise on the second host."""
    return laid_out(task, "data_parallel", {0: 4, 3: 12}, [2, 3], 1)


def _fixed_load(plan):
    return FixedLoad.of_plan(plan, H100.models.compute)


@pytest.mark.parametrize("models", [H100.models, random_form_models()], ids=["roofline", "random"])
def test_costs_of_a_space_with_fixed_tables_equal_costs_of_whole_plans(models):
    """Rows on one host load the devices of this host more than other devices."""
    task = replace(toy_task(6), topology=Topology(4, 1 << 40, devices_per_host=2))
    others = (*place_row_wise(task, 0, [2, 3]), *place_row_wise(task, 1, range(4)), *place_data_parallel(task, 2))
    simulator = Simulator(models)
    space = CostedSpace.checked(FixedLoad.of(task, others, models.compute), simulator)
    for devices in ((0, 1, 2), (3, 3, 0)):
        columns = [(table, task.tables[table].dim, device) for table, device in zip((3, 4, 5), devices, strict=True)]
        plan = Plan(task, (*others, *place_column_wise(task, columns)))
        widths = space.widths(plan)
        compute = space.model.predict(space.device_loads(widths))[None]
        ready, total = space.step(compute, space.shards.device_units(widths)[None])
        cost = simulator.cost(task, plan)
        np.testing.assert_allclose(total[0] - ready[0], cost.forward, rtol=1e-9)
        np.testing.assert_allclose(ready[0], cost.compute + cost.backward, rtol=1e-9)
        assert cost.compute[3] > compute[0, 3]


@pytest.mark.parametrize("use", [MemoryUse(), MemoryUse("adam", batches_in_flight=2)])
def test_column_wise_tables_get_exactly_the_memory_left_by_the_fixed_load(use):
    plan = _mixed(replace(TASK, memory=use))
    fixed = _fixed_load(plan)
    assert fixed.column_wise.tolist() == [1, 3]
    space = CostedSpace.checked(fixed, LINEAR)
    held = space.widths(plan)
    columns = space.shards.device_bytes(held)
    np.testing.assert_array_equal(fixed.free_bytes - columns, device_memory(plan.task) - np.array(plan.device_bytes))
    assert sorted(space.plan(held).placements) == sorted(plan.placements)


def test_search_beside_a_fixed_load_keeps_the_chosen_sharding_types():
    task = replace(TASK, topology=Topology(4, (10**6, 2 * 10**6, 10**6, 10**6), 1000, 2))
    others = SpreadPlacements(task).others(np.array([DATA_PARALLEL, COLUMN_WISE, ROW_WISE, COLUMN_WISE]))
    space = CostedSpace.checked(FixedLoad.of(task, others, H100.models.compute), LINEAR)
    plan = space.plan(BeamSearch(grid=GridSettings(points=2)).first_widths(space))
    assert plan.forms == (Form.DATA_PARALLEL, Form.COLUMN_WISE, Form.ROW_WISE, Form.COLUMN_WISE)
    assert plan.fits


def test_fixed_load_above_device_memory_is_refused():
    size = TABLES[0].size_bytes
    for memory, forms in ((size - 1, [DATA_PARALLEL, COLUMN_WISE]), (2 * size - 1, [DATA_PARALLEL, DATA_PARALLEL])):
        task = Task(TABLES[:2], Topology(4, memory), 64)
        with refused("device-memory-row-wise-tables", names=["device 0"], kind=InfeasibleError):
            FixedLoad.of(task, SpreadPlacements(task).others(np.array(forms)), H100.models.compute)
    task = Task(TABLES[:2], Topology(4, 2 * size), 64)
    everywhere = FixedLoad.of(
        task, SpreadPlacements(task).others(np.array([DATA_PARALLEL, DATA_PARALLEL])), H100.models.compute
    )
    assert not len(everywhere.column_wise)
    assert everywhere.plan().fits


def test_buffers_that_leave_a_device_no_memory_are_named_before_its_tables():
    task = Task(TABLES[:1], Topology(2, (1 << 20, 100)), 64, MemoryUse("sgd", 1))
    for forms in ([DATA_PARALLEL], [ROW_WISE]):
        with refused("device-buffers-too-large", names=["KiB", "topology.memory_bytes"], kind=InfeasibleError):
            FixedLoad.of(task, SpreadPlacements(task).others(np.array(forms)), H100.models.compute)


def test_columns_stay_off_the_devices_of_rows_that_they_are_kept_apart_from():
    task = replace(TASK, constraints=Constraints(apart=(("t2", "t3"),)))
    plan = _mixed(task)
    assert plan.violations == ()
    rules = CostedSpace.checked(_fixed_load(plan), LINEAR).shards.rules
    assert rules.allowed.tolist() == [[True] * 4, [True, True, False, False]]


def test_fixed_load_may_take_all_memory_of_a_device():
    task = Task(TABLES[:2], Topology(2, (TABLES[0].size_bytes, 1 << 20)), 64)
    fixed = _fixed_load(laid_out(task, "data_parallel", 1))
    assert fixed.free_bytes.tolist() == [0, (1 << 20) - TABLES[0].size_bytes]
    assert fixed.plan([(1, 16, 1)]).fits


@pytest.mark.parametrize("compute", [H100.models.compute, OpaqueCompute()], ids=["sum", "other"])
def test_taking_part_of_a_costed_space_equals_costing_that_part_again(compute):
    rng, pinned, apart = np.random.default_rng(0), 0, 0
    simulator = Simulator(replace(H100.models, compute=compute, margins=None))
    for seed in range(10):
        task = constrained_task(seed)
        bound = ~np.delete(allowed_types(task, known_calls(H100.models)), COLUMN_WISE, 1)
        stay = (rng.uniform(size=len(task.tables)) < 0.5)[leaders(task)]  # tables kept together change together
        fixed = FixedLoad.empty(task, np.flatnonzero(bound.all(axis=1) | stay))
        part, made = costed_space_of(task, simulator).take(fixed), CostedSpace.checked(fixed, simulator)
        assert part.items == made.items
        for one, other in zip(part.shards.rules, made.shards.rules, strict=True):
            np.testing.assert_array_equal(one, other)
        for name, ours, theirs in zip(part.shards._fields, part.shards, made.shards, strict=True):
            if name != "rules":  # products of more rows round apart
                np.testing.assert_allclose(ours, theirs, rtol=1e-6, err_msg=name)
        pinned += bool(task.constraints.pinned)
        apart += len(part.shards.rules.rivals) > 0
    assert min(pinned, apart) > 0


@pytest.mark.parametrize("models", [linear_models(4), random_form_models()], ids=["linear", "random"])
def test_balanced_cost_has_equal_devices_and_the_work_of_the_plan(models):
    simulator = Simulator(replace(models, batch_size=None))
    plan = _mixed(TASK)
    space = CostedSpace.checked(FixedLoad.of_plan(plan, simulator.models.compute), simulator)
    widths = space.widths(plan)
    balanced, cost = space.balanced_cost(widths), space.costs([widths])[0]
    assert np.ptp(balanced.device_ms) == 0
    assert balanced.compute.sum() == pytest.approx(cost.compute.sum())
    assert space.balanced_cost(space.whole_on_one).compute.sum() <= cost.compute.sum() * (1 + 1e-9)
