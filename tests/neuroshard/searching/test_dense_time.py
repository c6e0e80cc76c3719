"""If the time of the dense network is unknown, a search takes the plan with the least worst-case regret."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from neuroshard import CostModels, Simulator, Task, Topology, load_tables, search
from neuroshard.models.parts import UNKNOWN_DENSE_MS, Framework
from neuroshard.searching.dense_time import find_plan
from neuroshard.searching.searcher import Found, Searcher, searcher_of
from neuroshard.testing import toy_task
from tests.kit.messages import check, warned
from tests.kit.plans import DATA_PARALLEL, laid_out

TIMES_MS = np.linspace(0, 15, 16)
SHEET = CostModels.load("roofline:h100")
TASK = toy_task(4, num_devices=2)
FEW_CALLS, MANY_CALLS = laid_out(TASK, 0, 0, 1, 1), laid_out(TASK, [0, 1], DATA_PARALLEL, 0, 1)
EIGHT = Task(load_tables("dlrm_like", num_tables=8, batch_size=32768), Topology(4, "80GiB"), 32768)


def _launched_in(ms_per_call):
    """Make models of steps whose hosts take `ms_per_call` to launch a kernel call, and whose devices take no time."""
    return replace(SHEET, framework=Framework(1e-6, {}, {}, {}, {"calls": ms_per_call})).in_torchrec()


@dataclass(frozen=True)
class _ByDenseTime(Searcher):
    """Finds one plan for short dense networks and another plan for long ones, and counts its calls."""

    asked: list

    def find(self, task, simulator):
        plans = [FEW_CALLS, MANY_CALLS]
        self.asked.append(simulator)
        costs = [simulator.cost(task, plan).total_ms for plan in plans]
        return Found(plans[int(np.argmin(costs))])


def _regret_ms(plan, others, models):
    """Return the largest regret of a plan in ms: its cost above the cheapest plan, at any dense time."""
    task, regrets = plan.task, []
    for dense_ms in TIMES_MS:
        simulator = Simulator(models.with_dense_ms(float(dense_ms)))
        costs = [simulator.cost(task, one).total_ms for one in (plan, *others)]
        regrets.append(costs[0] - min(costs))
    return max(regrets)


def test_cost_at_unknown_dense_time_equals_cost_at_the_middle_of_the_range():
    models = CostModels.load("h100", framework="torchrec")
    costs = [Simulator(its).cost(TASK, MANY_CALLS).total_ms for its in (models, models.with_dense_ms(UNKNOWN_DENSE_MS))]
    extremes = [Simulator(models.with_dense_ms(ms)).cost(TASK, MANY_CALLS).total_ms for ms in (0.0, 15.0)]
    assert costs[0] == costs[1]
    assert extremes[1] < costs[0] < extremes[0] or extremes[1] == costs[0]
    assert costs[0] < extremes[0]


@pytest.mark.parametrize("ms_per_call", [0.5, 3.0, 6.0])
def test_search_with_unknown_dense_time_takes_the_plan_with_least_worst_case_regret(ms_per_call):
    models, asked = _launched_in(ms_per_call), []
    found = find_plan(_ByDenseTime(asked), TASK, Simulator(models))
    regrets = {plan: _regret_ms(plan, [FEW_CALLS, MANY_CALLS], models) for plan in (FEW_CALLS, MANY_CALLS)}
    others = {_ByDenseTime([]).find(TASK, Simulator(models.with_dense_ms(ms))).plan for ms in (0.0, 7.5, 15.0)}
    assert regrets[found.plan] == min(regrets[plan] for plan in others)
    assert len(asked) == 3


def test_searcher_runs_once_if_the_dense_time_is_known_or_does_not_count():
    for models in (
        SHEET,
        CostModels.load("h100", framework="torchrec", dense_ms=8),
        _launched_in(1.0).with_dense_ms(0.0),
    ):
        asked = []
        assert find_plan(_ByDenseTime(asked), TASK, Simulator(models)).warning is None
        assert len(asked) == 1


def test_default_plan_has_the_least_regret_over_unknown_dense_times():
    """Data-parallel tables of 1.3 GB were predicted to save 10% without dense work and to cost 9 ms more with 14 ms."""
    models = CostModels.load("h100", framework="torchrec")
    plan = find_plan(searcher_of("neuroshard"), EIGHT, Simulator(models)).plan
    at_ends = [
        searcher_of("neuroshard").find(EIGHT, Simulator(models.with_dense_ms(dense_ms))).plan
        for dense_ms in (0.0, 15.0)
    ]
    regret = _regret_ms(plan, at_ends, models)
    assert regret <= min(_regret_ms(one, at_ends, models) for one in at_ends)
    assert regret < max(_regret_ms(one, at_ends, models) for one in at_ends)


def test_search_warning_names_dense_times_at_which_another_plan_is_cheaper():
    models = CostModels.load("h100", framework="torchrec")
    simulator = Simulator(models)
    found = find_plan(searcher_of("neuroshard"), EIGHT, simulator)
    check(found.warning, "dense-time-unknown", names=["8 ms"])
    ends = [simulator.with_dense_ms(ms) for ms in (7.0, 8.0)]
    long = searcher_of("neuroshard").find(EIGHT, ends[1]).plan
    gains = [its.cost(EIGHT, found.plan).total_ms - its.cost(EIGHT, long).total_ms for its in ends]
    assert gains[0] < 0 < gains[1]
    with warned("dense-time-unknown", "costs-have-caveat"):
        assert search(EIGHT, simulator) == simulator.predicted(found.plan)
