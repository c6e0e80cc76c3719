"""Re-planning: little is moved, nothing gets worse, mistakes are said."""

from dataclasses import replace

import pytest

import neuroshard as ns
from neuroshard.errors import UserError
from neuroshard.models import CostModels
from neuroshard.plans.lay_out import in_columns, in_copies, in_rows
from neuroshard.plans.plan import Plan
from neuroshard.searcher import Searcher
from neuroshard.simulator import Simulator
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.heuristics import Random
from neuroshard.stages.search.methods.replan import Replan
from neuroshard.stages.search.report.moves import table_moves
from neuroshard.stages.search.space.moved import moved_between
from neuroshard.tasks.constraints import Constraints, TableRule
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing import OpaqueCompute, SearcherConformance, linear_models, random_models, toy_task
from neuroshard.testing.toys import LinearComm, LinearCompute
from neuroshard.units import readable_bytes

FEW = Improvement(shakes=5)


class _FromRandom(Searcher):
    """Re-plans a random plan."""

    def search(self, task, simulator):
        return Replan(Random().search(task, simulator), improvement=FEW).search(task, simulator)


class TestReplan(SearcherConformance):
    def make(self):
        return _FromRandom()


def _started(compute, **settings):
    task, simulator = toy_task(14), Simulator(replace(linear_models(), compute=compute))
    start = Random(0).search(task, simulator)
    plan = Replan(start, improvement=FEW, **settings).search(task, simulator)
    costs = [cost.total_ms for cost in simulator.costs(task, [start, plan])]
    return start, plan, costs


@pytest.mark.parametrize("compute", [LinearCompute(), OpaqueCompute()])
def test_the_more_may_move_the_lower_the_cost(compute):
    total = toy_task(14).size_bytes
    outcomes = [_started(compute, max_moved_bytes=limit) for limit in (0, total // 20, total // 5, None)]
    assert outcomes[0][0] == outcomes[0][1]
    for (start, plan, _), limit in zip(outcomes, (0, total // 20, total // 5), strict=False):
        assert moved_between(start, plan).sum() <= limit
    after = [costs[1] for _, _, costs in outcomes]
    assert after[0] > after[1] > after[3]
    assert after[2] >= after[3] * 0.99


def test_plans_with_rows_or_copies_are_refused_before_anything_is_searched():
    task = toy_task(3)
    rest = in_columns(task, [(i, task.tables[i].dim, 0) for i in (1, 2)])
    for placed, form in ((in_rows(task, 0, range(4)), "rows"), (in_copies(task, 0), "copies")):
        with pytest.raises(UserError, match=f"table 'toy0' lies in {form}, and searches set out from columns only"):
            Replan(Plan(task, (*placed, *rest))).search(task, Simulator(linear_models()))


def test_the_plan_may_come_from_a_file_and_another_load(tmp_path):
    task, simulator = toy_task(10), Simulator(random_models())
    Random().search(task, simulator).save(tmp_path / "plan.json")
    busier = replace(task, tables=(replace(task.tables[0], pooling_factor=99.0), *task.tables[1:]))
    plan = ns.search(busier, simulator, searcher="replan", start=str(tmp_path / "plan.json"))
    assert plan.task == busier


def test_the_remark_names_bytes_and_cost():
    task, simulator = toy_task(10), Simulator(random_models())
    searcher = Replan(Random().search(task, simulator), improvement=FEW)
    remark = searcher.remark(task, simulator, searcher.search(task, simulator))
    assert "moves" in remark
    assert "ms (" in remark


def test_explain_says_the_same_number_of_moved_bytes():
    """Weights and optimizer state, both of them."""
    task = replace(toy_task(10), memory=ns.MemoryUse("adam"))
    searcher = Replan(Random().search(task, Simulator(random_models())), improvement=FEW)
    plan = searcher.search(task, Simulator(random_models()))
    shown = readable_bytes(sum(move.size_bytes for move in table_moves(searcher.start, plan)))
    assert shown != readable_bytes(0)
    assert searcher.remark(task, Simulator(random_models()), plan).startswith(f"moves {shown} of ")


def test_starts_that_do_not_fit_the_task_are_refused():
    task, simulator = toy_task(6), Simulator(linear_models())
    start = Random().search(task, simulator)
    with pytest.raises(UserError, match="for 4 devices, the task has 2"):
        Replan(start).search(toy_task(6, num_devices=2), Simulator(linear_models(2)))
    with pytest.raises(UserError, match="for other tables"):
        Replan(start).search(toy_task(6, seed=1), simulator)
    with pytest.raises(UserError, match="for other tables"):
        Replan(start).search(toy_task(7), simulator)
    tight = Task(task.tables, Topology(4, max(start.device_bytes) - 1), task.batch_size)
    with pytest.raises(UserError, match="breaks the task's limits: device"):
        Replan(start).search(tight, simulator)
    first = start.placements[0]
    device = (first.device + 1) % 4
    rule = Constraints((TableRule(task.tables[first.shard.table].name, devices=(device,)),))
    with pytest.raises(UserError, match="must not lie on device"):
        Replan(start).search(replace(task, constraints=rule), simulator)


def test_impossible_settings_are_refused():
    task = toy_task(6)
    start = Random().search(task, Simulator(linear_models()))
    with pytest.raises(UserError, match="max_moved_bytes=-1"):
        Replan(start, -1)
    with pytest.raises(UserError, match="max_moved_bytes='much' must be a size"):
        Replan(start, "much")
    free, limited = (Replan(start, limit, FEW).search(task, Simulator(linear_models())) for limit in (None, "1000 PiB"))
    assert free == limited


def test_a_plan_that_costs_nothing_has_a_remark():
    free = CostModels(LinearCompute(0.0, 0.0), LinearComm(4, 0.0), LinearComm(4, 0.0), 256)
    task, simulator = toy_task(4), Simulator(free)
    replan = Replan(Random().search(task, simulator))
    assert "0.00 -> 0.00 ms" in replan.remark(task, simulator, replan.search(task, simulator))
