"""Merging shards: the cost stays within the tolerance, and limits are kept."""

from dataclasses import replace

import pytest

import neuroshard as ns
from neuroshard import CostModels, InfeasibleError, Simulator, Task, Topology
from neuroshard.models.parts import Framework
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.options.merge_shards import merge_shards
from neuroshard.stages.search.options.sharding_types import known_calls
from neuroshard.tables.sources.criteo import criteo
from neuroshard.testing import constrained_task, linear_models, toy_task
from neuroshard.testing.toys import LinearComm, OpaqueCompute
from neuroshard.words.form import Form
from tests.kit.plans import DATA_PARALLEL, laid_out
from tests.kit.searches import H100, ms_of

ALL = NeuroShard(improvement=Improvement(perturbations=20), acceptance=None)


def _simpler(plan, simulator, tolerance):
    return merge_shards(plan, simulator, known_calls(simulator.models), tolerance)


def test_default_search_merges_shards_that_save_less_than_the_tolerance():
    task = Task(criteo(batch_size=4096), Topology(8, "80GiB"), 4096)
    cheapest, plan = (one.find(task, H100).plan for one in (replace(ALL, tolerance=0.0), ALL))
    assert len(plan.placements) < len(cheapest.placements)
    assert ms_of(cheapest) < ms_of(plan) <= ms_of(cheapest) * 1.005
    assert ALL.tolerance == 0.005


def test_column_wise_plans_are_kept_if_other_sharding_types_save_less_than_the_tolerance():
    """No change of a single table leads to this plan, and the tolerance limits the cost of all changes together."""
    sizes = (1797, 16, 13.36), (108637, 64, 100.16), (131539, 32, 3.28), (15450, 64, 4.752), (785735, 64, 13.008)
    tables = (ns.Table(f"t{i}", *its, ns.zipf_reuse(its[0], round(4096 * its[2]))) for i, its in enumerate(sizes))
    task = Task(tuple(tables), Topology(4, "1GiB"), 4096)
    alone = replace(ALL, sharding_types=("column_wise",), tolerance=0.0)
    columns, cheapest = (one.find(task, H100).plan for one in (alone, replace(ALL, tolerance=0.0)))
    more = ms_of(columns) / ms_of(cheapest) - 1
    found = {share: replace(ALL, tolerance=share * more).find(task, H100).plan for share in (0.9, 1.1)}
    assert 0 < more < ALL.tolerance
    assert set(found[0.9].forms) == {Form.ROW_WISE}
    assert set(found[1.1].forms) == {Form.COLUMN_WISE}
    assert len(found[1.1].placements) <= len(columns.placements) < len(found[0.9].placements)
    assert ms_of(found[1.1]) <= ms_of(cheapest) * (1 + 1.1 * more)


def _in_quarters():
    """Return the plan with all tables that are wide enough split over four devices."""
    task = replace(toy_task(6), topology=Topology(4, 1 << 40))
    quarters = (dict.fromkeys(range(4), table.dim // 4) if table.dim % 16 == 0 else None for table in task.tables)
    return laid_out(task, *(places or number % 4 for number, places in enumerate(quarters)))


@pytest.mark.parametrize("compute", [linear_models().compute, OpaqueCompute()])
def test_merging_leaves_fewer_shards_the_larger_the_tolerance(compute):
    """With a large tolerance all tables are whole; with tolerance 0 the plan is unchanged."""
    simulator, plan = Simulator(CostModels(compute, LinearComm(4), LinearComm(4), 256)), _in_quarters()
    found = [_simpler(plan, simulator, tolerance) for tolerance in (0.0, 0.2, 1.0, 100.0)]
    shards = [len(one.placements) for one in found]
    assert shards == sorted(shards, reverse=True)
    assert (found[0] is plan, shards[-1]) == (True, 6)
    assert ms_of(found[1], simulator) <= ms_of(plan, simulator) * 1.2


def test_fixed_step_time_does_not_widen_the_tolerance():
    """A fixed step time and a tolerance smaller in proportion merge the same shards."""
    plan, models = _in_quarters(), linear_models(4)
    step = Framework(1.0, {"step": 99 * ms_of(plan, Simulator(models))}, {}, {})
    whole_step = Simulator(replace(models, framework=step).in_torchrec())
    found = _simpler(plan, Simulator(models), 0.2), _simpler(plan, whole_step, 0.2 / 100)
    assert found[0].placements == found[1].placements != plan.placements


def test_merging_makes_other_sharding_types_column_wise_within_the_tolerance():
    task = Task(criteo()[:8], Topology(4, "80GiB"), 65536)
    plan = laid_out(task, *(t % 4 for t in range(6)), range(4), DATA_PARALLEL)
    found = _simpler(plan, H100, 10.0)
    assert set(found.forms) == {Form.COLUMN_WISE}
    assert found.violations == ()
    assert len(found.placements) == 8


def test_merging_shards_breaks_no_limit_of_the_task():
    """The tolerance is large; some plans still have no fewer shards."""
    kept, fewer = 0, 0
    for seed in range(10):
        task = constrained_task(seed)
        try:
            plan = replace(ALL, tolerance=0.0).find(task, H100).plan
        except InfeasibleError:
            continue
        found = _simpler(plan, H100, 1.0)
        assert found.violations == ()
        fewer += len(found.placements) < len(plan.placements)
        kept += len(found.placements) == len(plan.placements)
    assert kept > 0
    assert fewer > 0
